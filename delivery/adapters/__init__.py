"""The only importers of aiokafka, httpx, aiohttp, redis and prometheus_client. They report facts and never judge."""

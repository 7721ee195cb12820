"""Kafka as the commands reach it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Coroutine
from typing import TypeVar

from delivery.adapters.kafka_connection import KafkaConnection, forbid_topic_creation
from delivery.adapters.kafka_topics import KafkaTopics
from delivery.ports import Unreachable
from supervisor.configuration import Configuration
from supervisor.connections import kafka_connection
from supervisor.failure import Failed, Misused
from supervisor.logs import quieten

Result = TypeVar("Result")


def connection_of(configuration: Configuration) -> KafkaConnection:
    """How to connect, without bringing topics into being. Raises Misused when a TLS file cannot be used."""
    forbid_topic_creation()
    try:
        return kafka_connection(configuration)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise Misused([f"DELIVERY_KAFKA__SSL_…: expected usable PEM files ({type(error).__name__})"]) from error


@contextlib.asynccontextmanager
async def topics_of(connection: KafkaConnection) -> AsyncIterator[KafkaTopics]:
    """Topics, for as long as the context lasts. Raises Unreachable."""
    topics = KafkaTopics(connection)
    try:
        await topics.start()
        yield topics
    finally:
        await topics.stop()


def run(configuration: Configuration, work: Coroutine[object, object, Result]) -> Result:
    """Run a command's work; libraries keep quiet, since the command says what is to be said. Raises Failed."""
    quieten()
    try:
        return asyncio.run(work)
    except Unreachable as error:
        raise Failed(unreachable(configuration, error)) from error


def unreachable(configuration: Configuration, error: Unreachable) -> str:
    """One line that names the setting."""
    return f"DELIVERY_KAFKA__BOOTSTRAP_SERVERS: {configuration.kafka.bootstrap_servers} does not answer ({error})"

"""The connection to Redis that a process shares: short waits, one kind of error, quick refusals while it is away."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

import structlog
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as Dropped
from redis.exceptions import NoScriptError, RedisError, ResponseError

from delivery.ports import LedgerAway

log = structlog.get_logger(__name__)

# For a whole call, connecting included. Redis answers in well under a millisecond; a loop must not wait long for one
# that does not answer at all.
LIMIT_S: Final = 0.5
# A time limit that strikes this late says that this process stood still, and nothing about Redis.
LATE_S: Final = 0.1
# Between two looks whether Redis is back; calls fail at once meanwhile. After a time that went well the first look is
# soon: one late answer must not keep the next owner of a queue, who waits for two seconds, from being told.
PROBE_S: Final = 1.0
FIRST_PROBE_S: Final = 0.1
WELL_S: Final = 10.0
# Calls at once, each on a connection of its own: more would only wait in Redis, which does one thing at a time.
MOST_CALLS: Final = 8
# Whoever listens and hears nothing for so long asks whether Redis is still there, and gives up after as long again.
QUIET_S: Final = 10.0

Command = tuple[str | bytes | int | float, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Script:
    """A Lua script with one key, or several that have one hash tag, and the name that Redis gives it."""

    text: str
    keys: int = 1
    sha: str = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        """Work out the name."""
        object.__setattr__(self, "sha", hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest())


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """One run of a script: its keys, then its arguments."""

    script: Script
    arguments: Command

    def command(self, *, whole: bool = False) -> Command:
        """As Redis is asked; `whole` sends the script itself, which Redis then knows."""
        if whole:
            return ("EVAL", self.script.text, self.script.keys, *self.arguments)
        return ("EVALSHA", self.script.sha, self.script.keys, *self.arguments)


class RedisConnection:
    """Every way in which Redis can fail comes out as LedgerAway, without the URL, which may hold a password.

    What is asked through it must bear a repeat: a dropped connection is replaced, and the commands sent again, once.
    """

    def __init__(self, url: str, probe_key: str, *, limit_s: float = LIMIT_S) -> None:
        """`probe_key` is written to find out whether Redis takes writes. Connects only when asked something."""
        self._probe_key = probe_key
        self._client = Redis.from_url(
            url,
            # One limit for the whole call, below, bounds them all.
            socket_connect_timeout=None,
            socket_timeout=None,
            retry=Retry(NoBackoff(), 1, supported_errors=(Dropped,)),
            # Nothing here needs RESP3, and each of these costs a round trip or a push message when connecting.
            protocol=2,
            driver_info=None,
        )
        self._limit_s = limit_s
        self._slots = asyncio.Semaphore(MOST_CALLS)
        self._probing: asyncio.Task[None] | None = None
        self._failed_at = float("-inf")
        self._stopped = False
        self.up = False

    async def start(self) -> None:
        """Look whether Redis is there; no fault when it is not."""
        self._stopped = False
        with contextlib.suppress(LedgerAway):
            await self.probe()

    async def stop(self) -> None:
        """Close; may be called again and again."""
        self._stopped = True
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait([self._probing])
            self._probing = None
        await self._close()

    async def _close(self, *, idle: bool = False) -> None:
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(self._limit_s):
                await self._client.connection_pool.disconnect(inuse_connections=not idle)

    async def probe(self) -> None:
        """Look whether Redis answers and takes writes. Raises LedgerAway."""
        await self.run([self._probe()])

    async def call(self, calls: Sequence[Call]) -> list[Any]:
        """Run scripts in one pipeline; returns what each gave. Raises LedgerAway.

        Only what Redis refused because it does not know the script is sent again, the script with it.
        """
        replies = await self._asked([call.command() for call in calls])
        unknown = [index for index, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            again: list[Command] = []
            told: set[Script] = set()
            for index in unknown:
                again.append(calls[index].command(whole=calls[index].script not in told))
                told.add(calls[index].script)
            for index, reply in zip(unknown, await self._asked(again), strict=True):
                replies[index] = reply
        return self._checked(replies)

    async def run(self, commands: Sequence[Command]) -> list[Any]:
        """Run plain commands in one pipeline; returns their answers. Raises LedgerAway."""
        return self._checked(await self._asked(commands))

    async def messages(self, channel: str, *, quiet_s: float = QUIET_S) -> AsyncGenerator[bytes, None]:
        """What is published on a channel, on a connection of its own, as long as that holds. Raises LedgerAway."""
        pubsub = self._client.pubsub()
        try:
            async with asyncio.timeout(self._limit_s):
                await pubsub.subscribe(channel)
            asked = False
            while True:
                message = await pubsub.get_message(timeout=quiet_s)
                if message is not None and message["type"] == "message":
                    yield message["data"]
                if message is None and asked:
                    raise LedgerAway("Redis does not answer")
                if message is None:
                    await pubsub.ping()
                asked = message is None
        except (RedisError, OSError, RuntimeError) as error:
            # uvloop raises RuntimeError for a transport that is just closing, and redis-py passes it on.
            raise LedgerAway(_text(error)) from None
        finally:
            with contextlib.suppress(Exception):
                await pubsub.aclose()  # type: ignore[no-untyped-call]

    async def _asked(self, commands: Sequence[Command]) -> list[Any]:
        if not commands:
            return []
        async with self._slots:
            if self._probing is not None or self._stopped:
                raise LedgerAway("Redis does not answer")
            return await self._tried(commands)

    async def _tried(self, commands: Sequence[Command]) -> list[Any]:
        clock = asyncio.get_running_loop().time
        for attempt in (1, 2):
            began = clock()
            try:
                return await self._sent(commands)
            except Exception as error:
                # Besides RedisError and OSError the event loops have their own for a connection that is going away.
                if attempt == 2 or not isinstance(error, TimeoutError) or clock() - began < self._limit_s + LATE_S:
                    self._fail(error)
                    raise LedgerAway(_text(error)) from None
        raise AssertionError("unreachable")

    async def _sent(self, commands: Sequence[Command]) -> list[Any]:
        async with asyncio.timeout(self._limit_s):
            pipeline = self._client.pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            return list(await pipeline.execute(raise_on_error=False))

    def _checked(self, replies: list[Any]) -> list[Any]:
        for reply in replies:
            if isinstance(reply, ResponseError):
                self._fail(reply)
                raise LedgerAway(_text(reply))
        # An answer to what was asked before another call failed says less than that one.
        if not self.up and self._probing is None:
            log.info("Redis is there")
            self.up = True
        return replies

    def _fail(self, error: Exception) -> None:
        """Refuse all calls from now on, until a look at Redis goes well."""
        if self._probing is not None or self._stopped:
            return
        log.warning("Redis is away", error=_text(error))
        self.up = False
        now = asyncio.get_running_loop().time()
        first_s = FIRST_PROBE_S if now - self._failed_at > WELL_S else PROBE_S
        self._failed_at = now
        self._probing = asyncio.create_task(self._look(first_s), name="look for Redis")

    async def _look(self, pause_s: float) -> None:
        """Connections are made anew: after a failover the name may lead elsewhere, and the old one refuses writes."""
        while True:
            await asyncio.sleep(pause_s)
            pause_s = PROBE_S
            try:
                await self._close(idle=True)
                (reply,) = await self._sent([self._probe()])
            except Exception as error:
                log.debug("Redis is still away", error=_text(error))
                continue
            if not isinstance(reply, ResponseError):
                break
        self._probing = None
        self.up = True
        log.info("Redis is back")

    def _probe(self) -> Command:
        return ("SET", self._probe_key, "1", "PX", 1000)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200].removesuffix(": ")

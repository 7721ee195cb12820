"""A scripted HTTP endpoint: answers as told, and remembers every request at the moment it arrived.

What a sender really did is known at the endpoint only. So this server counts there: by path, with monotonic
times that are comparable with those of other processes on the same machine. It speaks raw HTTP/1.1 on
`asyncio.Protocol`, because a measuring instrument must be several times faster than what it measures.

In a program: `server = ScriptedServer(); await server.start(); server.script("/hook", always(404))`.
As a process: `python -m supervisor.demo.scripted --port P`; there the first path segment is the script:
`/ok`, `/404`, `/after-0.2`, `/hang`, `/drop`, `/reset`, `/flaky-SEED`; what follows only makes more endpoints.
`GET /__stats`, `/__reset` and `/__seen?path=P` answer with JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import signal
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable
from typing import cast
from urllib.parse import parse_qs

from supervisor.demo.scripts import Act, Asked, Script, Then, always, named
from supervisor.demo.seen import Log, Seen

HEAD_END = b"\r\n\r\n"
# Senders here always say the length, so no header means no body.
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)[ \t]*\r\n", re.IGNORECASE)
_RESET = struct.pack("ii", 1, 0)


class ScriptedServer(Log):
    """One listening socket, one script per path; `fallback` makes the script of a path that was given none."""

    def __init__(
        self,
        *,
        keep_bodies: bool = True,
        fallback: Callable[[str], Script] = lambda _path: always(404),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(keep_bodies=keep_bodies)
        self.port = 0
        self.connections = 0
        self.open: set[_Connection] = set()
        self.max_open = 0
        self._scripts: dict[str, Script] = {}
        self._fallback = fallback
        self._tls = tls
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0, host: str = "127.0.0.1") -> None:
        """Listen; port 0 takes a free one. Raises OSError when it cannot."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), host, port, backlog=4096, ssl=self._tls, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and abort what is open."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.drop_connections()

    def drop_connections(self) -> None:
        """Abort every open connection, whatever it is doing."""
        for connection in list(self.open):
            connection.abort()

    async def __aenter__(self) -> ScriptedServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        """The URL of a path of this server."""
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}{path}"

    def script(self, path: str, script: Script) -> None:
        """From now on `path` (without query) is answered by `script`; its count goes on."""
        self._scripts[path] = script

    def act(self, path: str, asked: Asked) -> Act:
        """What to do with this request."""
        script = self._scripts.get(path)
        if script is None:
            script = self._scripts[path] = self._fallback(path)
        return script(asked)


class _Connection(asyncio.Protocol):
    """One client connection; a request that came early waits until the one before is answered."""

    def __init__(self, server: ScriptedServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._buffer = b""
        self._busy = False
        self._now: Seen | None = None
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._requests = 0
        self._last = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._writable.set()
        server = self._server
        server.connections += 1
        self._number = server.connections
        server.open.add(self)
        server.max_open = max(server.max_open, len(server.open))

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.open.discard(self)
        self._busy = True
        if self._task is not None:
            self._task.cancel()
        if self._now is not None:
            self._now.ended_at = time.monotonic()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def abort(self) -> None:
        """Close with RST, so that the peer sees a reset and not an orderly end."""
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        if not self._busy:
            self._read()

    def _read(self) -> None:
        while self._buffer and not self._busy:
            buffer = self._buffer
            head_end = buffer.find(HEAD_END)
            if head_end < 0:
                return
            length = _CONTENT_LENGTH.search(buffer, 0, head_end + 2)
            end = head_end + 4 + (int(length[1]) if length else 0)
            if len(buffer) < end:
                return
            self._buffer = buffer[end:]
            self._handle(buffer[:head_end], buffer[head_end + 4 : end])

    def _handle(self, head: bytes, body: bytes) -> None:
        target = head.split(b" ", 2)[1].decode("latin-1")
        if target.startswith("/__"):
            self._transport.write(_admin(self._server, target))
            return
        self._requests += 1
        path = target.partition("?")[0]
        server = self._server
        seen = server.note(path, head, body, self._number)
        act = server.act(path, Asked(path, seen.n, self._requests, head, body))
        seen.status = act.status
        self._now = seen
        self._last = b"onnection: close" in head
        if act.pieces is None and act.wait is None:
            if act.delay_s:
                self._busy = True
                self._loop.call_later(act.delay_s, self._finish, act)
            else:
                self._finish(act)
        else:
            self._busy = True
            self._task = self._loop.create_task(self._play(act))

    async def _play(self, act: Act) -> None:
        if act.wait is not None:
            await act.wait.wait()
        if act.delay_s:
            await asyncio.sleep(act.delay_s)
        if act.pieces is not None:
            self._transport.write(act.data)
            for piece in act.pieces():
                await self._writable.wait()
                await asyncio.sleep(act.every_s)
                self._transport.write(piece)
        self._task = None
        self._finish(act)

    def _finish(self, act: Act) -> None:
        """Write what is left of the answer, and do with the connection what the script says."""
        if self._transport.is_closing():
            return
        if act.data and act.pieces is None:
            self._transport.write(act.data)
        self._busy = True
        if act.then is Then.HANG:
            return
        seen, self._now = cast("Seen", self._now), None
        seen.ended_at = time.monotonic()
        if act.then is Then.RESET:
            self._end(self.abort, act.linger_s)
        elif act.then is Then.CLOSE or self._last:
            self._end(self._transport.close, act.linger_s)
        else:
            self._busy = False
            self._read()

    def _end(self, how: Callable[[], None], linger_s: float) -> None:
        if linger_s:
            self._loop.call_later(linger_s, how)
        else:
            how()


def _admin(server: ScriptedServer, target: str) -> bytes:
    path, _, query = target.partition("?")
    asked = {name: values[-1] for name, values in parse_qs(query).items()}
    found: object = {}
    if path == "/__reset":
        server.reset()
        server.connections, server.max_open = 0, len(server.open)
    elif path == "/__seen":
        found = [[s.at, s.ended_at, s.webhook_id, s.status] for s in server.requests(asked.get("path"))]
    else:
        found = {
            "now": time.monotonic(),
            "cpu_s": time.process_time(),
            "connections": server.connections,
            "open": len(server.open),
            "max_open": server.max_open,
            **server.summary(),
        }
    body = json.dumps(found).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


async def _serve(host: str, port: int, *, keep_bodies: bool) -> None:
    server = ScriptedServer(keep_bodies=keep_bodies, fallback=named)
    await server.start(port, host)
    stop = asyncio.Event()
    for sig in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sig, stop.set)
    sys.stdout.write(f"ready {server.port}\n")
    sys.stdout.flush()
    await stop.wait()
    await server.stop()


def main() -> None:
    """Run as a process until SIGTERM; prints `ready PORT` once it listens."""
    parser = argparse.ArgumentParser(prog="python -m supervisor.demo.scripted")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--keep-bodies", action="store_true")
    args = parser.parse_args()
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_serve(args.host, args.port, keep_bodies=args.keep_bodies))


if __name__ == "__main__":
    main()

"""`delivery run`: one worker in this process, or several under it."""

from __future__ import annotations

import dataclasses
import os
import sys

from supervisor.configuration import Configuration, HttpListen
from supervisor.failure import Misused
from supervisor.logs import configure

LISTEN = "DELIVERY_HTTP__LISTEN"
HIGHEST_PORT = 65_535


def main(configuration: Configuration, processes: int) -> int:
    """Run until stopped; returns the exit status. Raises Misused when there are not enough ports."""
    configure(configuration.log, sys.stderr)
    if processes == 1:
        from supervisor.process import run

        return run(configuration)
    from supervisor.family import Child, run_family

    listens = [listen_of(configuration.http, index) for index in range(processes)]
    return run_family(
        [
            Child(
                name=f"worker {index + 1}",
                command=(sys.executable, "-m", "supervisor", "run"),
                environment=environment_of(dict(os.environ), listen),
            )
            for index, listen in enumerate(listens)
        ]
    )


def listen_of(http: HttpListen, index: int) -> HttpListen:
    """Where the child of this index listens: one port after the other, unless the system chooses. Raises Misused."""
    if http.port == 0:
        return http
    port = http.port + index
    if port > HIGHEST_PORT:
        raise Misused([f"{LISTEN}: expected a port that leaves room for one per process below {HIGHEST_PORT + 1}"])
    return dataclasses.replace(http, port=port)


def environment_of(environ: dict[str, str], listen: HttpListen) -> dict[str, str]:
    """The child's variables: ours, and its own address. The name counts in upper and lower case, and only once."""
    host = f"[{listen.host}]" if ":" in listen.host else listen.host
    kept = {name: value for name, value in environ.items() if name.upper() != LISTEN}
    return {**kept, LISTEN: f"{host}:{listen.port}"}

"""What the worker at the configured address says of its loops."""

from __future__ import annotations

import dataclasses
import http.client
import json
from collections.abc import Mapping
from typing import Any, Final

from supervisor.configuration import HttpListen
from supervisor.health import SERVICE, shown

ANSWER_S: Final = 3.0
# As many processes as one `delivery run` may have.
MOST_WORKERS: Final = 256
_HIGHEST_PORT: Final = 65_535
_ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - listened on by others, not by us


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What `address` said, and those behind it: `workers` is empty when nobody answered, and `why` says so."""

    address: str
    workers: tuple[Mapping[str, Any], ...] = ()
    why: str = ""

    def loops(self) -> dict[tuple[str, str], Mapping[str, Any]]:
        """The loops by tenant and endpoint."""
        found: dict[tuple[str, str], Mapping[str, Any]] = {}
        for worker in self.workers:
            for loop in worker.get("loops", ()):
                found.setdefault((loop["tenant"], loop["endpoint"]), loop)
        return found


def ask(listen: HttpListen) -> Answers:
    """Ask the worker at the address, and those that `run --processes` starts at the ports after it."""
    address = shown(listen.host, listen.port)
    if listen.port == 0:
        return Answers(address=address, why="no worker can be asked: the system chooses its port")
    host = _ANYWHERE.get(listen.host, listen.host)
    workers: list[Mapping[str, Any]] = []
    why = f"no worker answers at {address}"
    for port in range(listen.port, min(listen.port + MOST_WORKERS, _HIGHEST_PORT + 1)):
        found = _status(host, port, listen.token)
        if isinstance(found, str):
            why = found if not workers and found else why
            break
        workers.append(found)
    return Answers(address=address, workers=tuple(workers), why="" if workers else why)


def _status(host: str, port: int, token: str | None) -> Mapping[str, Any] | str:
    """The worker's status; otherwise why there is none, empty when nobody answers."""
    _, life = _get(host, port, "/livez", {})
    # Somebody else's port must not be shown our token.
    if not isinstance(life, dict) or life.get("service") != SERVICE:
        return ""
    code, said = _get(host, port, "/status", {} if token is None else {"authorization": f"Bearer {token}"})
    if code == http.HTTPStatus.UNAUTHORIZED:
        return f"the worker at {shown(host, port)} refuses DELIVERY_HTTP__TOKEN"
    return said if isinstance(said, dict) and isinstance(said.get("loops"), list) else ""


def _get(host: str, port: int, path: str, headers: Mapping[str, str]) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(host, port, timeout=ANSWER_S)
    try:
        connection.request("GET", path, headers=dict(headers))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    except (OSError, ValueError, http.client.HTTPException):
        return 0, None
    finally:
        connection.close()

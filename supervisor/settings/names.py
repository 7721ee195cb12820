"""Names: of variables, of tenants and endpoints, and what a misspelt one may have meant."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
import re

PREFIX = "DELIVERY_"
DELIMITER = "__"
FILE_SUFFIX = "_file"

NAME_MAX = 40
NAME_RULE = f"expected lower-case letters and digits with single hyphens between them, at most {NAME_MAX} characters"
RESERVED_ENDPOINT = "dead-letters"

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_SHOWABLE = re.compile(r"[A-Za-z0-9._-]{1,40}")
_SECRET = re.compile(r"whs(?:ec|k)_", re.IGNORECASE)

# What the kubelet sets for each Service of a namespace ("docker links" format), for one named `delivery` and for
# one whose name begins so.
_SERVICE = re.compile(
    r"DELIVERY_(?:[A-Z0-9]+_)*(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_SERVICE_PORT = re.compile(r"DELIVERY_(?:[A-Z0-9]+_)*PORT")
_SERVICE_ADDRESS = re.compile(r"(?:tcp|udp|sctp)://")


class Strict(enum.StrEnum):
    """What unknown names are."""

    ERROR = "error"
    WARN = "warn"


Path = tuple[str, ...]
"""Where a setting stands: lower case, tenants and endpoints by their names (`-`, not `_`)."""


def is_ours(variable: str) -> bool:
    """Whether the variable stands under the prefix, in upper or lower case."""
    return variable.upper().startswith(PREFIX)


def is_service_link(variable: str, value: str) -> bool:
    """Whether Kubernetes sets this variable by itself for a Service; nobody means it as a setting."""
    if variable == f"{PREFIX}PORT" or _SERVICE.fullmatch(variable):
        return True
    return bool(_SERVICE_PORT.fullmatch(variable) and _SERVICE_ADDRESS.match(value))


def is_name(text: str) -> bool:
    """Whether a tenant or an endpoint may be called so."""
    return len(text) <= NAME_MAX and _NAME.fullmatch(text) is not None


def variable_of(path: Path) -> str:
    """The variable that sets what stands at `path`."""
    return PREFIX + DELIMITER.join(part.upper().replace("-", "_") for part in path)


def shown(name: str) -> str:
    """`name` as an error may show it: what could be a secret in the wrong place, or cannot be printed, is not."""
    if _SHOWABLE.fullmatch(name) and not _SECRET.search(name):
        return name
    return f"(a name of {len(name)} characters)"


def printable(variable: str) -> str:
    """A variable's name on one line."""
    return "".join(c if c.isprintable() else "?" for c in variable)


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a value was given: a variable, or a place inside the JSON that a variable holds."""

    variable: str
    inside: Path = ()
    is_json: bool = False

    def child(self, name: str) -> Place:
        """Where `name` within this place stands, or would stand."""
        if self.is_json:
            return Place(self.variable, (*self.inside, shown(name)), is_json=True)
        return Place(self.variable + DELIMITER + name.upper().replace("-", "_"))

    def __str__(self) -> str:
        name = printable(self.variable)
        return f"{name}: {'.'.join(self.inside)}" if self.inside else name


@functools.lru_cache(maxsize=1024)
def nearest(rest: str, names: tuple[str, ...]) -> str | None:
    """The known name most like the unknown `rest` (`A__B`, upper case), or None.

    A misspelt first part is put right and the rest kept; one underscore too few is found by the whole.
    """
    first, delimiter, tail = rest.partition(DELIMITER)
    groups = tuple(dict.fromkeys(name.partition(DELIMITER)[0] for name in names))
    group = next(iter(difflib.get_close_matches(first, groups, n=1, cutoff=0.75)), None)
    likely = rest if group is None else group + delimiter + tail
    if group in names or likely in names:
        return likely
    whole = next(iter(difflib.get_close_matches(likely, names, n=1, cutoff=0.7)), None)
    return whole if whole is not None or group is None else f"{group}{DELIMITER}…"

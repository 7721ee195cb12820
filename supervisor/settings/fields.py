"""What one value may be: parsers from text (a variable) or from JSON, and the annotation that binds them to a field.

A parser takes a `str` or a JSON value and raises `expected(…)`, which says what is expected and never what was given.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from supervisor.settings.faults import expected
from supervisor.settings.names import shown

T = TypeVar("T")
E = TypeVar("E", bound=enum.StrEnum)
Parser = Callable[[Any], T]

NONE = "none"
NOT_SUPPORTED = "not supported by this version: remove it"

_WHOLE = re.compile(r"-?[0-9]{1,18}")
_DECIMAL = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?")
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_QUOTES = ("'", '"')


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """Annotation of a field: how its value is read and what the settings table says of it.

    `secret`: never shown, and has a `_FILE` twin. `optional`: `none` unsets it. `supported` is false for a name that
    is reserved for a later version.
    """

    parse: Parser[Any]
    unit: str = ""
    secret: bool = False
    optional: bool = False
    supported: bool = True

    def read(self, value: object) -> object:
        """The value for the field. Raises PydanticCustomError, which pydantic collects."""
        if self.optional and is_none(value):
            return None
        return self.parse(value)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        # A plain validator: the parser alone decides, so no message of pydantic's with an input in it can appear.
        return core_schema.no_info_plain_validator_function(self.read)


@dataclasses.dataclass(frozen=True, slots=True)
class FileTwin:
    """Annotation of a group that may be given as a JSON file, named by a `_FILE` twin."""


def unset(description: str) -> Any:
    """A field that is None until somebody sets it; its default is that of the frozen value it ends up in."""
    return Field(default=None, description=description)


def is_none(value: object) -> bool:
    """Whether the value unsets an optional setting."""
    return value is None or (isinstance(value, str) and value.strip().lower() == NONE)


def refuse(_: object) -> object:
    """For names whose behaviour is still to come: ignoring them in silence would be worse."""
    raise expected(NOT_SUPPORTED)


def bound(number: float) -> str:
    """A number as texts show it: thousands apart, no exponent."""
    return f"{number:,}" if isinstance(number, int) else f"{number:,.10g}"


def whole(low: int, high: int) -> Parser[int]:
    """A whole number in [low, high]."""

    def parse(value: Any) -> int:
        text = value.strip() if isinstance(value, str) else value
        if isinstance(text, str) and _WHOLE.fullmatch(text):
            text = int(text)
        if isinstance(text, int) and not isinstance(text, bool) and low <= text <= high:
            return text
        raise expected(f"expected a whole number from {bound(low)} to {bound(high)}")

    return parse


def number(low: float, high: float, what: str = "a number") -> Parser[float]:
    """A finite decimal number in [low, high]; no exponent, no unit."""

    def parse(value: Any) -> float:
        text = value.strip() if isinstance(value, str) else value
        if isinstance(text, str) and _DECIMAL.fullmatch(text):
            text = float(text)
        # The comparison is false for nan, and the bounds keep infinity out.
        if isinstance(text, (int, float)) and not isinstance(text, bool) and low <= text <= high:
            return float(text)
        raise expected(f"expected {what} from {bound(low)} to {bound(high)}")

    return parse


def seconds(low: float, high: float) -> Parser[float]:
    """Seconds in [low, high]."""
    return number(low, high, "seconds")


def boolean(value: Any) -> bool:
    """`true` or `false`, in any case."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and (word := value.strip().lower()) in {"true", "false"}:
        return word == "true"
    raise expected("expected true or false")


def choice(kind: type[E]) -> Parser[E]:
    """One of the words of an enum, in any case."""
    words = {member.value.lower(): member for member in kind}

    def parse(value: Any) -> E:
        if isinstance(value, str) and (member := words.get(value.strip().lower())) is not None:
            return member
        raise expected(f"expected {' or '.join(member.value for member in kind)}")

    return parse


def text(what: str, *, longest: int = 1_024) -> Parser[str]:
    """Printable text without outer blanks."""

    def parse(value: Any) -> str:
        if isinstance(value, str) and value == value.strip() and value.isprintable() and 0 < len(value) <= longest:
            return value
        raise expected(f"expected {what}, without control characters or blanks around it")

    return parse


def path(value: Any) -> str:
    """The path of a file; whether it can be read is asked later, of those that are in use."""
    if isinstance(value, str) and (stripped := value.strip()) and stripped.isprintable():
        return stripped
    raise expected("expected the path of a readable file")


class NoJson(ValueError):
    """The text is no JSON that we take; the message has nothing of the value but, at most, a name that may be shown."""


def load_json(value: str) -> Any:
    """JSON in which no name appears twice in one object. Raises NoJson."""
    try:
        return json.loads(value, object_pairs_hook=_object_once, parse_constant=_no_constant)
    except NoJson:
        raise
    except json.JSONDecodeError as error:
        problem = f"no valid JSON at line {error.lineno}, column {error.colno}"
    except RecursionError:
        problem = "too many levels"
    except ValueError:
        problem = "a number with too many digits"
    raise NoJson(problem)


def _object_once(items: list[tuple[str, Any]]) -> dict[str, Any]:
    loaded = dict(items)
    if len(loaded) != len(items):
        names = [name for name, _ in items]
        twice = next(name for name in loaded if names.count(name) > 1)
        raise NoJson(f"the name {shown(twice)} twice in one object")
    return loaded


def _no_constant(_: str) -> object:
    raise NoJson("NaN or Infinity")


def entries(value: Any, what: str) -> list[Any]:
    """The entries of a comma list, or of a JSON list, given as text or inside other JSON.

    The shell's quotes kept by an env file are refused by name, as their mark on the first and last entry is hard to
    see elsewhere.
    """
    if isinstance(value, str):
        stripped = value.strip()
        if stripped.startswith(_QUOTES) and stripped.endswith(_QUOTES):
            raise expected(f"expected {what}; the quotes around it are part of the value: remove them")
        if not stripped.startswith("["):
            value = [entry.strip() for entry in stripped.split(",")]
        else:
            try:
                value = load_json(stripped)
            except NoJson as error:
                raise expected(f"expected {what}: as JSON it has {error}") from None
    if not isinstance(value, list) or not value or any(entry in ("", None) for entry in value):
        raise expected(f"expected {what}: a comma list (a,b) or a JSON list, without empty entries")
    return value


def listed(parse: Parser[T], what: str) -> Parser[tuple[T, ...]]:
    """A comma list or JSON list of what `parse` takes; repeated entries count once."""

    def parse_all(value: Any) -> tuple[T, ...]:
        return tuple(dict.fromkeys(parse(entry) for entry in entries(value, what)))

    return parse_all


def durations(value: Any) -> tuple[float, ...]:
    """`5s,5m,30m,2h`: 1 to 100 waits of 1 ms to 31 days."""
    what = "1 to 100 waits like 5s,5m,30m,2h (ms, s, m, h or d; each from 1ms to 31d)"
    found = entries(value, what)
    waits = []
    for entry in found:
        match = _DURATION.fullmatch(entry.strip()) if isinstance(entry, str) else None
        wait_s = float(match[1]) * _SECONDS[match[2]] if match else -1.0
        if not 0.001 <= wait_s <= 31 * 86_400:
            raise expected(f"expected {what}")
        waits.append(wait_s)
    if len(waits) > 100:
        raise expected(f"expected {what}")
    return tuple(waits)

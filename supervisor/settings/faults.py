"""What is wrong with the settings, one line each, without the values."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from supervisor.settings.names import Path

_OURS = "setting"


class SettingsInvalid(Exception):
    """The settings cannot be used. `faults` has one line each: variable, colon, what is expected; never a secret."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(dict.fromkeys(faults))
        super().__init__("\n".join(self.faults))


def expected(text: str) -> PydanticCustomError:
    """The error that a parser raises; `text` says what is expected and must not contain the value."""
    return PydanticCustomError(_OURS, "{text}", {"text": text})


def text_of(error: PydanticCustomError) -> str:
    """What `expected` was given."""
    return error.message()


def located(error: ValidationError) -> list[tuple[Path, str]]:
    """Path and text of each fault. Texts of other origin than `expected` are not ours to trust: they are replaced."""
    return [
        (
            tuple(str(part) for part in fault["loc"]),
            fault["msg"] if fault["type"] == _OURS else "expected another kind of value",
        )
        for fault in error.errors(include_input=False, include_url=False, include_context=False)
    ]

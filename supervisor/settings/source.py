"""From variables and JSON to one tree of values, with the place of each: a source of its own for pydantic-settings.

Its environment source ignores unknown top-level names and doubles, knows no `_FILE` twins, decodes JSON in an order
that depends on the environment's, and puts values into its errors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, assert_never

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from supervisor.settings.fields import NONE, NoJson, is_none, load_json
from supervisor.settings.files import read_text
from supervisor.settings.names import (
    DELIMITER,
    FILE_SUFFIX,
    NAME_RULE,
    PREFIX,
    RESERVED_ENDPOINT,
    Path,
    Place,
    Strict,
    is_name,
    is_ours,
    is_service_link,
    nearest,
    printable,
    shown,
    variable_of,
)
from supervisor.settings.schema import Group, Leaf, Named, Node


@dataclasses.dataclass(slots=True)
class Reading:
    """What was read. `broken` are the paths that have a fault: nothing more is said about them."""

    values: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    places: dict[Path, Place] = dataclasses.field(default_factory=dict)
    faults: list[str] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)
    broken: set[Path] = dataclasses.field(default_factory=set)

    def place(self, path: Path) -> Place:
        """Where the value at `path` was given, or would be, next to what was."""
        for length in range(len(path), 0, -1):
            if (place := self.places.get(path[:length])) is not None:
                for name in path[length:]:
                    place = place.child(name)
                return place
        return Place(variable_of(path))

    def fault(self, path: Path, text: str) -> None:
        """Note what is wrong with the value at `path`."""
        self.faults.append(f"{self.place(path)}: {text}")
        self.broken.add(path)

    def drop(self, path: Path) -> None:
        """Forget the value at `path`."""
        parent: Any = self.values
        for name in path[:-1]:
            parent = parent.get(name, {})
        parent.pop(path[-1], None)


class EnvironmentSource(PydanticBaseSettingsSource):
    """Hands what was read to pydantic-settings."""

    def __init__(self, settings_cls: type[BaseSettings], reading: Reading) -> None:
        super().__init__(settings_cls)
        self._reading = reading

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """The value of a top-level field; never to be decoded any further."""
        return self._reading.values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return self._reading.values


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    variable: str
    value: str = dataclasses.field(repr=False)
    node: Node
    twin: bool


def read(environ: Mapping[str, str], root: Group) -> Reading:
    """Read the variables under the prefix. What is wrong is in the result; nothing is raised."""
    reader = _Reader(root, warn=_is_warn(environ))
    found: dict[Path, list[_Given]] = {}
    for variable, value in sorted(environ.items()):
        if is_ours(variable) and not is_service_link(variable, value):
            reader.find(variable, value, found)
    # The shorter path first: what is nested overrides the JSON that holds it, whatever the environment's order.
    for path, given in sorted(found.items(), key=lambda item: (len(item[0]), item[0])):
        reader.take_variables(path, given)
    return reader.reading


def _is_warn(environ: Mapping[str, str]) -> bool:
    name = f"{PREFIX}STRICT"
    return any(key.upper() == name and value.strip().lower() == Strict.WARN for key, value in environ.items())


class _Reader:
    def __init__(self, root: Group, *, warn: bool) -> None:
        self._root = root
        self._warn = warn
        self.reading = Reading()

    def find(self, variable: str, value: str, found: dict[Path, list[_Given]]) -> None:
        """Find what a variable sets, and add it to `found`."""
        parts = variable[len(PREFIX) :].split(DELIMITER)
        node: Node = self._root
        path: Path = ()
        twin = False
        for index, part in enumerate(parts):
            so_far = PREFIX + DELIMITER.join(parts[: index + 1])
            match node:
                case Named() if not twin:
                    name = part.lower().replace("_", "-")
                    if not self._name_fits(node, name, path, so_far):
                        return
                    node = node.child
                case Group() if not twin and (known := node.find(part.lower())) is not None:
                    name, node, twin = known
                case _:
                    before = PREFIX + "".join(part + DELIMITER for part in parts[:index])
                    self._unknown(printable(variable), before, DELIMITER.join(parts[index:]), node)
                    return
            path = (*path, name)
        found.setdefault(path, []).append(_Given(variable=variable, value=value, node=node, twin=twin))

    def take_variables(self, path: Path, given: Iterable[_Given]) -> None:
        """Take the value of the one variable for `path`; several are a fault."""
        first, *others = given
        place = Place(first.variable)
        if others:
            kind = "both given, keep one" if any(other.twin != first.twin for other in others) else "given twice"
            names = ", ".join(printable(other.variable) for other in others)
            self._fault(path, place, f"{kind} (also {names})")
        elif not first.value.strip():
            self._fault(path, place, _empty(first.node))
        elif first.twin:
            self._take_file(first.node, path, first.value, place)
        elif isinstance(first.node, Leaf):
            self._set(first.node, path, first.value, place)
        else:
            self._take_text(first.node, path, first.value, place)

    def _take_text(self, node: Named | Group, path: Path, text: str, place: Place) -> None:
        try:
            value = load_json(text)
        except NoJson as error:
            self._fault(path, place, f"expected a JSON object: it has {error}")
            return
        self._take_json(node, path, value, Place(place.variable, place.inside, is_json=True))

    def _take_json(self, node: Node, path: Path, value: object, place: Place) -> None:
        if isinstance(node, Leaf):
            if isinstance(value, str) and not value.strip():
                self._fault(path, place, _empty(node))
            else:
                self._set(node, path, value, place)
            return
        if not isinstance(value, dict):
            self._fault(path, place, "expected a JSON object")
            return
        self.reading.places[path] = place
        self._parent((*path, ""))
        match node:
            case Named():
                for name, inner in value.items():
                    if self._name_fits(node, name, path, str(place.child(name))):
                        self._take_json(node.child, (*path, name), inner, place.child(name))
            case Group():
                self._take_fields(node, path, value, place)
            case _:
                assert_never(node)

    def _take_fields(self, node: Group, path: Path, values: dict[str, object], place: Place) -> None:
        taken: dict[str, bool] = {}
        for key, value in values.items():
            inner = place.child(key)
            known = node.find(key.lower())
            if known is None:
                self._unknown(str(inner), "", key, node, in_json=True)
                continue
            name, child, twin = known
            if name in taken:
                kind = "given twice" if taken[name] is twin else f"both given, {name} and {name}{FILE_SUFFIX}: keep one"
                self._fault((*path, name), inner, kind)
                continue
            taken[name] = twin
            take = self._take_file if twin else self._take_json
            take(child, (*path, name), value, inner)

    def _take_file(self, node: Node, path: Path, value: object, place: Place) -> None:
        if is_none(value) and isinstance(node, Leaf):
            self._set(node, path, NONE, place)
            return
        if not isinstance(value, str) or not value.strip():
            self._fault(path, place, "expected the path of a readable file")
            return
        try:
            text = read_text(value.strip())
        except ValueError as error:
            self._fault(path, place, str(error))
            return
        if isinstance(node, Leaf):
            self._set(node, path, text, place, file=value.strip())
        else:
            self._take_text(node, path, text, place)

    def _set(self, leaf: Leaf, path: Path, value: object, place: Place, file: str | None = None) -> None:
        parent = self._parent(path)
        parent[path[-1]] = value
        self.reading.places[path] = place
        if leaf.keeps_file:
            parent.pop(path[-1] + FILE_SUFFIX, None)
            if file is not None:
                parent[path[-1] + FILE_SUFFIX] = file

    def _parent(self, path: Path) -> dict[str, Any]:
        parent = self.reading.values
        for name in path[:-1]:
            parent = parent.setdefault(name, {})
        return parent

    def _name_fits(self, node: Named, name: str, path: Path, where: str) -> bool:
        if not is_name(name):
            text = f"no name of one of the {node.of}: {NAME_RULE}"
        elif node.of == "endpoints" and name == RESERVED_ENDPOINT:
            text = f"{RESERVED_ENDPOINT} is no name of an endpoint: a topic of ours ends so"
        else:
            return True
        self.reading.faults.append(f"{where}: {text}")
        self.reading.broken.add((*path, name))
        return False

    def _unknown(self, where: str, before: str, rest: str, node: Node, *, in_json: bool = False) -> None:
        # A key that may not be shown is not given away by what it resembles either.
        showable = not in_json or shown(rest) == rest
        guess = nearest(rest.upper(), node.names) if isinstance(node, Group) and showable else None
        if guess is not None and in_json:
            guess = guess.lower().replace(DELIMITER, ".")
        hint = f"; did you mean {printable(before)}{guess}?" if guess is not None else ""
        if self._warn:
            self.reading.warnings.append(f"{where}: unknown setting, ignored{hint}")
        else:
            self.reading.faults.append(f"{where}: unknown setting{hint}")

    def _fault(self, path: Path, place: Place, text: str) -> None:
        self.reading.faults.append(f"{place}: {text}")
        self.reading.broken.add(path)


def _empty(node: Node) -> str:
    optional = isinstance(node, Leaf) and node.reads.optional
    return f"empty value: give one, or remove it{f' ({NONE} unsets it)' if optional else ''}"

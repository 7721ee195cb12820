"""The names that the models know, as a tree to walk down with the parts of a variable's name or the keys of JSON."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from supervisor.settings.fields import FileTwin, Reads
from supervisor.settings.names import DELIMITER, FILE_SUFFIX


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One setting. `keeps_file`: the path of its `_FILE` twin is kept beside it."""

    reads: Reads
    description: str
    keeps_file: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Groups under names that the operator chooses."""

    of: str
    child: Group


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Settings under fixed names. `twins` are those with a `_FILE` twin, `names` all of them as in variables."""

    fields: dict[str, Node]
    twins: frozenset[str]
    names: tuple[str, ...]

    def find(self, name: str) -> tuple[str, Node, bool] | None:
        """Field, what it is, and whether `name` is that of its `_FILE` twin."""
        base = name.removesuffix(FILE_SUFFIX)
        if base != name and base in self.twins:
            return base, self.fields[base], True
        node = self.fields.get(name)
        return None if node is None else (name, node, False)


Node = Leaf | Named | Group


def group_of(model: type[BaseModel]) -> Group:
    """The names that a model knows."""
    infos = model.model_fields
    twins = frozenset(
        name
        for name, info in infos.items()
        if any(isinstance(mark, FileTwin) or (isinstance(mark, Reads) and mark.secret) for mark in info.metadata)
    )
    fields: dict[str, Node] = {}
    for name, info in infos.items():
        reads = next((mark for mark in info.metadata if isinstance(mark, Reads)), None)
        if reads is not None:
            keeps = name in twins and name + FILE_SUFFIX in infos
            fields[name] = Leaf(reads=reads, description=info.description or "", keeps_file=keeps)
        else:
            fields[name] = _group_or_named(name, info.annotation)
    return Group(fields=fields, twins=twins, names=_names(fields, twins))


def _group_or_named(name: str, annotation: Any) -> Group | Named:
    if get_origin(annotation) is dict:
        return Named(of=name, child=group_of(get_args(annotation)[1]))
    return group_of(annotation)


def _names(fields: dict[str, Node], twins: frozenset[str]) -> tuple[str, ...]:
    names: list[str] = []
    for name, node in fields.items():
        upper = name.upper()
        if isinstance(node, Group):
            names += [upper + DELIMITER + inner for inner in node.names]
        else:
            names.append(upper)
        if name in twins:
            names.append(upper + FILE_SUFFIX.upper())
    return tuple(dict.fromkeys(names))

"""Fails when a module or a function of the packages below has outgrown what can be read in one go.

A module may have 300 lines. A function may have 40, from its `def` to its last line; decorators and the lines of its
own docstring are not counted, those of functions inside it are.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("delivery", "supervisor", "tests/experiments")
MODULE_LINES = 300
FUNCTION_LINES = 40


def function_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end, without those of the docstring."""
    total = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function, clean=False) is None:
        return total
    docstring = function.body[0]
    return total - ((docstring.end_lineno or docstring.lineno) - docstring.lineno + 1)


def faults(root: Path, module: Path) -> Iterator[str]:
    """One line of text for each limit that this module breaks."""
    path = module.relative_to(root)
    source = module.read_text(encoding="utf-8")
    lines = len(source.splitlines())
    if lines > MODULE_LINES:
        yield f"{path}: {lines} lines (at most {MODULE_LINES}): split it by what it decides"
    for node in ast.walk(ast.parse(source, filename=str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and function_lines(node) > FUNCTION_LINES:
            yield f"{path}:{node.lineno}: {node.name} has {function_lines(node)} lines (at most {FUNCTION_LINES})"


def main() -> int:
    """Check every module under the packages; 1 when a limit is broken."""
    root = Path(__file__).resolve().parent.parent
    modules = sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))
    found = [fault for module in modules for fault in faults(root, module)]
    kept = f"Sizes kept: {len(modules)} modules ({MODULE_LINES} lines), their functions ({FUNCTION_LINES})"
    print("\n".join(found) or kept)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""The reference of the Python API, from its docstrings. The source is read, not imported."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from prose import markdown

__all__ = ["python_reference"]


def python_reference(module: Path, names: list[str]) -> str:
    """Classes and functions of a module, each with its public members. Raises ValueError for one without a docstring."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    found = {node.name: node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    out: list[str] = []
    for name in names or [node for node in found if not node.startswith("_")]:
        if name not in found:
            raise ValueError(f"{module}: there is no {name}")
        node = found[name]
        out += _entry(node, "##", f"gin.{name}" if name in _exported() else f"gin.{module.stem}.{name}", module)
        if isinstance(node, ast.ClassDef):
            for member in _members(node):
                out += _entry(member, "###", f"{name}.{member.name}", module)
    return "\n".join(out)


@cache
def _exported() -> set[str]:
    """What `gin` itself has."""
    tree = ast.parse((Path(__file__).resolve().parents[2] / "gin" / "__init__.py").read_text(encoding="utf-8"))
    named = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
    return set(ast.literal_eval(named[0].value))


def _members(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
            yield member


def _entry(node: ast.ClassDef | ast.FunctionDef, level: str, title: str, module: Path) -> list[str]:
    text = ast.get_docstring(node)
    if text is None:
        raise ValueError(f"{module}:{node.lineno}: {title} has no docstring")
    out = [f"{level} `{title}`", ""]
    if isinstance(node, ast.FunctionDef):
        out += ["```python", _signature(node, title), "```", ""]
    elif node.bases:
        out += [f"A subclass of {', '.join(f'`{ast.unparse(base)}`' for base in node.bases)}.", ""]
    return [*out, markdown(text), ""]


def _signature(node: ast.FunctionDef, title: str) -> str:
    if any(ast.unparse(decorator) == "property" for decorator in node.decorator_list):
        kind = f": {ast.unparse(node.returns)}" if node.returns else ""
        return f"{title}{kind}  # read only"
    arguments = ", ".join(_spaced(part) for part in _split(ast.unparse(node.args)))
    for own in ("self, ", "cls, "):
        arguments = arguments.removeprefix(own)
    arguments = "" if arguments in ("self", "cls") else arguments
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{title}({arguments}){result}"
    if len(line) <= 100:
        return line
    parts = _split(arguments)
    return f"{title}(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}"


def _spaced(argument: str) -> str:
    """An annotated argument with spaces around its default's sign."""
    return re.sub(r"(?<! )=(?! )", " = ", argument, count=1) if ":" in argument else argument


def _split(arguments: str) -> list[str]:
    """Arguments apart, at commas outside brackets."""
    parts, depth, start = [], 0, 0
    for at, mark in enumerate(arguments):
        depth += (mark in "([{") - (mark in ")]}")
        if mark == "," and depth == 0:
            parts.append(arguments[start:at].strip())
            start = at + 1
    return [*parts, arguments[start:].strip()]

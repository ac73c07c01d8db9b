"""What pages are filled in with when the site is built.

<!-- made: device -->                       the operations of gin::Context
<!-- made: types HEADER NAME... -->         structures of a device header
<!-- made: python MODULE [NAME...] -->      classes and functions
<!-- made: settings -->                     also capabilities, commands, coverage, definitions, models, results
<!-- made: cases FILE -->                   what came of the contract's cases, by a file of results/
<!-- made: file LANGUAGE PATH -->           a file of the tree, whole
"""

from __future__ import annotations

import re
from pathlib import Path

import tables
from device_api import context_reference, type_reference
from python_api import python_reference

__all__ = ["ROOT", "expanded"]

ROOT = Path(__file__).resolve().parents[2]
HEADERS = ROOT / "csrc" / "include" / "gin"

_MARK = re.compile(r"^<!-- made: ([^\n]+) -->$", re.MULTILINE)
_COMMENT = re.compile(r"^<!-- (?:exit|not run|output|capabilities|matrix|end)[^\n]*-->\n", re.MULTILINE)
_TABLES = {
    "settings": tables.settings,
    "capabilities": tables.capabilities,
    "commands": tables.commands,
    "definitions": tables.definitions,
    "models": tables.models,
}


def expanded(text: str) -> str:
    """A page with its marks filled in, and without comments that are for tests. Raises ValueError for unknown marks."""
    return _COMMENT.sub("", _MARK.sub(lambda match: _make(match[1].split()), text))


def _make(words: list[str]) -> str:
    match words:
        case ["device"]:
            return context_reference(HEADERS / "context.cuh")
        case ["types", header, *names]:
            return type_reference(HEADERS / header, names)
        case ["python", module, *names]:
            return python_reference(ROOT / "gin" / module, names)
        case ["file", language, path]:
            return f'```{language} title="{path}"\n{(ROOT / path).read_text(encoding="utf-8")}```'
        case ["results"]:
            return tables.results(ROOT / "results")
        case ["coverage"]:
            return tables.coverage(ROOT / "results")
        case ["cases", file]:
            return tables.cases(ROOT / "results" / file)
        case [name] if name in _TABLES:
            return _TABLES[name]()
    raise ValueError(f"made: {' '.join(words)}: nothing is called so")

"""The matrix of cases and backends in docs/conformance.md: `python -m gin.conformance.docs docs/conformance.md`.

In the document, the lines between `<!-- matrix FILE... -->` and `<!-- end -->` are made from results that
`gin conformance --json FILE` wrote, FILE being relative to the project's folder; those between `<!-- situations -->` and
`<!-- end -->` from the cases.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gin.backends import NAMES
from gin.conformance.plan import ROUTES
from gin.conformance.registry import FAMILIES, Case, all_cases
from gin.conformance.results import Result
from gin.conformance.table import Column, cell, cells

__all__ = ["matrix", "renewed", "situations"]

_BLOCK = re.compile(r"(<!-- matrix ([\w./ -]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_SITUATIONS = re.compile(r"(<!-- situations -->\n).*?(<!-- end -->)", re.DOTALL)


def renewed(text: str, root: Path) -> str:
    """A document with its matrices made anew. Raises OSError or ValueError for results that are not there or not such."""

    def make(match: re.Match[str]) -> str:
        documents = [json.loads((root / name).read_text(encoding="utf-8")) for name in match[2].split()]
        return match[1] + matrix(documents) + match[3]

    return _SITUATIONS.sub(lambda match: match[1] + situations() + match[2], _BLOCK.sub(make, text))


def situations() -> str:
    """A table in Markdown: which reports of other libraries' users a case repeats."""
    lines = ["", _row(["reported to", "what holds here", "case"]), "|---|---|---|"]
    for name, case in all_cases().items():
        plain = name.partition("[")[0]
        for report in case.situations:
            repository, _, number = report.partition("#")
            link = f"[{report}](https://github.com/{repository}/issues/{number})"
            line = _row([link, _summary(case), f"`{plain}`"])
            if not any(f"`{plain}`" in other and link in other for other in lines):
                lines.append(line)
    return "\n".join([*lines, ""]) + "\n"


def matrix(documents: Sequence[dict[str, Any]]) -> str:
    """A table per family in Markdown: the cases, what each checks, and a column per platform and backend."""
    runs = [(_platform(document), cells(Result(**row) for row in document["results"])) for document in documents]
    columns = [(platform, backend, found) for platform, found in runs for backend in NAMES]
    lines = []
    for family in FAMILIES:
        cases = [case for case in all_cases().values() if case.family == family]
        lines += [
            f"### {family}",
            "",
            _row(["case", "promise", "what is checked", *(f"{p} `{b}`" for p, b, _ in columns)]),
        ]
        lines.append("|---|---|---|" + "---|" * len(columns))
        for case in cases:
            outcomes = [_both(found.get(case.name, {}), backend) for _, backend, found in columns]
            lines.append(_row([f"`{case.name}`", case.promise, _summary(case), *outcomes]))
        lines.append("")
    return "\n".join(lines) + "\n"


def _platform(document: dict[str, Any]) -> str:
    name: str = document["environment"]["platform"]
    return name


def _summary(case: Case) -> str:
    return case.summary.replace("|", "\\|")


def _both(row: dict[Column, str], backend: str) -> str:
    """The outcome on both routes: one word where they agree or one does not apply."""
    shown = [cell(row.get((backend, route))) for route in ROUTES]
    different = [word for word in dict.fromkeys(shown) if word != "-"]
    if len(different) < 2:
        return different[0] if different else "-"
    return ", ".join(f"{route}: {word}" for route, word in zip(ROUTES, shown, strict=True))


def _row(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"


def main() -> None:
    """Renews the documents that are named on the command line."""
    for name in sys.argv[1:]:
        path = Path(name)
        root = next((place for place in path.resolve().parents if (place / "pyproject.toml").exists()), Path.cwd())
        path.write_text(renewed(path.read_text(encoding="utf-8"), root), encoding="utf-8")


if __name__ == "__main__":
    main()

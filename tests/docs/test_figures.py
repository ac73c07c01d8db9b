"""The figures of what each test times."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import figures
import pytest

from gin.bench.tests import TESTS

DOCS = Path(__file__).parents[2] / "docs"


def test_every_operation_has_a_figure() -> None:
    drawn = [(figure.test, figure.name) for figure in figures.FIGURES]
    assert drawn == [(test.name, made.name) for test in TESTS.values() for made in test.operations]


@pytest.mark.parametrize("test", list(TESTS))
def test_figures_are_current_and_shown(test: str) -> None:
    path = DOCS / "assets" / f"timed-{test}.svg"
    text = path.read_text(encoding="utf-8")
    assert text == figures.drawn(test), "python docs/tools/figures.py writes them"
    ElementTree.fromstring(text)
    assert f"../assets/{path.name})" in (DOCS / "howto" / "report.md").read_text(encoding="utf-8")

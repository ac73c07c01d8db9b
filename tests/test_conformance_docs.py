"""The matrix of docs/conformance.md is made from results that are there, of the cases that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gin.conformance import all_cases
from gin.conformance.docs import matrix, renewed
from gin.conformance.results import FAIL, SKIPPED

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "conformance.md"
RESULTS = sorted((ROOT / "results").glob("conformance-*.json"))


def test_the_matrix_is_current():
    text = DOCUMENT.read_text()
    assert renewed(text, ROOT) == text, "run: python -m gin.conformance.docs docs/conformance.md"
    assert all(f"`{name}`" in text for name in all_cases())


@pytest.mark.parametrize("file", RESULTS, ids=lambda path: path.stem)
def test_results_are_of_the_cases_there_are(file):
    document = json.loads(file.read_text())
    names = {row["case"] for row in document["results"]}
    assert document["complete"] and names <= set(all_cases())
    if document["environment"]["platform"] == "host":
        assert names == set(all_cases()), "run gin conformance again, and keep its results"
        assert not [row for row in document["results"] if row["outcome"] == FAIL]


def test_routes_that_differ_are_both_shown_and_failures_stand_out():
    def row(case, route, outcome):
        more = {"platform": "host", "wire": "shm", "ranks": 2, "reason": "", "capability": "", "seconds": 0.0}
        return {"case": case, "promise": "put", "backend": "nvshmem", "route": route, "outcome": outcome, **more}

    rows = [row("order.quiet", "direct", "pass"), row("order.quiet", "native", "fail")]
    rows += [row("transfer.registered", "direct", SKIPPED), row("transfer.registered", "native", "refused")]
    text = matrix([{"environment": {"platform": "host"}, "results": rows}])
    assert re.search(r"\| `order\.quiet` \|.*\| direct: pass, native: FAIL \| - \| - \|", text)
    assert re.search(r"\| `transfer\.registered` \|.*\| refused \| - \| - \|", text)
    assert re.search(r"\| `transfer\.strided` \|.*\| - \| - \| - \|", text)

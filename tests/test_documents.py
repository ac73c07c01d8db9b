"""What README and the documents state of the code is what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gin import backends

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_readme_has_the_capabilities_of_each_backend():
    text = (ROOT / "README.md").read_text()
    table = re.search(r"<!-- capabilities -->\n(.*?)<!-- end -->", text, re.DOTALL)[1]
    rows = {row[0]: row[1:] for row in re.findall(r"\| `(\w+)` \| (\w+) \| (\w+) \| (\w+) \|", table)}
    stated = {
        name: {capability: row[i] == "yes" for capability, row in rows.items()} for i, name in enumerate(backends.NAMES)
    }
    assert stated == {name: dict(backends.capabilities(name)) for name in backends.NAMES}


def test_every_operation_of_the_device_api_is_mapped():
    api = (ROOT / "csrc" / "include" / "gin" / "context.cuh").read_text()
    methods = set(re.findall(r"^  GIN_DEVICE [\w:]+\*? (\w+)\(", api, re.MULTILINE))
    trivial = {"Context", "rank", "size", "index", "channel", "comm"} | {
        f"{verb}_counter" for verb in ("test", "read", "reset", "wait")
    }
    table = (ROOT / "docs" / "operations.md").read_text()
    named = set(re.findall(r"`(\w+)", table))
    missing = {m for m in methods - trivial if m not in named and not m.startswith("atomic_")}
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
        assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_paths_that_are_named_exist(document):
    for name in re.findall(r"`((?:csrc|gin|docs|tests|examples)/[\w./-]+)`", document.read_text()):
        assert (ROOT / name).exists(), name

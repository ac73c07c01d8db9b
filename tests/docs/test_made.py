"""What pages are filled in with says what the source says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tables
from blocks import PAGES, ROOT
from device_api import context_reference, type_reference
from expand import HEADERS, expanded
from prose import markdown
from python_api import python_reference

import gin


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_are_filled_in(path: Path) -> None:
    text = expanded(path.read_text(encoding="utf-8"))
    assert "<!-- made" not in text
    assert text.count("\n```") % 2 == 0


def test_marks_that_mean_nothing_are_refused() -> None:
    for mark in ("everything", "python nothing.py", "types comm.h Nobody", "file text nowhere"):
        with pytest.raises((ValueError, OSError)):
            expanded(f"<!-- made: {mark} -->\n")


def test_every_operation_of_the_device_api_is_in_the_reference() -> None:
    header = (HEADERS / "context.cuh").read_text(encoding="utf-8")
    methods = set(re.findall(r"^  GIN_DEVICE [\w:]+[*&]? (\w+)\(", header, re.MULTILINE)) - {"channel"}
    text = context_reference(HEADERS / "context.cuh")
    assert methods <= set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^### .*$", text, re.MULTILINE))))
    assert "GIN_" not in text.replace("GIN_CHECK", "") and "return" not in "".join(
        re.findall(r"```cpp.*?```", text, re.DOTALL)
    )


def test_types_are_shown_without_bodies() -> None:
    text = type_reference(HEADERS / "coop.cuh", ["Warp"])
    assert "struct Warp {" in text and "void sync() const;" in text and "__syncwarp" not in text


def test_everything_that_gin_exports_is_in_the_reference() -> None:
    text = expanded((ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8"))
    titles = set(re.findall(r"^## `gin\.(\w+)`$", text, re.MULTILINE))
    assert set(gin.__all__) - {"__version__"} <= titles


def test_the_commands_help_needs_no_extension(tmp_path: Path) -> None:
    """The site is built in a source tree, where an installed gin does not help."""
    shutil.copytree(ROOT / "gin", tmp_path / "gin", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    program = "import sys; sys.path[:0] = sys.argv[1:]; import tables; print(tables.commands())"
    tools = str(ROOT / "docs" / "tools")
    command = [sys.executable, "-c", program, tools, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "## gin bench" in done.stdout and "## gin run" in done.stdout, done.stderr


def test_signatures_and_properties(tmp_path: Path) -> None:
    module = tmp_path / "thing.py"
    module.write_text(
        'class Thing(Base):\n    """A thing.\n\n    size  how large,\n          in bytes\n    """\n\n'
        '    @property\n    def much(self) -> int:\n        """How much."""\n\n'
        '    def take(self, a: int = 1, *, b: str | None = None) -> bytes:\n        """Takes __it__."""\n\n'
        "    def _inner(self): ...\n"
    )
    text = python_reference(module, ["Thing"])
    assert "- `size`: how large, in bytes" in text and "Thing.much: int  # read only" in text
    assert "Thing.take(a: int = 1, *, b: str | None = None) -> bytes" in text
    assert r"Takes \_\_it\_\_." in text and "_inner" not in text
    module.write_text("def bare(): ...\n")
    with pytest.raises(ValueError, match="bare has no docstring"):
        python_reference(module, ["bare"])


def test_comments_become_text_and_lists() -> None:
    text = markdown("Does `a_b` to *x*.\n  least, most  bounds\n              of it\n  id  which\n0 is none.\n")
    assert text == "Does `a_b` to \\*x\\*.\n\n- `least, most`: bounds of it\n- `id`: which\n\n0 is none."


def test_every_setting_and_command_is_listed() -> None:
    from gin.cli.main import _COMMANDS
    from gin.config import KNOBS

    assert all(f"`GIN_{name.upper()}`" in tables.settings() for name in KNOBS)
    assert all(f"## gin {name}\n" in tables.commands() for name in _COMMANDS)
    assert str(Path.home()) not in tables.settings()


def test_every_measured_row_is_in_the_table() -> None:
    text = tables.results(ROOT / "results")
    found = tables.measured(ROOT / "results")
    assert found and "host-speed.json" not in found
    for name, document in found.items():
        part = text.split(f"`results/{name}`", 1)[1].split("\n### ", 1)[0]
        assert part.count("\n| ") - 1 >= len(document.get("rows", []))
    assert "/root" not in text


def test_emulated_results_are_not_among_those_of_gpus(tmp_path: Path) -> None:
    same = {"command": ["gin", "/secret/out.json"], "environment": {"cpu": "x", "cores": 2, "platform": "cuda"}}
    times = {"median_us": 1.0, "p99_us": 2.0, "bandwidth_GBps": 3.0, "rate_Mops": 4.0, "wrong": 0}
    row = {
        "test": "rate",
        "op": "put",
        "backend": "nvshmem",
        "route": "native",
        "scope": "warp",
        "ctas": 1,
        "threads": 32,
    }
    rows = [{**row, **times, "bytes": 1024}]
    (tmp_path / "gpu.json").write_text(json.dumps({**same, "emulated": False, "complete": False, "rows": rows}))
    (tmp_path / "host.json").write_text(json.dumps({**same, "emulated": True, "rows": rows}))
    (tmp_path / "old.json").write_text(
        json.dumps({"backend": "nccl_gin", "routes": ["direct"], "round_trips": {"a": 1.5}})
    )
    text = tables.results(tmp_path)
    assert "host.json" not in text and "secret" not in text and "ended before its last row" in text
    assert "| round_trips: a | 1.5 |" in text and "| 1K | 1 | 2 | 3 | 4 | 0 |" in text
    table = tables.coverage(tmp_path)
    assert "| `nvshmem` | rate `put` | not run |" in table and "| `nccl_gin` | not run | ping-pong |" in table

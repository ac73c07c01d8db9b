"""The workflow for other repositories: what it takes, and its own scripts."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from blocks import ROOT, Scratch, parse

WORKFLOWS = ROOT / ".github" / "workflows"


def workflow(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.load((WORKFLOWS / name).read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    return found


def script(job: str, step: str) -> str:
    steps = workflow("compare.yml")["jobs"][job]["steps"]
    return str(next(made["run"] for made in steps if made.get("name") == step))


@pytest.mark.parametrize("name", ["ci.yml", "compare.yml"])
def test_scripts_are_shell(name: str) -> None:
    for job in workflow(name)["jobs"].values():
        for step in job.get("steps", []):
            text = re.sub(r"\$\{\{.*?\}\}", "true", step.get("run", "true"))
            subprocess.run(["bash", "-n", "-c", text], check=True)


def test_recipe_and_own_use_give_what_the_workflow_takes() -> None:
    inputs = workflow("compare.yml")["on"]["workflow_call"]["inputs"]
    page = parse(ROOT / "docs" / "howto" / "ci.md")
    recipe = yaml.safe_load(
        next(block.text for block in page.blocks if block.title == ".github/workflows/transports.yml")
    )
    own = [job for job in workflow("ci.yml")["jobs"].values() if "compare.yml" in job.get("uses", "")]
    assert own
    for job in (*recipe["jobs"].values(), *own):
        assert set(job["with"]) <= set(inputs)
    text = (WORKFLOWS / "compare.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == set(inputs)


def run(text: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", text],
        cwd=folder,
        env={**environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def place(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A folder with `gin` on its path, and what a runner's shell has."""
    scratch = Scratch(tmp_path)
    (scratch.folder / "head").mkdir()
    return scratch.folder, {**scratch.environment, "GITHUB_STEP_SUMMARY": str(scratch.folder / "summary.md")}


def results(median: float) -> str:
    times = dict.fromkeys(("min_us", "median_us", "p90_us", "p99_us", "max_us"), median)
    same = {"test": "latency", "op": "put_signal", "platform": "host", "wire": "shm", "ranks": 2, "scope": "thread"}
    same |= {
        "ctas": 1,
        "threads": 1,
        "iterations": 100,
        "warmup": 10,
        "rate_Mops": 1.0,
        "bandwidth_GBps": 1.0,
        "wrong": 0,
    }
    rows = [
        {**same, **times, "bytes": size, "backend": "nvshmem", "route": route}
        for size in (8, 65536)
        for route in ("native", "direct")
    ]
    document = {"schema": 1, "tool": "gin", "command": ["gin", "bench", "latency"], "emulated": True, "environment": {}}
    return json.dumps({**document, "rows": rows})


@pytest.mark.parametrize(("slower", "status"), [(1.0, 0), (5.0, 1)])
def test_comparison_with_the_base_branch(place: tuple[Path, dict[str, str]], slower: float, status: int) -> None:
    folder, environment = place
    (folder / "base.json").write_text(results(2.0))
    (folder / "head.json").write_text(results(2.0 * slower))
    (folder / "head" / "thresholds.txt").write_text((ROOT / ".github" / "thresholds.txt").read_text())
    done = run(script("compare", "Compare"), folder, **environment, THRESHOLDS="thresholds.txt")
    assert done.returncode == status, done.stderr
    assert (folder / "report.html").stat().st_size > 1000
    summary = (folder / "summary.md").read_text()
    assert summary == (folder / "comment.md").read_text() and ("CROSSED" in summary or "crossed" in summary) == bool(
        status
    )


def test_comparison_without_thresholds(place: tuple[Path, dict[str, str]]) -> None:
    folder, environment = place
    for side in ("base", "head"):
        (folder / f"{side}.json").write_text(results(2.0))
    done = run(script("compare", "Compare"), folder, **environment, THRESHOLDS=".github/thresholds.txt")
    assert done.returncode == 0, done.stderr
    done = run(script("compare", "Compare"), folder, **environment, THRESHOLDS="mistyped.txt")
    assert done.returncode == 1 and "::error::mistyped.txt is not" in done.stdout


def test_wrong_data_reaches_the_comment(place: tuple[Path, dict[str, str]]) -> None:
    folder, environment = place
    (folder / "base.json").write_text(results(2.0))
    (folder / "head.json").write_text(results(2.0).replace('"wrong": 0', '"wrong": 3', 1))
    done = run(script("compare", "Compare"), folder, **environment, THRESHOLDS=".github/thresholds.txt")
    assert done.returncode == 1 and "WRONG DATA" in (folder / "summary.md").read_text()


def test_programs_are_checked_on_every_backend(place: tuple[Path, dict[str, str]]) -> None:
    folder, environment = place
    right = "import gin\nwith gin.init() as comm:\n    comm.barrier()\n"
    (folder / "right.py").write_text(right)
    (folder / "wrong.py").write_text(right + "    assert comm.rank == 0\n")
    text = script("check", "Check")
    done = run(text, folder, **environment, PROGRAMS="right.py", RANKS="2", SEEDS="3")
    assert done.returncode == 0 and done.stdout.count("passed") == 3, done.stdout + done.stderr
    done = run(text, folder, **environment, PROGRAMS="wrong.py right.py", RANKS="3", SEEDS="3")
    assert done.returncode == 1 and done.stdout.count("passed") == 3


def test_measuring_is_one_command_on_both_sides(place: tuple[Path, dict[str, str]]) -> None:
    folder, environment = place
    for side in ("base", "head"):
        (folder / side).mkdir(exist_ok=True)
        (folder / f"venv-{side}" / "bin").mkdir(parents=True)
        (folder / f"venv-{side}" / "bin" / "activate").write_text(f"export SIDE={side}\n")
    text = script("compare", "Measure").replace("${{ inputs.measure }}", 'echo "$SIDE" > "$RESULTS"')
    assert run(text, folder, **environment).returncode == 0
    assert (folder / "base.json").read_text() == "base\n" and (folder / "head.json").read_text() == "head\n"


def test_a_base_that_cannot_be_measured_is_said_and_not_compared(place: tuple[Path, dict[str, str]]) -> None:
    folder, environment = place
    for side in ("base", "head"):
        (folder / side).mkdir(exist_ok=True)
        (folder / f"venv-{side}" / "bin").mkdir(parents=True)
        (folder / f"venv-{side}" / "bin" / "activate").write_text("")
    (folder / "head" / "measured.json").write_text(results(2.0))
    # Its first command fails there, the last one would not.
    text = script("compare", "Measure").replace("${{ inputs.measure }}", 'cp measured.json "$RESULTS"\necho done')
    done = run(text, folder, **environment)
    assert done.returncode == 0 and "::warning::the base branch" in done.stdout, done.stdout + done.stderr
    assert not (folder / "base.json").exists()
    done = run(script("compare", "Compare"), folder, **environment, THRESHOLDS="none.txt")
    assert done.returncode == 0, done.stderr
    assert "nothing is compared" in (folder / "summary.md").read_text() == (folder / "comment.md").read_text()
    quiet = script("compare", "Measure").replace(
        "${{ inputs.measure }}", '[ ! -e measured.json ] || cp measured.json "$RESULTS"'
    )
    assert "::warning::the base branch" in run(quiet, folder, **environment).stdout
    (folder / "head" / "measured.json").unlink()
    assert run(text, folder, **environment).returncode != 0


GH = """#!/usr/bin/env bash
echo "$*" >> calls.txt
case "$*" in
  *--jq*) printf '%s' "$FOUND" ;;
esac
"""


@pytest.mark.parametrize(
    ("found", "call"), [("", "POST repos/me/it/issues/7/comments"), ("5\n9\n", "PATCH repos/me/it/issues/comments/9")]
)
def test_the_comment_is_the_workflows_own(place: tuple[Path, dict[str, str]], found: str, call: str) -> None:
    folder, environment = place
    tool = folder / "bin" / "gh"
    tool.parent.mkdir(exist_ok=True)
    tool.write_text(GH)
    tool.chmod(0o755)
    (folder / "comment.md").write_text("told\n")
    path = f"{tool.parent}:{environment['PATH']}"
    more = {"PATH": path, "FOUND": found, "MARK": "<!-- m -->", "COMMENTS": "repos/me/it/issues/7/comments"}
    done = run(script("compare", "Comment"), folder, **{**environment, **more})
    assert done.returncode == 0, done.stderr
    assert call in (folder / "calls.txt").read_text().splitlines()[-1]
    assert (folder / "marked.md").read_text() == "<!-- m -->\ntold\n"


def test_the_default_sweep_fits_the_projects_thresholds(place: tuple[Path, dict[str, str]]) -> None:
    from gin.compare.threshold import parse_thresholds

    folder, environment = place
    default = workflow("compare.yml")["on"]["workflow_call"]["inputs"]["measure"]["default"]
    command = default.replace("-e 64K", "-b 8 -e 64K").replace("-f 4", "-f 8192 -n 50 --backend nvshmem")
    assert command != default and "--platform sim" in command
    done = run(command, folder, **environment, RESULTS="base.json")
    assert done.returncode == 0, done.stderr
    (folder / "new.json").write_text((folder / "base.json").read_text())
    thresholds = ROOT / ".github" / "thresholds.txt"
    assert parse_thresholds(thresholds.read_text().splitlines())
    done = run(f"gin compare base.json new.json --thresholds {thresholds}", folder, **environment)
    assert done.returncode == 0, done.stdout + done.stderr

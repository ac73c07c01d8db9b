"""`gin bench --resume`, and sweeps that end early, with the ranks replaced by what they would have told."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from pretended import call, told

from gin.bench import sweep
from gin.bench.load import load
from gin.bench.plan import Plan
from gin.bench.results import Output
from gin.bench.resume import resumed
from gin.errors import BootstrapError, ConfigError

pytestmark = pytest.mark.usefixtures("bare_environment")


def test_an_interrupted_sweep_goes_on_in_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = str(tmp_path / "out.json")
    arguments = ("latency", "-b", "8", "-e", "64", "--route", "native", "--no-samples", "--json", path)
    monkeypatch.setattr("sys.argv", ["gin", "bench", *arguments])
    result = call(monkeypatch, told(then=KeyboardInterrupt(), after=4), *arguments)
    assert result.exit_code == 130
    assert f"4 rows are complete; gin bench --resume {path} goes on" in result.stderr
    before = json.loads(Path(path).read_text())
    assert (before["complete"], len(before["rows"]), before["remarks"]["interrupted"]) == (False, 4, True)

    monkeypatch.setattr("sys.argv", ["gin", "bench", "--resume", path])
    result = call(monkeypatch, told(), "--resume", path)
    assert result.exit_code == 0, result.output
    after = json.loads(Path(path).read_text())
    assert after["rows"][:4] == before["rows"]
    assert len(after["rows"]) == 4 * 3
    assert len({(row["bytes"], row["backend"]) for row in after["rows"]}) == 12
    assert (after["complete"], after["command"]) == (True, before["command"])


def test_a_sweep_goes_on_with_its_own_options_only_on_its_own_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "out.json"
    call(monkeypatch, told(then=KeyboardInterrupt(), after=4), "latency", "--json", str(path))
    before = json.loads(path.read_text())

    def never(*_: Any) -> None:
        raise AssertionError("ranks were started")

    for change in ({"environment": {**before["environment"], "cpu": "another"}}, {"schema": 2}, {"rows": [{}]}):
        path.write_text(json.dumps({**before, **change}))
        result = call(monkeypatch, never, "latency", "--resume", str(path))
        assert result.exit_code == 2, result.output
        assert str(path) in result.stderr
    path.write_text(json.dumps(before))
    assert call(monkeypatch, never, "rate", "--resume", str(path)).exit_code == 2
    assert call(monkeypatch, never, "latency", "-n", "7", "--resume", str(path)).exit_code == 2
    assert call(monkeypatch, never, "latency", "--no-verify", "--resume", str(path)).exit_code == 2
    monkeypatch.setenv("NCCL_PROTO", "LL")
    result = call(monkeypatch, never, "latency", "--resume", str(path))
    assert result.exit_code == 2
    assert "NCCL_PROTO unset, here it is LL" in result.stderr
    assert json.loads(path.read_text()) == before


def test_a_sweep_goes_on_on_the_cores_that_it_began_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    call(monkeypatch, told(then=KeyboardInterrupt(), after=4), "latency", "--json", str(path))
    before = json.loads(path.read_text())
    path.write_text(json.dumps({**before, "environment": {**before["environment"], "binding": ["0", "2-3"]}}))
    plan = resumed(Plan("latency", ("nvshmem",), True, ("native",), (8,)), load(str(path)))
    sweep._require_binding(plan, [(0,), (2, 3)])
    with pytest.raises(ConfigError, match=r"on the cores 0; 2-3, these would be on 0; 1"):
        sweep._require_binding(plan, [(0,), (1,)])


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A sweep into out.json and out.csv that ended after 4 of its 12 rows."""
    path = tmp_path / "out.json"
    arguments = [
        "latency",
        "-b",
        "8",
        "-e",
        "64",
        "--route",
        "native",
        "--json",
        str(path),
        "--csv",
        f"{tmp_path}/out.csv",
    ]
    monkeypatch.setattr("sys.argv", ["gin", "bench", *arguments])
    assert call(monkeypatch, told(then=KeyboardInterrupt(), after=4), *arguments).exit_code == 130
    monkeypatch.setattr("sys.argv", ["gin", "bench", "--resume", str(path)])
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ["-n", "7"],
        ["latency", "-e", "1K"],
        ["--no-verify"],
        ["--ranks", "4"],
        ["--csv", "other.csv"],
        ["--wire", "shm"],
    ],
    ids=" ".join,
)
def test_what_goes_on_takes_no_other_settings(
    monkeypatch: pytest.MonkeyPatch, interrupted: Path, arguments: list[str]
) -> None:
    before = interrupted.read_text()
    result = call(monkeypatch, told(then=AssertionError()), *arguments, "--resume", str(interrupted))
    assert result.exit_code == 2, result.output
    assert "as it was started; leave" in re.sub(r"\s+", " ", result.stderr).replace(f"{interrupted} was", "it was")
    assert interrupted.read_text() == before


def test_what_goes_on_keeps_its_table_and_what_disturbed_it(monkeypatch: pytest.MonkeyPatch, interrupted: Path) -> None:
    table = interrupted.with_suffix(".csv")
    assert len(table.read_text().splitlines()) == 5
    document = json.loads(interrupted.read_text())
    interrupted.write_text(json.dumps({**document, "remarks": {"conditions": {"throttles": 7, "load": "high"}}}))
    assert call(monkeypatch, told(), "latency", "--resume", str(interrupted)).exit_code == 0
    assert len(table.read_text().splitlines()) == 13
    assert json.loads(interrupted.read_text())["remarks"]["conditions"]["throttles"] == 7


def test_what_goes_on_replaces_no_other_file(monkeypatch: pytest.MonkeyPatch, interrupted: Path) -> None:
    interrupted.with_suffix(".csv").write_text("precious")
    before = interrupted.read_text()
    result = call(monkeypatch, told(then=AssertionError()), "--resume", str(interrupted))
    assert result.exit_code == 2, result.output
    assert "no CSV of gin bench" in result.stderr
    assert (interrupted.read_text(), interrupted.with_suffix(".csv").read_text()) == (before, "precious")


@pytest.mark.parametrize(("then", "status"), [(KeyboardInterrupt(), 130), (BootstrapError("lost"), 1)])
def test_what_ends_before_it_goes_on_leaves_the_file(
    monkeypatch: pytest.MonkeyPatch, interrupted: Path, then: BaseException, status: int
) -> None:
    def run(*_: Any) -> None:
        raise then

    before = interrupted.read_text()
    result = call(monkeypatch, run, "--resume", str(interrupted))
    assert result.exit_code == status
    assert "as it was" in result.stderr
    assert interrupted.read_text() == before
    assert len(list(interrupted.parent.glob("*.json"))) == 1


def test_ctrl_c_does_not_disturb_the_writing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    written = Output.write

    def write(self: Output, text: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        written(self, text)

    monkeypatch.setattr(Output, "write", write)
    result = call(monkeypatch, told(), "latency", "-e", "8", "--json", str(path))
    assert result.exit_code == 0, result.output
    assert json.loads(path.read_text())["complete"] is True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_ends_a_session_keeps_the_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals
) -> None:
    def run(plan: Plan, ranks: int, sink: sweep.Sink) -> None:
        told(after=3)(plan, ranks, sink)
        os.kill(os.getpid(), number)

    path, before = tmp_path / "out.json", signal.getsignal(number)
    assert call(monkeypatch, run, "latency", "--json", str(path)).exit_code == 130
    assert len(json.loads(path.read_text())["rows"]) == 3
    assert signal.getsignal(number) is before

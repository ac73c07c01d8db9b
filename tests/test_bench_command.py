"""The commands `gin bench` and `gin info`, with the ranks replaced by what they would have told."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pretended import call, told

from gin.bench import sweep
from gin.bench.plan import TESTS, Plan
from gin.bench.report import Reporter
from gin.cli.bench import command as bench
from gin.cli.info import command as info
from gin.errors import BootstrapError, KernelError, TimeoutError, UnsupportedError

LAUNCHERS = re.compile(r"(GIN_|OMPI_|PMI|SLURM_|MV2_|RANK$|WORLD_SIZE$|LOCAL_)")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if LAUNCHERS.match(name):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GIN_CACHE_DIR", str(tmp_path / "cache"))


def test_default_sweep_shows_all_backends_and_both_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    result = call(monkeypatch, told(), "latency")
    assert result.exit_code == 0, result.output
    header = [line for line in result.stdout.splitlines() if line.startswith("#")]
    assert "# EMULATION: timings are not hardware timings" in header
    assert any("half the round trip" in line for line in header)
    assert any("scope=thread ctas=1 threads=1 contexts=4 ranks=2 iterations=200" in line for line in header)
    table = [line for line in result.stdout.splitlines() if line and not line.startswith("#")]
    assert table[0].split() == [b for b in ("nvshmem", "nccl_gin", "ibrc_proxy") for _ in range(2)]
    assert [line.split()[0] for line in table[3:]][::17] == ["8", "1M"]


@pytest.mark.parametrize(
    ("then", "status"),
    [
        (TimeoutError("late"), 4),
        (UnsupportedError("no"), 3),
        (KernelError("deadlock"), 1),
        (BootstrapError("lost"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_status_says_what_happened(monkeypatch: pytest.MonkeyPatch, then: BaseException, status: int) -> None:
    assert call(monkeypatch, told(then=then, after=0), "latency").exit_code == status


def test_wrong_data_is_status_1_and_loud(monkeypatch: pytest.MonkeyPatch) -> None:
    result = call(monkeypatch, told(wrong=3), "rate", "-b", "8", "-e", "8", "--route", "native")
    assert result.exit_code == 1
    assert "# WRONG DATA: 9 elements" in result.stdout
    assert "1.000!" in result.stdout


def test_a_failure_is_told_as_its_first_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    # Rank 0 saw another rank fail; what that rank raised is what counts.
    result = call(monkeypatch, told(then=TimeoutError("rank 1 waited"), failure="RemoteError"), "latency")
    assert result.exit_code == 4
    assert "gin bench: TimeoutError: rank 1 waited" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["speed"],
        ["latency", "--backend", "mpi"],
        ["latency", "--backend", "nvshmem,all"],
        ["latency", "--backend", ""],
        ["latency", "-b", "9", "-e", "8"],
        ["latency", "-b", "-1"],
        ["latency", "-b", "eight"],
        ["latency", "-f", "1"],
        ["latency", "-n", "0"],
        ["latency", "-w", "-1"],
        ["latency", "-c", "0"],
        ["latency", "-c", "1,x"],
        ["latency", "-c", ""],
        ["latency", "-c", "65537"],
        ["latency", "--contexts", "0"],
        ["latency", "--op", "put"],
        ["latency", "--op", "all,put_signal"],
        ["latency", "-s", "thread,grid"],
        ["latency", "--ranks", "2,1"],
        ["latency", "-f", "1.0000001"],
        ["--resume", "missing.json"],
        ["latency", "--resume", "missing.json", "--json", "other.json"],
        ["latency", "-t", "1025"],
        ["latency", "-s", "grid"],
        ["latency", "--route", "fast"],
        ["latency", "--ranks", "1"],
        ["latency", "--ranks", "0"],
        ["latency", "--wire", "pigeon"],
        ["latency", "--platform", "abacus"],
        ["latency", "--timeout", "soon"],
        ["latency", "--json", "x", "--csv", "x"],
        ["latency", "--json", "x", "--csv", "./x"],
        ["latency", "--json", ""],
        ["latency", "--csv", ""],
        ["latency", "-f", "nan"],
        ["latency", "-f", "inf"],
        ["--resume", ""],
        ["latency", "--json", "missing/out.json"],
        ["latency", "--frobnicate"],
    ],
    ids=" ".join,
)
def test_usage_errors_are_status_2_and_start_nothing(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("ranks were started")

    result = call(monkeypatch, never, *arguments)
    assert result.exit_code == 2, result.output
    assert "Error" in result.stderr


def test_unknown_names_are_named_with_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    result = call(monkeypatch, told(), "latency", "--backend", "mpi")
    assert "'mpi'" in result.stderr
    assert "nvshmem, nccl_gin, ibrc_proxy" in re.sub(r"\s+", " ", result.stderr)


def test_every_flag_reaches_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Plan, int]] = []

    def run(plan: Plan, ranks: int, sink: sweep.Sink) -> None:
        seen.append((plan, ranks))
        told()(plan, ranks, sink)

    text = (
        "bandwidth --backend nvshmem,ibrc_proxy,nvshmem -b 1K -e 16K -f 4 -n 5 -w 2 -c 3 -t 64 -s warp --route direct "
        "--ranks 3 --wire shm --platform host --timeout 2.5 --no-verify --no-samples --op get --contexts 2"
    )
    assert call(monkeypatch, run, *text.split()).exit_code == 0
    plan, ranks = seen[0]
    assert (plan.test, plan.backends, plan.required) == ("bandwidth", ("nvshmem", "ibrc_proxy"), True)
    assert (plan.sizes, plan.iterations, plan.warmup) == ((1024, 4096, 16384), 5, 2)
    assert (plan.ctas, plan.threads, plan.scopes, plan.contexts) == ((3,), (64,), ("warp",), (2,))
    assert (plan.operations, plan.routes, ranks) == (("get",), ("direct",), 3)
    assert (plan.wire, plan.platform, plan.timeout) == ("shm", "host", 2.5)
    assert (plan.verify, plan.samples) == (False, False)


def test_lists_of_geometry_and_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Plan, int]] = []

    def run(plan: Plan, ranks: int, sink: sweep.Sink) -> None:
        seen.append((plan, ranks))
        told()(plan, ranks, sink)

    text = "latency -b 8 -e 8 -s all -c 1,2,2 -t 32,64 --contexts 1,4 --ranks 3,2 --op all"
    result = call(monkeypatch, run, *text.split())
    assert result.exit_code == 0, result.output
    assert [ranks for _, ranks in seen] == [3, 2]
    plan = seen[0][0]
    assert (plan.scopes, plan.ctas, plan.threads, plan.contexts) == (
        ("thread", "warp", "block"),
        (1, 2),
        (32, 64),
        (1, 4),
    )
    assert plan.operations == tuple(made.name for made in TESTS["latency"].operations)
    assert "ranks=3\n" in result.stdout
    assert "ranks=2\n" in result.stdout


def test_what_disturbed_the_machine_is_said_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    text = call(monkeypatch, told(), "latency", "-e", "8", "--json", str(path)).stdout
    assert "# load 99 on 2 cores: other work ran meanwhile" in text
    assert "# the processor was throttled 1 times" in text
    assert json.loads(path.read_text())["remarks"]["conditions"]["preemptions"] == 3


PRETENDING = """
import sys
from gin.bench import sweep
from pretended import told
sweep.run_here = told()
sys.argv[0] = "gin"
from gin.cli.main import main
main()
"""


@pytest.mark.parametrize("end", ["| true", ">&-", ">/dev/full", ">&- 2>&-"])
def test_results_are_written_where_nobody_reads_the_table(tmp_path: Path, end: str) -> None:
    path = tmp_path / "out.json"
    script = f'{{ "$0" -c "$1" bench latency --json {path}; echo status $? >{tmp_path}/status; }} {end}'
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run(
        ["bash", "-c", script, sys.executable, PRETENDING], capture_output=True, text=True, env=environ, check=False
    )
    assert len(json.loads(path.read_text())["rows"]) == 18 * 6
    assert (tmp_path / "status").read_text() == "status 0\n"
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
    assert ("No space" in done.stderr) == ("full" in end)


@pytest.mark.parametrize("columns", ["20", "40", "79", "200"])
def test_the_list_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    lines = call(monkeypatch, told(), "--list").stdout.splitlines()
    assert max(map(len, lines)) <= max(int(columns), 40)
    assert any("put_quiet" in line for line in lines)


@pytest.mark.parametrize("name", ["--minbytes", "--min-bytes"])
def test_names_of_other_tools_are_taken_too(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    longer = name.replace("min", "max")
    assert call(monkeypatch, told(), "latency", name, "8", longer, "16").exit_code == 0


def test_one_end_of_the_sizes_may_be_given_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(monkeypatch, told(), "latency", "-b", "2M").exit_code == 0
    assert call(monkeypatch, told(), "bandwidth", "-e", "64").exit_code == 0


def test_json_and_csv_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    paths = tmp_path / "out.json", tmp_path / "out.csv"
    result = call(monkeypatch, told(), "latency", "--json", str(paths[0]), "--csv", str(paths[1]))
    assert result.exit_code == 0
    document = json.loads(paths[0].read_text())
    assert set(document) == {"schema", "tool", "command", "emulated", "complete", "environment", "remarks", "rows"}
    assert (document["schema"], document["emulated"], document["complete"]) == (1, True, True)
    assert len(document["rows"]) == 18 * 6
    assert len(paths[1].read_text().splitlines()) == 1 + 18 * 6
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_standard_output_stays_clean(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    result = call(monkeypatch, told(), "latency", "-b", "8", "-e", "8", f"--{kind}", "-")
    assert result.exit_code == 0
    if kind == "json":
        assert len(json.loads(result.stdout)["rows"]) == 6
    else:
        assert len(result.stdout.splitlines()) == 7
    assert "# EMULATION" in result.stderr


def test_both_on_standard_output_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(monkeypatch, told(), "latency", "--json", "-", "--csv", "-").exit_code == 2


def test_files_that_exist_are_kept_unless_forced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("precious")

    def never(*_: Any) -> None:
        raise AssertionError("ranks were started")

    result = call(monkeypatch, never, "latency", "--json", str(path))
    assert result.exit_code == 2
    assert "--force" in result.stderr
    assert path.read_text() == "precious"
    assert call(monkeypatch, told(), "latency", "--json", str(path), "--force").exit_code == 0
    assert json.loads(path.read_text())["schema"] == 1


def test_a_failed_sweep_keeps_what_it_has_and_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    result = call(monkeypatch, told(then=TimeoutError("late"), after=4), "latency", "--json", str(path))
    assert result.exit_code == 4
    document = json.loads(path.read_text())
    assert (document["complete"], len(document["rows"])) == (False, 4)


def test_a_sweep_without_any_row_leaves_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    call(monkeypatch, told(then=TimeoutError("late"), after=0), "latency", "--json", str(tmp_path / "out.json"))
    assert list(tmp_path.iterdir()) == []


def test_unverified_results_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    result = call(monkeypatch, told(), "latency", "--no-verify")
    assert result.exit_code == 0
    assert "# NOT VERIFIED" in result.stdout


@pytest.mark.parametrize("columns", ["40", "200"])
def test_output_fits_the_terminal_and_has_no_colours(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    result = call(monkeypatch, told(), "latency")
    lines = [line for line in result.stdout.splitlines() if "=" not in line]  # a long variable is not broken
    assert max(map(len, lines)) <= int(columns)
    assert "\x1b" not in result.output


def test_progress_is_shown_on_a_terminal_only() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    plan = Plan("latency", ("nvshmem",), True, ("native",), (8,))
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        with Reporter(plan, stream) as reporter:
            told()(plan, 2, reporter.handle)
        assert bool(stream.getvalue()) is shown


def test_backends_that_were_left_out_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(plan: Plan, ranks: int, sink: sweep.Sink) -> None:
        sink({"event": "unavailable", "backend": "nvshmem", "route": "native", "reason": "no heap"})
        told()(plan, ranks, sink)

    assert "# left out: nvshmem native: no heap" in call(monkeypatch, run, "latency").stdout


def test_the_cores_of_each_rank_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(plan: Plan, ranks: int, sink: sweep.Sink) -> None:
        def more(event: sweep.Event) -> None:
            if event["event"] == "begin":
                event["environment"]["binding"] = ["0-2,4", "5"]
            sink(event)

        told()(plan, ranks, more)

    assert "# cores by rank: 0-2,4; 5\n" in call(monkeypatch, run, "latency").stdout
    assert "cores by rank" not in call(monkeypatch, told(), "latency").stdout


def test_list_needs_no_test_and_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    result = call(monkeypatch, told(then=AssertionError()), "--list")
    assert result.exit_code == 0
    for name in (*TESTS, "nvshmem", "nccl_gin", "ibrc_proxy", "warp", "direct"):
        assert name in result.stdout


def test_help_states_exit_status_and_units() -> None:
    text = re.sub(r"\s+", " ", CliRunner().invoke(bench, ["--help"]).output)
    for part in ("4 a deadline passed", "1e9 bytes/s", "--max-bytes", "Examples"):
        assert part in text


def test_a_launchers_ranks_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(plan: Plan, sink: sweep.Sink) -> None:
        told()(plan, 3, sink)

    monkeypatch.setattr(sweep, "run", run)
    monkeypatch.setenv("GIN_SIZE", "3")
    monkeypatch.setenv("GIN_RANK", "0")
    first = call(monkeypatch, told(then=AssertionError()), "alltoall", "-e", "8")
    assert first.exit_code == 0
    assert "ranks=3" in first.stdout
    assert call(monkeypatch, told(), "alltoall", "--ranks", "2").exit_code == 2
    monkeypatch.setenv("GIN_RANK", "1")
    other = call(monkeypatch, told(then=AssertionError()), "alltoall", "-e", "8")
    assert (other.exit_code, other.output) == (0, "")


# -- gin info


def test_info_json_says_what_was_found_and_why_not() -> None:
    result = CliRunner().invoke(info, ["--json"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert [state["name"] for state in facts["backends"]] == ["nvshmem", "nccl_gin", "ibrc_proxy"]
    for kind in ("backends", "platforms", "wires"):
        for state in facts[kind]:
            assert state["usable"] or (state["reason"] and state["remedy"])
    assert {setting["name"] for setting in facts["config"]} >= {"backend", "platform", "wire", "route", "timeout"}
    assert all(setting["origin"] for setting in facts["config"])


def test_info_shows_origins_and_hides_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIN_BACKEND", "nccl_gin")
    monkeypatch.setenv("GIN_JOB_SECRET", "hunter2hunter2")
    for arguments in ([], ["--json"]):
        output = CliRunner().invoke(info, arguments).output
        assert "GIN_BACKEND" in output
        assert "hunter2" not in output


def test_info_names_a_compiler_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIN_CXX", "no-such-compiler")
    facts = json.loads(CliRunner().invoke(info, ["--json"]).stdout)
    host = next(state for state in facts["platforms"] if state["name"] == "host")
    assert not host["usable"]
    assert not any(state["usable"] for state in facts["backends"])


def test_info_with_a_wrong_setting_is_status_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIN_BACKEND", "mpi")
    result = CliRunner().invoke(info)
    assert result.exit_code == 2
    assert "mpi" in result.stderr

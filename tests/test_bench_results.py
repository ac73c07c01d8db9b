"""Rows, result files and the table."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gin.bench import results
from gin.bench.load import parse
from gin.bench.measure import durations, used_bytes, window_bytes
from gin.bench.plan import TESTS, Plan, Shape
from gin.bench.results import Output, recorded_variables, to_csv, to_json
from gin.bench.rows import Times, make_row
from gin.bench.table import number, render, render_all
from gin.bench.tests import operation

IDENTITY = {"backend": "nvshmem", "platform": "host", "wire": "shm", "route": "native", "ranks": 2, "contexts": 4}


def plan(test: str = "latency", **fields: Any) -> Plan:
    return Plan(test=test, backends=("nvshmem",), required=True, routes=("native",), sizes=(8, 1024), **fields)


def made_row(sweep: Plan, nbytes: int, *turns: list[float], wrong: int = 0, **identity: Any) -> Any:
    """A row of the sweep's first shape from the nanoseconds of its turns."""
    times = Times([np.array([turn]) for turn in turns], [1.0 for _ in turns], [2.0, 1.0])
    facts = {"warmup": 2, "iterations": 4, "steady": True, "wrong": wrong, "resolution_ns": 10}
    return make_row(sweep, next(sweep.shapes()), {**IDENTITY, **identity}, nbytes, times, **facts)


def row(
    nbytes: int = 8, backend: str = "nvshmem", route: str = "native", wrong: int | None = 0, us: float = 1.5
) -> Any:
    sweep = plan(verify=wrong is not None, samples=False)
    return made_row(sweep, nbytes, [2e3 * us] * 8, wrong=wrong or 0, backend=backend, route=route)


def test_row_begins_with_the_fields_of_the_schema_in_order() -> None:
    assert tuple(row())[: len(results.ROW_FIELDS)] == results.ROW_FIELDS
    assert set(row()) - set(results.ROW_FIELDS) <= {*results.MORE_FIELDS, "ends_us", "turns_us"}


def test_latency_is_half_the_round_trip() -> None:
    made = made_row(plan(), 8, [2000.0, 4000.0])
    assert made["samples_us"] == [1.0, 2.0]
    assert (made["min_us"], made["max_us"], made["mean_us"]) == (1.0, 2.0, 1.5)


def test_bandwidth_is_per_message_over_all_blocks() -> None:
    messages = operation("bandwidth", "put_signal").messages(1024)
    made = made_row(plan("bandwidth", ctas=(2,)), 1024, [1000.0 * messages * 2] * 3)
    assert made["median_us"] == pytest.approx(1.0)
    assert made["bandwidth_GBps"] == pytest.approx(1.024)
    assert made["rate_Mops"] == pytest.approx(1.0)


def test_both_ways_add_up() -> None:
    sweep = plan("bandwidth", operations=("put_signal_bidir",))
    messages = operation("bandwidth", "put_signal_bidir").messages(1024)
    assert made_row(sweep, 1024, [1000.0 * messages])["bandwidth_GBps"] == pytest.approx(2 * 1.024)


def test_alltoall_counts_what_a_rank_sends_to_the_others() -> None:
    made = made_row(plan("alltoall"), 1000, [2000.0], ranks=5)
    assert made["median_us"] == 2.0
    assert made["bandwidth_GBps"] == pytest.approx(4 * 1000 / 2e3)
    assert made["rate_Mops"] == pytest.approx(2.0)


def test_a_row_says_how_sure_its_median_is() -> None:
    made = made_row(plan(), 8, *[[2000.0 + 20 * i + j for j in range(9)] for i in range(8)])
    assert made["median_low_us"] < made["median_us"] < made["median_high_us"]
    assert len(made["turns_us"]) == 8
    assert made["samples"] == 72


def test_no_interval_is_narrower_than_the_clock() -> None:
    made = row(us=1.0)
    assert (made["median_low_us"], made["median_high_us"]) == (0.9975, 1.0025)


def test_few_samples_have_no_interval() -> None:
    for count, known in ((1, False), (5, False), (6, True)):
        made = made_row(plan(), 8, [2000.0 + i for i in range(count)], wrong=0)
        assert (made["median_low_us"] is not None, made["median_high_us"] is not None) == (known, known)
        assert made["step_us"] > 0
        whole = results.document([made], command=[], emulated=True, env={}, complete=True)
        assert parse(to_json(whole).encode(), "x").rows


def test_overlap_is_the_hidden_part_of_the_shorter() -> None:
    sweep = plan("overlap", samples=False)
    for both, percent in ((4000, 100.0), (5000, 66.67), (7000, 0.0), (9000, 0.0), (3000, 100.0)):
        times = Times([np.array([[4000], [3000], [both]])], [1.0], [1.0])
        facts = {"warmup": 0, "iterations": 1, "steady": None, "wrong": 0, "resolution_ns": 1}
        made = make_row(sweep, next(sweep.shapes()), IDENTITY, 4096, times, **facts)
        assert (made["median_us"], made["transfer_us"], made["compute_us"]) == (both / 1e3, 4.0, 3.0)
        assert made["overlap_percent"] == percent


def test_the_slower_end_is_reported() -> None:
    put = operation("latency", "put_signal")
    nothing = np.array([])
    ends = [
        [(0, np.array([[1, 1, 5]])), (1, nothing), (0, np.array([[1, 1, 1]]))],
        [(0, nothing), (1, np.array([[2, 3, 4]])), (0, nothing)],
    ]
    times = Times.of(put, ends)
    assert [turn.tolist() for turn in times.turns] == [[[2, 3, 4]]]
    assert times.ends == [1.0, 3.0]
    assert times.order == [1.0, 1.0, 1.0]


def test_the_slowest_rank_of_each_iteration_counts() -> None:
    times = Times.of(operation("alltoall", "put_signal"), [[(0, np.array([[1, 9]]))], [(0, np.array([[5, 2]]))]])
    assert [turn.tolist() for turn in times.turns] == [[[5, 9]]]


def test_durations_of_blocks() -> None:
    kept = np.array([[[[10, 14]], [[20, 21]]], [[[11, 16]], [[20, 25]]]])  # two blocks, two iterations, one part
    assert durations(operation("latency", "put_signal"), kept).tolist() == [[4, 1, 5, 5]]
    assert durations(operation("bandwidth", "put_signal"), kept).tolist() == [[6, 5]]
    assert durations(operation("alltoall", "put_signal"), kept).tolist() == [[6, 5]]  # blocks share the exchange
    assert durations(operation("latency", "barrier"), kept).tolist() == [[5, 5]]  # the slowest of them
    parts = np.array([[[[0, 1], [2, 4], [4, 7]], [[0, 2], [2, 3], [4, 9]]]])
    assert durations(operation("overlap", "put_signal"), parts).tolist() == [[1, 2], [2, 1], [3, 5]]


def test_rows_that_were_not_verified_do_not_claim_to_be_right() -> None:
    assert row(wrong=None)["wrong"] is None


def test_a_clock_that_stands_still_gives_no_infinite_rate() -> None:
    made = row(us=0.0)
    assert made["rate_Mops"] is None
    json.loads(to_json(document([made])))


def test_samples_are_kept_unless_told_otherwise() -> None:
    assert made_row(plan(), 8, [2.0], [4.0])["samples_us"] == [0.001, 0.002]
    assert "samples_us" not in made_row(plan(samples=False), 8, [2.0])


@pytest.mark.parametrize(("test", "op"), [(t, o.name) for t in TESTS for o in TESTS[t].operations])
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_windows_hold_every_size(test: str, op: str, ranks: int) -> None:
    sizes = (0, 1, 7, 8, 4097, 1 << 20)
    sweep = Plan(test, (), True, (), sizes, operations=(op,), ctas=(1, 3), scopes=("thread", "block"))
    for shape, nbytes in sweep.points():
        assert isinstance(shape, Shape)
        assert used_bytes(shape, nbytes, ranks) + 64 <= window_bytes(sweep, ranks)
        assert used_bytes(shape, nbytes, ranks) >= nbytes


def document(rows: list[Any], **fields: Any) -> dict[str, Any]:
    return results.document(rows, command=["gin", "bench"], emulated=True, env={"gin": "1"}, complete=True, **fields)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_json_document(count: int) -> None:
    parsed = json.loads(to_json(document([row()] * count)))
    assert parsed["schema"] == 1
    assert parsed["tool"].startswith("gin ")
    assert parsed["command"] == ["gin", "bench"]
    assert parsed["emulated"] is True
    assert parsed["environment"] == {"gin": "1"}
    assert parsed["rows"] == [row()] * count


def test_csv_has_one_line_per_row_and_empty_cells_for_nothing() -> None:
    lines = list(csv.DictReader(io.StringIO(to_csv([row(), row(1024, wrong=None)]))))
    assert [line["bytes"] for line in lines] == ["8", "1024"]
    assert tuple(lines[0]) == (*results.ROW_FIELDS, *results.MORE_FIELDS)
    assert [line["wrong"] for line in lines] == ["0", ""]


def test_only_variables_that_matter_are_recorded_and_no_secret() -> None:
    given = {
        "GIN_BACKEND": "nvshmem",
        "GIN_JOB_SECRET": "x",
        "GIN_RANK": "1",
        "GIN_RENDEZVOUS": "unix:@x",
        "NCCL_DEBUG": "INFO",
        "UCX_TLS": "shm",
        "CUDA_API_TOKEN": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "HOME": "/root",
        "XGIN_A": "x",
    }
    assert recorded_variables(given) == {"GIN_BACKEND": "nvshmem", "NCCL_DEBUG": "INFO", "UCX_TLS": "shm"}


def test_environment_names_neither_person_nor_host() -> None:
    text = json.dumps(results.environment())
    assert os.uname().nodename not in text or len(os.uname().nodename) < 4


# -- files


def test_output_appears_whole_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    output = Output(str(path))
    assert not path.exists()
    output.write("text")
    output.discard()
    assert path.read_text() == "text"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.json"]
    assert stat.S_IMODE(path.stat().st_mode) & 0o111 == 0


def test_output_never_overwrites_silently(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("precious")
    with pytest.raises(FileExistsError):
        Output(str(path))
    forced = Output(str(path), force=True)
    assert path.read_text() == "precious"
    forced.write("new")
    assert path.read_text() == "new"


def test_output_respects_a_file_that_appeared_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    output = Output(str(path))
    path.write_text("precious")
    with pytest.raises(FileExistsError):
        output.write("new")
    output.discard()
    assert path.read_text() == "precious"
    assert len(list(tmp_path.iterdir())) == 1


def test_output_discarded_leaves_nothing(tmp_path: Path) -> None:
    Output(str(tmp_path / "out.json")).discard()
    assert list(tmp_path.iterdir()) == []


def test_output_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: str, target: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    path = tmp_path / "out.json"
    first, second = Output(str(path)), Output(str(path))
    first.write("first")
    with pytest.raises(FileExistsError):
        second.write("second")
    second.discard()
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_output_follows_a_link_that_it_may_replace(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "out.json").write_text("old")
    (tmp_path / "link").symlink_to(there / "out.json")
    Output(str(tmp_path / "link"), force=True).write("new")
    assert (tmp_path / "link").is_symlink()
    assert (there / "out.json").read_text() == "new"


def test_output_of_the_longest_name(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    Output(str(path)).write("x")
    assert path.read_text() == "x"


@pytest.mark.parametrize("path", ["", "missing/out.json", ".", "/proc/out.json", "n" * 256])
def test_output_that_cannot_be_written_is_noticed_at_once(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match=r"folder|No such|denied|not permitted|empty|too long"):
        Output(path)


def test_output_to_a_device_and_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    Output("/dev/null").write("text")
    Output("-").write("text\n")
    assert capsys.readouterr().out == "text\n"


# -- table

BACKENDS = ("nvshmem", "nccl_gin", "ibrc_proxy")


def table(width: int, **fields: Any) -> list[str]:
    rows = [row(n, b, r, us=n / 7, **fields) for n in (8, 1 << 20) for b in BACKENDS for r in ("native", "direct")]
    return render(rows, ("median_us", "p99_us"), width).splitlines()


def test_wide_table_has_one_line_per_size_and_all_columns() -> None:
    lines = table(200)
    assert len(lines) == 3 + 2
    assert max(map(len, lines)) <= 200
    assert lines[0].split() == [b for b in BACKENDS for _ in range(2)]
    assert lines[1].split() == ["native", "direct"] * 3
    assert lines[2].count("median us") == lines[2].count("p99 us") == 6
    assert lines[3].split() == ["8"] + ["1.143"] * 12
    assert lines[4].split()[0] == "1M"
    assert len({len(line) for line in lines}) == 1


def test_middling_table_drops_the_less_important_columns() -> None:
    lines = table(100)
    assert max(map(len, lines)) <= 100
    assert "p99" not in lines[2]
    assert lines[2].count("median us") == 6


@pytest.mark.parametrize("width", [1, 40, 50])
def test_narrow_table_lists_the_backends_below_each_other(width: int) -> None:
    lines = table(width)
    assert max(map(len, lines)) <= 40
    assert len(lines) == 1 + 2 * 6
    assert lines[1].split() == ["8", "nvshmem", "native", "1.143"]


def test_wrong_rows_are_marked() -> None:
    assert "1.500!" in render([row(wrong=3)], ("median_us",), 80)
    assert "1.500!" not in render([row()], ("median_us",), 80)


def test_rows_that_are_missing_are_dashes() -> None:
    rows = [row(8), row(8, "nccl_gin"), row(16)]
    assert render(rows, ("median_us",), 80).splitlines()[-1].split() == ["16", "1.500", "-"]


def test_a_table_for_each_geometry() -> None:
    rows = [{**row(n), "ctas": ctas, "ranks": 2} for ctas in (1, 4) for n in (8, 16)]
    text = render_all(rows, ("median_us", "spread"), 80)
    assert [line for line in text.splitlines() if "=" in line] == ["ctas=1", "ctas=4"]
    assert render_all(rows[:2], ("median_us",), 80) == render(rows[:2], ("median_us",), 80)


def test_no_rows() -> None:
    assert render([], ("median_us",), 80) == "no rows\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0.000"),
        (0.12345, "0.123"),
        (9.9996, "10.000"),
        (12.345, "12.35"),
        (123.45, "123.5"),
        (1e6, "1000000"),
    ],
)
def test_number(value: float | None, text: str) -> None:
    assert number(value) == text

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
from gin.bench.measure import Taken, make_row, microseconds, used_bytes, window_bytes
from gin.bench.plan import TESTS, Plan
from gin.bench.results import Output, recorded_variables, to_csv, to_json
from gin.bench.table import number, render

IDENTITY = {"backend": "nvshmem", "platform": "host", "wire": "shm", "route": "native", "ranks": 2}


def plan(test: str = "latency", **fields: Any) -> Plan:
    return Plan(test=test, backends=("nvshmem",), required=True, routes=("native",), sizes=(8, 1024), **fields)


def row(
    nbytes: int = 8, backend: str = "nvshmem", route: str = "native", wrong: int | None = 0, us: float = 1.5
) -> Any:
    return make_row(
        plan(verify=wrong is not None),
        {**IDENTITY, "backend": backend, "route": route},
        nbytes,
        Taken(iterations=4, warmup=2),
        np.full(4, us),
        wrong or 0,
    )


def test_row_has_the_fields_of_the_schema_in_order() -> None:
    assert tuple(row()) == results.ROW_FIELDS


def test_latency_is_half_the_round_trip() -> None:
    times = microseconds(plan(), 8, np.array([[2000.0, 4000.0]]))
    assert times.tolist() == [1.0, 2.0]


def test_bandwidth_is_per_message_over_all_blocks() -> None:
    sweep = plan("bandwidth", ctas=2)
    messages = TESTS["bandwidth"].messages(1024)
    nanoseconds = 1000.0 * messages * 2
    times = microseconds(sweep, 1024, np.full((2, 3), nanoseconds))
    assert times == pytest.approx(np.full(6, 1.0))
    made = make_row(sweep, IDENTITY, 1024, Taken(), times, 0)
    assert made["bandwidth_GBps"] == pytest.approx(1.024)
    assert made["rate_Mops"] == pytest.approx(1.0)


def test_alltoall_counts_what_a_rank_sends_to_the_others() -> None:
    assert microseconds(plan("alltoall"), 8, np.array([[3000.0, 9000.0]])).tolist() == [3.0, 9.0]
    made = make_row(plan("alltoall"), {**IDENTITY, "ranks": 5}, 1000, Taken(), np.array([2.0]), 0)
    assert made["bandwidth_GBps"] == pytest.approx(4 * 1000 / 2e3)
    assert made["rate_Mops"] == pytest.approx(2.0)


def test_rows_that_were_not_verified_do_not_claim_to_be_right() -> None:
    assert row(wrong=None)["wrong"] is None


def test_a_clock_that_stands_still_gives_no_infinite_rate() -> None:
    made = row(us=0.0)
    assert made["rate_Mops"] is None
    json.loads(to_json(document([made])))


def test_samples_are_kept_on_request() -> None:
    made = make_row(plan(samples=True), IDENTITY, 8, Taken(), np.array([1.0, 2.0]), 0)
    assert made["samples_us"] == [1.0, 2.0]


@pytest.mark.parametrize("test", list(TESTS))
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_windows_hold_every_size(test: str, ranks: int) -> None:
    sweep = Plan(test=test, backends=(), required=True, routes=(), sizes=(0, 1, 7, 8, 4097, 1 << 20), ctas=3)
    for nbytes in sweep.sizes:
        assert used_bytes(sweep, nbytes, ranks) + 64 <= window_bytes(sweep, ranks)
        assert used_bytes(sweep, nbytes, ranks) >= nbytes


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
    assert tuple(lines[0]) == results.ROW_FIELDS
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


@pytest.mark.parametrize("path", ["missing/out.json", ".", "/proc/out.json"])
def test_output_that_cannot_be_written_is_noticed_at_once(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match=r"folder|No such|denied|not permitted"):
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

"""`gin compare` as a command: exit status, output, and what bad input gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from made import row, written

from gin.cli.compare import command


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with base.json, new.json (twice as slow), hardware.json, wrong.json and single.json."""
    rows = [row(us, backend=name) for name, us in (("nvshmem", 1.0), ("nccl_gin", 1.5))]
    slow = [row(2 * us, backend=name) for name, us in (("nvshmem", 1.0), ("nccl_gin", 1.5))]
    written(tmp_path / "base.json", *rows)
    written(tmp_path / "new.json", *slow)
    written(tmp_path / "hardware.json", *rows, emulated=False)
    written(tmp_path / "wrong.json", rows[0], {**rows[1], "wrong": 4})
    written(tmp_path / "allwrong.json", *({**made, "wrong": 4} for made in rows))
    written(tmp_path / "single.json", rows[0])
    written(tmp_path / "none.json")
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "bounds").write_text("# bounds\nmedian_us: new / base > 1.1\n")
    (tmp_path / "nothing").write_text("# nothing\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ("base.json", 0),
        ("base.json new.json", 0),
        ("base.json new.json --thresholds bounds", 1),
        ("new.json base.json --thresholds bounds", 2),
        ("new.json base.json single.json --thresholds bounds", 2),
        ("new.json single.json --thresholds bounds", 2),
        ("base.json single.json --thresholds bounds", 0),
        ("base.json base.json", 2),
        ("wrong.json", 1),
        ("base.json wrong.json", 1),
        ("wrong.json base.json", 0),  # a change that mends it
        ("base.json wrong.json --thresholds bounds", 1),
        ("base.json allwrong.json --thresholds bounds", 1),
        ("base.json hardware.json", 2),
        ("base.json hardware.json --ignore emulated", 0),
        ("single.json", 2),
        ("none.json", 2),
        ("empty.json", 2),
        ("missing.json", 2),
        ("base.json --by colour", 2),
        ("base.json --by file", 2),
        ("base.json --base mpi", 2),
        ("base.json --metric speed", 2),
        ("base.json --metric p99_us", 0),
        ("base.json --where bytes<=1K", 0),
        ("base.json --where bytes>1K", 2),
        ("base.json --where bytes", 2),
        ("base.json --where bakend!=nvshmem", 2),
        ("base.json --where bytes!=8K", 0),
        ("base.json --where bytes!=few", 2),
        ("base.json --where backend>3", 2),
        ("base.json --where turns_us<3", 2),
        ("base.json --metric overlap_percent", 0),
        ("base.json --ignore colour", 2),
        ("base.json --thresholds missing", 2),
        ("base.json --thresholds nothing", 2),
        ("base.json --thresholds .", 2),
        ("base.json --markdown --json", 2),
        ("base.json -o out", 2),
        ("base.json --json -o missing/out", 2),
        ("base.json --json -o new.json", 2),
        ("base.json --json -o .", 2),
        ("base.json --json -o new.json --force", 0),
        ("base.json --json -o -", 0),
        ("", 2),
    ],
)
def test_exit_status(here: Path, arguments: str, status: int) -> None:
    result = call(*arguments.split())
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.output
    if status == 2:
        assert result.stderr
        assert result.stdout == ""


@pytest.mark.parametrize(
    ("threshold", "status"),
    [
        ("latency.median_us: nccl_gin / nvshmem > 1.2 @ bytes<=1K", 1),
        ("latency.median_us: nccl_gin / nvshmem > 1.6", 0),
        ("rate.median_us: nccl_gin / nvshmem > 1.6", 2),
        ("nonsense", 2),
    ],
)
def test_fail_if(here: Path, threshold: str, status: int) -> None:
    assert call("base.json", "--fail-if", threshold).exit_code == status


def test_a_threshold_alone_needs_nothing_to_compare_with(here: Path) -> None:
    result = call("single.json", "--fail-if", "median_us: nvshmem > 10")
    assert result.exit_code == 0, result.output
    assert "kept by the only row" in result.stdout


def test_wrong_data_of_the_base_alone_is_said_to_fail_nothing(here: Path) -> None:
    done = call("wrong.json", "base.json")
    assert done.exit_code == 0 and "WRONG DATA in wrong" in done.stdout and "it fails nothing" in done.stdout
    done = call("base.json", "wrong.json", "--markdown")
    assert done.exit_code == 1 and "fails nothing" not in done.stdout
    assert done.stdout.splitlines()[2].startswith("- **WRONG DATA in wrong: 4 elements in 1 row, marked")
    kept = call("base.json", "wrong.json", "--where", "backend=nvshmem")
    assert kept.exit_code == 0 and "WRONG DATA" not in kept.stdout  # the rows that are shown have none


def test_what_a_threshold_could_not_be_held_against_is_said(here: Path) -> None:
    assert (
        "kept by the only row, 1 more without a value"
        in call("base.json", "wrong.json", "--thresholds", "bounds").stdout
    )
    assert "NOT TESTED, 2 rows" in call("base.json", "allwrong.json", "--thresholds", "bounds").stdout
    assert "**not tested**" in call("base.json", "allwrong.json", "--thresholds", "bounds", "--markdown").stdout
    alone = call("wrong.json", "--fail-if", "median_us: nccl_gin > 1")
    assert "CROSSED" not in alone.stdout
    assert alone.exit_code == 1


def test_what_was_compared_against_the_rules_is_said(here: Path) -> None:
    result = call("base.json", "hardware.json", "--ignore", "emulated", "--markdown")
    assert "EMULATION COMPARED WITH HARDWARE" in result.stdout


def test_json_output(here: Path) -> None:
    result = call("base.json", "new.json", "--thresholds", "bounds", "--json", "-o", "out.json")
    assert result.exit_code == 1
    made = json.loads((here / "out.json").read_text())
    assert [pair["ratio"] for pair in made["pairs"]] == [2.0, 2.0]
    assert made["thresholds"][0]["crossed"] is True
    assert "CROSSED by 2 of 2 rows" in result.stdout


def test_an_unwritable_output_is_noticed_before_anything_else(here: Path) -> None:
    result = call("missing.json", "--json", "-o", "")
    assert "cannot write ''" in result.stderr


def test_the_order_of_files_decides_which_is_base(here: Path) -> None:
    result = call("new.json", "base.json", "--thresholds", "bounds")
    assert "give the files in the order base, new" in result.stderr
    assert call("new.json", "base.json", "--fail-if", "median_us: single / new > 1").exit_code == 2


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("\ufeffmedian_us: new / base > 1.1\r\n", 1),
        ('median_us: new / base > 1.1 @ backend="x#y"  # a name with its sign\n', 2),
        ('median_us: "ba#se" / base > 1.1\n', 2),
        ("median_us: new / base > 1.1 # @ bytes>1M\n", 1),
        ('# "one quote\nmedian_us: new / base > 3\n', 0),
    ],
)
def test_thresholds_as_editors_leave_them(here: Path, text: str, status: int) -> None:
    (here / "bounds").write_text(text)
    result = call("base.json", "new.json", "--thresholds", "bounds")
    assert result.exit_code == status, result.output
    assert "expected" not in result.stderr


def test_markdown_names_the_rows_that_cross(here: Path) -> None:
    text = call("base.json", "new.json", "--thresholds", "bounds", "--markdown").stdout
    assert "  - 2  backend=nvshmem\n  - 2  backend=nccl\\_gin\n" in text


def test_markdown_goes_to_standard_output_alone(here: Path) -> None:
    result = call("base.json", "--markdown")
    assert result.stdout.startswith("### gin compare\n")


def test_standard_input(here: Path) -> None:
    text = (here / "base.json").read_text()
    result = CliRunner().invoke(command, ["-", "new.json"], input=text)
    assert result.exit_code == 0, result.output
    assert "standard input" in result.stdout


@pytest.mark.parametrize("columns", ["40", "100"])
def test_output_fits_the_terminal(here: Path, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    long = "latency.median_us: new / base > 1.1 @ bytes<=1K, route=native, platform=host, wire=shm"
    result = call("base.json", "new.json", "--fail-if", long, "--ignore", "scope,threads,contexts")
    assert result.exit_code == 1
    assert max(map(len, result.stdout.splitlines())) <= int(columns)
    assert "\x1b" not in result.output


def test_help_has_examples_and_the_grammar() -> None:
    text = CliRunner().invoke(command, ["--help"]).output
    for part in ("Examples:", "Exit status: 0 compared", "new / base > 1.1"):
        assert part in text

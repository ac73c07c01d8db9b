"""What a report holds, the command that writes it, and what bad input gets."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from made import results, row, written

from gin.bench.load import ResultFile
from gin.cli.report import command
from gin.report.data import NUMBERS, TEXTS, payload, to_json
from gin.report.findings import findings
from gin.report.page import render


def rows_of(payload_: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows as the page's script unfolds them."""

    def unfold(name: str, i: int) -> Any:
        column = payload_["columns"].get(name)
        raw = None if column is None else column["all"] if isinstance(column, dict) else column[i]
        return payload_["texts"][name][raw] if name in TEXTS else raw

    return [{name: unfold(name, i) for name in (*TEXTS, *NUMBERS)} for i in range(payload_["count"])]


def test_every_number_is_there() -> None:
    given = [
        row(1.25, contexts=4, steady=True, drift=-0.1, wrong=None),
        row(2.5, backend="nccl_gin", bytes=1 << 40, bandwidth_GBps=None, contexts=4, overlap_percent=12.5),
    ]
    for shown, told in zip(rows_of(payload([results(*given)], "x")), given, strict=True):
        for name in (*TEXTS[1:], *NUMBERS):
            assert shown[name] == told.get(name), name


def test_distributions_are_percentiles_of_the_samples() -> None:
    samples = [float(i) for i in range(1, 1001)]
    given = row(500.0, samples_us=samples), row(bytes=16)
    made = payload([results(*given)], "x")
    assert dict(zip(made["levels"], made["quantiles"][0], strict=True))[99] == 990
    assert made["quantiles"][1] is None


def test_many_rows_have_coarser_distributions() -> None:
    given = [row(1 + n / 7, bytes=n, samples_us=[1.0, 2.0]) for n in range(2001)]
    assert len(payload([results(*given)], "x")["levels"]) == 6


def test_data_cannot_leave_its_element() -> None:
    nasty = "</script><script>alert(1)</script><!--"
    title = f"{nasty}</noscript>\u2028"
    page = render([results(row(backend=nasty), command=[nasty], complete=False)], title)
    assert page.count("</script>") == 2
    assert page.count("</noscript>") == 1
    assert "<script>alert" not in page
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["title"] == title


@pytest.mark.parametrize("mark", ["@TITLE@", "@WORDS@", "@STYLE@", "@DATA@", "@SCRIPT@"])
def test_marks_inside_the_data_are_left_alone(mark: str) -> None:
    page = render([results(row(backend=mark))], mark)
    assert f"<title>{mark}</title>" in page
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["texts"]["backend"] == [mark]


def test_without_scripts_what_was_found_is_said() -> None:
    page = render([results(row(), row(2.0, backend="nccl_gin"), complete=False)], "A & B")
    words = page[page.index("<noscript>") : page.index("</noscript>")]
    parts = (
        "<h1>A &amp; B</h1>",
        "nvshmem: 1 us",
        "nccl_gin: 2.000 times",
        "ended early",
        "native: the backend&#x27;s own",
    )
    for part in parts:
        assert part in words
    assert "direct:" not in words


def test_the_page_asks_for_nothing() -> None:
    page = render([results(row())], "x")
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#)""", page)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)
    assert "default-src 'none'" in page


def test_numbers_are_strict_json() -> None:
    with pytest.raises(ValueError, match="JSON"):
        to_json(float("nan"))


# -- files together


def warned(*files: ResultFile) -> list[str]:
    return [text for text in payload(files, "x")["warnings"] if "measured" in text]


def measured(us: float, **fields: Any) -> dict[str, Any]:
    return row(us, median_low_us=us * 0.99, median_high_us=us * 1.01, **fields)


def test_two_runs_that_disagree_by_more_than_their_intervals() -> None:
    one = results(measured(1), measured(2, bytes=16), measured(3, bytes=32), measured(4, bytes=64), name="a")
    other = results(measured(1.005), measured(2.2, bytes=16), measured(2.4, bytes=32), name="b")
    (text,) = warned(one, other)
    assert text.startswith("a and b measured 3 rows alike; 2 of them differ by more than their intervals, up to 1.25 ")


def test_files_that_are_not_alike_do_not_disagree() -> None:
    one = results(measured(1), name="a")
    assert warned(one) == []
    assert warned(one, results(measured(1.001), name="b")) == []
    assert warned(one, results(measured(2, backend="nccl_gin"), name="b")) == []
    assert warned(one, results(row(2), name="b")) == []  # without intervals
    assert warned(one, results(measured(2, wrong=1), name="b")) == []
    assert warned(one, results(measured(2), name="b", emulated=False)) == []
    assert warned(one, results(measured(2), name="b", environment={"gin": "0.1.0", "cpu": "Another"})) == []


# -- findings


def test_what_is_best_at_small_and_at_large_sizes() -> None:
    given = [
        row(us, backend=name, bytes=nbytes, median_low_us=us * 0.98, median_high_us=us * 1.02)
        for nbytes, times in ((8, (1.0, 1.01, 2.0)), (64, (4.0, 3.0, 2.0)), (4096, (9.0, 6.0, 3.0)))
        for name, us in zip(("nvshmem", "nccl_gin", "ibrc_proxy"), times, strict=True)
    ]
    first, last = findings([results(*given)], ["a"])
    assert first == {
        "file": "a",
        "bytes": "8",
        "what": "latency put_signal, native",
        "best": "nvshmem: 1 us (0.98 to 1.02)",
        "level": "nccl_gin: 1.010 times (0.982 to 1.039)",
        "next": "ibrc_proxy: 2.000 times (1.944 to 2.057)",
        "doubt": "",
    }
    assert last["bytes"] == "64 to 4K"
    assert last["best"] == "ibrc_proxy: 2 to 3 us"
    assert last["next"].startswith("nccl_gin: 1.500 to 2.000 times") and "; nvshmem: 2.000 to 3.000" in last["next"]


def test_routes_are_told_apart() -> None:
    given = [
        row(us, backend=name, route=route)
        for us, name, route in ((1.0, "nvshmem", "direct"), (2.0, "nvshmem", "native"))
    ]
    given += [row(us, backend="nccl_gin", route=route) for us, route in ((1.5, "direct"), (1.0, "native"))]
    direct, native = findings([results(*given)], ["a"])
    assert direct["what"] == "latency put_signal, direct" and direct["best"].startswith("nvshmem: 1 us")
    assert native["what"] == "latency put_signal, native" and native["next"].startswith("nvshmem: 2.000")


@pytest.mark.parametrize(("us", "level"), [(1.019, True), (1.03, False)])
def test_what_differs_by_little_is_level_however_sure_it_is(us: float, level: bool) -> None:
    given = [row(1.0, median_low_us=1.0, median_high_us=1.0)]
    given += [row(us, backend="nccl_gin", median_low_us=us, median_high_us=us)]
    (line,) = findings([results(*given)], ["a"])
    assert line["level" if level else "next"].startswith("nccl_gin: 1.0") and not line["next" if level else "level"]


def test_sizes_with_the_same_in_front_are_one_line() -> None:
    def at(nbytes: int, backend: str, us: float, **more: Any) -> Any:
        return row(us, backend=backend, bytes=nbytes, median_low_us=us * 0.99, median_high_us=us * 1.01, **more)

    given = [at(n, "nvshmem", us) for n, us in ((8, 2.0), (64, 2.2), (512, 9.0), (4096, 20.0))]
    given += [at(n, "nccl_gin", us) for n, us in ((8, 3.0), (64, 4.4), (512, 6.0), (4096, 8.0))]
    given += [at(n, "ibrc_proxy", us) for n, us in ((8, 3.2), (64, 3.3), (512, 7.0), (4096, 8.01))]
    small, middle, large = findings([results(*given)], ["a"])
    assert (small["bytes"], middle["bytes"], large["bytes"]) == ("8 to 64", "512", "4K")
    assert small["best"] == "nvshmem: 2 to 2.2 us"
    others = "nccl_gin: 1.500 to 2.000 times (1.479 to 2.028); ibrc_proxy: 1.500 to 1.600 times (1.479 to 1.623)"
    assert small["next"] == others
    assert middle["next"].startswith("ibrc_proxy: 1.167 times")
    assert large["level"].startswith("ibrc_proxy: 1.001 times")


def test_a_line_has_one_base_where_those_in_front_change_places() -> None:
    def at(nbytes: int, backend: str, us: float, reach: float) -> Any:
        return row(us, backend=backend, bytes=nbytes, median_low_us=us - reach, median_high_us=us + reach)

    given = [at(8, "nvshmem", 2.0, 0.02), at(8, "nccl_gin", 2.1, 0.2), at(8, "ibrc_proxy", 2.15, 0.02)]
    given += [at(64, "nvshmem", 3.1, 0.2), at(64, "nccl_gin", 3.0, 0.02), at(64, "ibrc_proxy", 3.6, 0.02)]
    (line,) = findings([results(*given)], ["a"])
    assert line["best"] == "nvshmem: 2 to 3.1 us" and line["level"].startswith("nccl_gin: 0.968 to 1.050 times")
    assert line["next"].startswith("ibrc_proxy: 1.075 to 1.161 times")


def test_doubtful_figures_are_named_where_they_are_used() -> None:
    given = [
        row(1.0, backend="nvshmem", outliers=5, samples=100, steady=False),
        row(2.0, backend="nccl_gin", drift=0.3, drifted=True, samples=100),
        row(3.0, backend="ibrc_proxy", steady=False),
    ]
    (line,) = findings([results(*given)], ["a"])
    assert line["doubt"] == "outliers: 1 of 3 rows; not steady: 2 of 3 rows; drift: 1 of 3 rows"
    page = render([results(*given)], "x")
    assert "not steady when measuring began: 2 of 3 rows" in page


def test_more_bandwidth_is_better_and_wrong_rows_are_not_best() -> None:
    given = [
        row(1.0, test="bandwidth", backend="nvshmem", wrong=1),
        row(2.0, test="bandwidth", backend="nccl_gin"),
        row(3.0, test="bandwidth", backend="ibrc_proxy"),
    ]
    (line,) = findings([results(*given)], ["a"])
    assert line["best"].startswith("nccl_gin: 0.004 GB/s")


@pytest.mark.parametrize("given", [[], [row(wrong=1)], [row(median_us=0.0, min_us=0.0)]])
def test_nothing_is_best_of_nothing(given: list[Any]) -> None:
    assert findings([results(*given)], ["a"]) == []


def test_tests_of_later_versions_are_shown_too() -> None:
    assert findings([results(row(test="teleport"))], ["a"])[0]["what"] == "teleport put_signal, native"
    assert "teleport" in render([results(row(test="teleport"))], "x")


# -- the command


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    written(tmp_path / "good.json", row(), row(2.0, backend="nccl_gin"))
    written(tmp_path / "wrong.json", row(wrong=3))
    written(tmp_path / "none.json")
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "there.html").write_text("precious")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ("good.json -o out.html", 0),
        ("good.json none.json -o out.html", 0),
        ("none.json -o out.html", 0),
        ("good.json wrong.json -o out.html", 1),
        ("good.json", 2),
        ("good.json good.json -o out.html", 2),
        ("empty.json -o out.html", 2),
        ("missing.json -o out.html", 2),
        ("good.json -o missing/out.html", 2),
        ("good.json -o .", 2),
        ("good.json -o ", 2),
        ("good.json -o there.html", 2),
        ("-o out.html", 2),
    ],
)
def test_exit_status(here: Path, arguments: str, status: int) -> None:
    before = {entry.name for entry in here.iterdir()}
    result = call(*arguments.split(" "))
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.output
    left = {entry.name for entry in here.iterdir()} - before
    assert left == ({"out.html"} if status < 2 else set())
    assert (here / "there.html").read_text() == "precious"


def test_wrong_data_is_said(here: Path) -> None:
    assert "WRONG DATA: 3 elements" in call("wrong.json", "-o", "out.html").stderr


def test_standard_output_and_force(here: Path) -> None:
    assert call("good.json", "-o", "-").stdout.startswith("<!doctype html>")
    assert call("good.json", "-o", "there.html", "--force", "--title", "A & B").exit_code == 0
    assert "<title>A &amp; B</title>" in (here / "there.html").read_text()


def test_pictures(here: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib draws the pictures: pip install 'gin[report]'")
    rows = [row(1.0 + n, bytes=n, median_low_us=0.9 + n, median_high_us=1.1 + n) for n in (0, 1, 4096)]
    written(here / "more.json", *rows, row(test="rate", op="put"), row(scope="block"))
    assert call("more.json", "--png", "figures").exit_code == 0
    made = {entry.name: entry.read_bytes() for entry in (here / "figures").iterdir()}
    assert set(made) == {"latency-put_signal.png", "latency-put_signal-2.png", "rate-put.png"}
    assert all(data.startswith(b"\x89PNG") for data in made.values())
    assert call("more.json", "--png", "figures").exit_code == 2
    assert call("more.json", "--png", "figures", "--force").exit_code == 0
    assert call("more.json", "--png", "good.json").exit_code == 2


def test_pictures_of_foreign_names_stay_in_their_folder(here: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib draws the pictures: pip install 'gin[report]'")
    names = ("/absolute", "../../up", r"$\frac{$")
    written(here / "foreign.json", *(row(test=name, op=name, backend=backend) for name in names for backend in "_$"))
    result = call("foreign.json", "--png", "deep/figures")
    assert result.exit_code == 0, result.output
    assert {path.parent.name for path in here.rglob("*.png")} == {"figures"}
    assert len(list((here / "deep/figures").iterdir())) == len(names)


def test_a_reader_that_leaves_is_no_traceback(here: Path) -> None:
    command = [sys.executable, "-P", "-m", "gin", "report", "good.json", "-o", "-"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert said == "gin report: cannot write -: Broken pipe\n"
    assert process.returncode == 2


def test_help_has_examples() -> None:
    assert "Examples:" in CliRunner().invoke(command, ["--help"]).output

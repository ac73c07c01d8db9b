"""The report in a real browser: what it shows, how fast, to whom."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import CHROMIUM, Browser
from made import results, row

from gin.report.page import render

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt-get install chromium)")

SIZES = [8 << i for i in range(18)]
SERIES = [(backend, route) for backend in ("nvshmem", "nccl_gin", "ibrc_proxy") for route in ("native", "direct")]


def sweep(**fields: Any) -> list[dict[str, Any]]:
    rows = []
    for place, (backend, route) in enumerate(SERIES):
        for nbytes in SIZES:
            us = float(f"{(1 + place / 5) * (1 + nbytes / 1e4):.5g}")
            interval = {"median_low_us": us * 0.99, "median_high_us": us * 1.01, "samples": 3}
            samples = [us / 2, us, 9 * us]
            rows.append(
                row(
                    us, backend=backend, route=route, bytes=nbytes, samples_us=samples, contexts=4, **interval, **fields
                )
            )
    return rows


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    rates = [
        row(us, test="rate", op="put", backend=backend, ctas=ctas, contexts=contexts)
        for backend, us in (("nvshmem", 1.0), ("nccl_gin", 2.0))
        for ctas in (1, 2, 4)
        for contexts in (1, 4)
    ]
    wrong = row(5.0, test="alltoall", wrong=7)
    path.write_text(render([results(*sweep(), *rates, wrong)], "Some <b>title</b> & more"))
    return path


@pytest.fixture
def shown(browser: Browser, page: Path) -> Browser:
    browser.errors.clear()
    browser.requests.clear()
    browser.open(page)
    return browser


def count(browser: Browser, selector: str) -> int:
    return int(browser.run(f"document.querySelectorAll({selector!r}).length"))


def test_everything_is_drawn_and_nothing_is_asked_for(shown: Browser, page: Path) -> None:
    assert shown.run("document.title") == "Some <b>title</b> & more"
    assert shown.run("document.querySelector('h1').textContent") == "Some <b>title</b> & more"
    assert count(shown, "h1 b") == 0
    assert shown.run("[...document.querySelectorAll('section h2')].map((h) => h.textContent)") == [
        "What is best for what",
        "latency: put_signal",
        "rate: put",
        "alltoall: put_signal",
        "Where the numbers come from",
    ]
    first = "#latency-put_signal-head"
    assert (
        shown.run(f"document.querySelector('{first}').parentElement.querySelectorAll('.chart polyline').length") == 12
    )
    assert shown.errors == []
    assert shown.requests == [page.resolve().as_uri()]


def test_emulation_and_wrong_data_are_said(shown: Browser) -> None:
    text = shown.run("document.body.innerText")
    assert "are not hardware timings" in text
    assert "Wrong data in 1 rows" in text


@pytest.mark.parametrize("dark", [False, True])
def test_colours_have_contrast(browser: Browser, page: Path, dark: bool) -> None:
    browser.open(page, dark=dark)
    script = """(() => {
      const style = getComputedStyle(document.documentElement);
      const bright = (name) => {
        const hex = style.getPropertyValue(name).trim().slice(1);
        const part = (i) => { const c = parseInt(hex.slice(2 * i, 2 * i + 2), 16) / 255;
          return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
        return 0.2126 * part(0) + 0.7152 * part(1) + 0.0722 * part(2);
      };
      const ratio = (a, b) => {
        const [x, y] = [bright(a), bright(b)].sort((p, q) => q - p);
        return (x + 0.05) / (y + 0.05);
      };
      const lines = [...Array(8).keys()].map((i) => ratio(`--s${i}`, "--card"));
      return [Math.min(...lines), ratio("--fore", "--back"), ratio("--soft", "--back"), ratio("--warn-fore", "--warn-back")];
    })()"""
    lines, *texts = browser.run(script)
    assert lines >= 3
    assert min(texts) >= 4.5
    back = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, back[4:-1].split(","))) < 200) is dark


@pytest.mark.parametrize("width", [320, 390, 768, 1200])
def test_nothing_is_wider_than_the_window(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width=width, height=800)
    assert browser.run("document.documentElement.scrollWidth") <= width
    sizes = browser.run(
        "[...document.querySelectorAll('.chart svg')].map((s) => s.getBoundingClientRect().width / s.viewBox.baseVal.width)"
    )
    assert all(0.85 <= size <= 1.15 for size in sizes), sizes  # letters keep their size


def test_the_keyboard_reaches_everything(shown: Browser) -> None:
    reached = []
    for _ in range(60):
        shown.press("Tab")
        reached.append(shown.run("document.activeElement.className || document.activeElement.tagName"))
    for wanted in ("skip", "A", "SELECT", "BUTTON", "chart", "scroll heat", "SUMMARY"):
        assert wanted in reached, reached


def test_arrow_keys_walk_through_the_points(shown: Browser) -> None:
    shown.run("document.querySelector('.chart').focus()")
    shown.press("ArrowRight")
    spoken = shown.run("document.getElementById('live').textContent")
    assert spoken == "nvshmem native\nbytes 8: 1.001 median us\n95 %: 0.9908 to 1.011"
    shown.press("ArrowRight")
    assert "bytes 16" in shown.run("document.querySelector('.chart .tip').textContent")
    shown.press("ArrowUp")
    assert "nvshmem direct\nbytes 16" in shown.run("document.querySelector('.chart .tip').textContent")


def test_curves_can_be_hidden_by_key(shown: Browser) -> None:
    shown.run("document.querySelector('.legend button').focus()")
    shown.press("Enter")
    assert shown.run("document.querySelector('.legend button').getAttribute('aria-pressed')") == "false"
    assert shown.run("document.activeElement === document.querySelector('.legend button')")
    assert shown.run("document.querySelector('.chart').querySelectorAll('polyline').length") == 5


def choose(browser: Browser, section: str, label: str, option: str) -> None:
    assert browser.run(
        f"""(() => {{
      const section = document.getElementById({section!r}).parentElement;
      const found = [...section.querySelectorAll("label")].find((l) => l.firstChild.textContent === {label!r});
      const select = found.querySelector("select");
      select.selectedIndex = [...select.options].findIndex((o) => o.textContent === {option!r});
      select.dispatchEvent(new Event("change"));
      return select.selectedIndex >= 0;
    }})()"""
    )


def test_rate_is_drawn_against_parallelism(shown: Browser) -> None:
    shown.run("document.getElementById('rate-put-head').scrollIntoView()")
    time.sleep(0.3)
    section = "document.getElementById('rate-put-head').parentElement"
    labels = f"[...{section}.querySelectorAll('label')].map((l) => l.firstChild.textContent)"
    assert shown.run(labels)[:3] == ["against", "figure", "contexts"]
    title = (
        "document.getElementById('rate-put-head').parentElement.querySelector('.chart svg').getAttribute('aria-label')"
    )
    assert shown.run(title) == "rate put: rate Mmsg/s against ctas, 2 curves"
    choose(shown, "rate-put-head", "against", "contexts")
    assert shown.run(title) == "rate put: rate Mmsg/s against contexts, 2 curves"
    assert shown.run(labels)[:3] == ["against", "figure", "ctas"]
    assert shown.errors == []


def test_ratios_are_those_of_the_rows(shown: Browser) -> None:
    cells = "[...document.querySelector('.heat tbody tr').cells].slice(0, 3).map((c) => c.textContent)"
    assert shown.run(cells) == ["nvshmem direct", "1.2", "1.2"]
    choose(shown, "latency-put_signal-head", "divided by", "nvshmem direct")
    assert shown.run(cells)[0] == "nvshmem native"
    assert count(shown, ".heat .sure") > 50


def test_the_table_holds_every_row_and_sorts(shown: Browser) -> None:
    shown.run("document.querySelector('#latency-put_signal-head').parentElement.querySelector('details').open = true")
    time.sleep(0.2)
    assert count(shown, "details[open] tbody tr") >= 100
    buttons = "[...document.querySelectorAll('details[open] button')]"
    shown.run(f"{buttons}.find((b) => b.textContent.startsWith('Show all')).click()")
    table = "document.querySelector('#latency-put_signal-head').parentElement.querySelector('details table')"
    assert shown.run(f"{table}.tBodies[0].rows.length") == len(SIZES) * len(SERIES)
    shown.run(f"{buttons}.find((b) => b.textContent === 'median, us').click()")
    column = shown.run(
        f"(() => {{ const t = {table};"
        " const i = [...t.tHead.rows[0].cells].findIndex((c) => c.textContent === 'median, us');"
        " return [...t.tBodies[0].rows].map((r) => Number(r.cells[i].textContent)); })()"
    )
    assert column == sorted(column)


def test_csv_has_every_field_and_quotes(shown: Browser) -> None:
    text = shown.run("csv(ALL, [...TEXTS, ...NUMBERS])")
    lines = text.strip().split("\n")
    assert len(lines) == 1 + len(SIZES) * len(SERIES) + 12 + 1
    assert lines[0].startswith("file,test,op,backend")
    assert "median_low_us" in lines[0]
    assert shown.run("""csv([0], ["backend"]).length""") > 0


def test_what_is_printed_is_complete(shown: Browser, tmp_path: Path) -> None:
    assert shown.pdf(tmp_path / "report.pdf").startswith(b"%PDF")
    drawn = shown.run("[...document.querySelectorAll('.chart')].filter((c) => !c.firstChild).length")
    assert drawn == 0


def test_ten_thousand_rows_open_within_a_second(browser: Browser, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rows = []
    for ctas in range(1, 94):
        for made in sweep(ctas=ctas):
            us = float(f"{made['median_us'] * rng.uniform(1, 2):.6g}")
            more: dict[str, Any] = {
                name: float(f"{rng.uniform(1, 9):.6g}") for name in ("mean_us", "stdev_us", "p999_us")
            }
            samples = {
                "samples_us": list(us * rng.lognormal(0, 0.2, 20)),
                "outliers": int(rng.integers(50)),
                "samples": 1000,
            }
            rows.append({**row(us, **made_identity(made)), **more, **samples, "drift": 0.0123, "steady": True})
    path = tmp_path / "big.html"
    path.write_text(render([results(*rows[:10_000])], "big"))
    assert path.stat().st_size < 2 << 20
    times = []
    for _ in range(3):
        browser.open(path)
        times.append(browser.run("performance.timing.domContentLoadedEventEnd - performance.timing.responseEnd"))
    assert min(times) < 1000, times
    assert browser.errors == []


def made_identity(made: dict[str, Any]) -> dict[str, Any]:
    return {name: made[name] for name in ("backend", "route", "bytes", "ctas", "contexts")}


def test_files_without_rows_and_other_tests(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "odd.html"
    for files in (
        [results()],
        [results(row(test="teleport", op="x y"))],
        [results(row(), name="a"), results(row(2.0), name="b")],
    ):
        browser.errors.clear()
        path.write_text(render(files, "odd"))
        browser.open(path)
        assert browser.errors == []


@pytest.mark.parametrize(
    "name", ["__proto__", "constructor", "toString", "<img src=x onerror=alert(1)>", "main", "@DATA@"]
)
def test_names_from_outside_are_only_names(browser: Browser, tmp_path: Path, name: str) -> None:
    foreign = row(test=name, op=name, backend=name, route=name, wire=name, scope=name, platform=name)
    path = tmp_path / "foreign.html"
    path.write_text(render([results(foreign, row(op=name), row(3.0, op=name, backend=name), name=name)], name))
    browser.errors.clear()
    browser.requests.clear()
    browser.open(path)
    browser.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert browser.errors == []
    assert browser.requests == [path.resolve().as_uri()]
    assert browser.run("document.querySelector('h1').textContent") == name
    assert count(browser, "img") == 0
    ids = "[...document.querySelectorAll('[id]')].map((e) => e.id)"
    assert browser.run(f"new Set({ids}).size === {ids}.length")


def test_thousands_of_sizes_open_as_fast(browser: Browser, tmp_path: Path) -> None:
    rows = [row(us * (1 + n / 1e3), backend=b, bytes=n) for n in range(5000) for b, us in (("x", 1.0), ("y", 2.0))]
    path = tmp_path / "sizes.html"
    path.write_text(render([results(*rows)], "sizes"))
    times = []
    for _ in range(2):
        browser.open(path)
        times.append(browser.run("performance.timing.domContentLoadedEventEnd - performance.timing.responseEnd"))
    assert min(times) < 1000, times
    assert count(browser, ".heat td, .heat th") < 500


def test_without_scripts_the_findings_are_shown(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "plain.html"
    path.write_text(render([results(*sweep())], "plain"))
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.call("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + 10
        while "not run" not in (text := browser.run("document.body?.innerText ?? ''")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert "latency put_signal, native" in text
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)

"""Every code block of the documentation does what its page says, and every output on it is what is printed now."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest
from blocks import PAGES, ROOT, Block, BlockError, Page, _check_unrun, gin_commands, parse, renewed, tidy

WITH_BLOCKS = [path for path in PAGES if parse(path).blocks]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", WITH_BLOCKS, ids=name)
def test_blocks_run_and_outputs_are_current(path: Path, bare_environment: pytest.MonkeyPatch) -> None:
    page = parse(path)
    changes = difflib.unified_diff(page.text.splitlines(), page.run().splitlines(), "page", "now", lineterm="", n=1)
    assert not (text := "\n".join(changes)), f"python docs/tools/blocks.py --write {name(path)}\n{text}"


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_paths_and_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", text):
        assert (path.parent / target).exists(), target
    for named in re.findall(r"`((?:csrc|gin|docs|tests|examples|results)/[\w./-]+)`", text):
        assert (ROOT / named).exists(), named


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    missing = [name(path) for path in PAGES if f": {path.relative_to(ROOT / 'docs')}\n" not in menu]
    assert not missing


def page(tmp_path: Path, text: str) -> Page:
    path = tmp_path / "page.md"
    path.write_text(text, encoding="utf-8")
    return parse(path)


@pytest.mark.parametrize(
    "text",
    [
        "```\nno language\n```\n",
        "  ```sh\n  indented\n  ```\n",
        "<!-- not run: tired -->\n```sh\ntrue\n```\n",
        '```python title="alone.py"\nprint(1)\n```\n',
        "text\n\n    code by indentation\n",
        "```sh\nnot closed\n",
    ],
)
def test_blocks_that_could_not_be_checked_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(BlockError):
        page(tmp_path, text)


def test_outputs_are_renewed_and_files_are_kept_apart(tmp_path: Path) -> None:
    made = page(
        tmp_path,
        '```python title="hello.py"\nprint("now")\n```\n\n```sh\npython hello.py\n```\n\n'
        "<!-- output -->\n```text\nthen\n```\n",
    )
    assert "```text\nnow\n```" in made.run()
    assert not (tmp_path / "hello.py").exists()


def test_a_block_that_ends_otherwise_fails_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blocks.ROOT", tmp_path)
    made = page(tmp_path, "<!-- exit 3 -->\n```sh\nexit 3\n```\n\n```sh\necho why; exit 4\n```\n")
    with pytest.raises(BlockError, match=r"page\.md:6: exit status 4, not 0:\nwhy"):
        made.run()


@pytest.mark.parametrize("text", ["gin bench latencies", "gin bench latency --fast", "gin fly", "for x in"])
def test_blocks_that_are_not_run_are_parsed(text: str) -> None:
    with pytest.raises(BlockError):
        _check_unrun(Block("sh", None, text, 1, (0, 0), {"not run": "GPUs"}))


def test_commands_of_gin_are_found_behind_variables_and_pipes() -> None:
    text = (
        "A=1 B='x y' gin info | grep x\ngin run -n 2 \\\n  a.py && gin compare a.json  # gin report\npip install gin\n"
    )
    assert list(gin_commands(text)) == [["info"], ["run", "-n", "2", "a.py"], ["compare", "a.json"]]


def test_only_what_may_differ_may_differ() -> None:
    assert renewed("b\na\n", "a\nb\n", "any order") == "b\na\n"
    assert renewed("b\na\n", "a\nb\n", "") == "a\nb\n"
    table, other = "# gin x\n  8  1.5  >999\n# load 9\n", "# gin x\n  8  20.25  3.1\n"
    assert renewed(table, other, "sample") == table
    assert renewed(table, "# gin x\n  8  1.5\n", "sample") != table


def test_what_belongs_to_a_machine_is_left_out() -> None:
    import gin

    package = Path(gin.__file__).parent
    text = (
        "Traceback (most recent call last):\n"
        '  File "a.py", line 3, in <module>\n'
        "    comm.synchronize()\n"
        f'  File "{package}/comm.py", line 9, in synchronize\n'
        "    raise error\n"
        "    ^^^^^^^^^^^\n"
        "gin.errors.Error: no\n"
        "3 of 3 seeds in 1.25 s (1,234/s): passed\n"
    )
    expected = (
        "Traceback (most recent call last):\n"
        '  File "a.py", line 3, in <module>\n'
        "    comm.synchronize()\n"
        "gin.errors.Error: no\n"
        "3 of 3 seeds: passed\n"
    )
    assert tidy(text) == expected

"""What a shell is told when a person presses Tab, and the progress on odd terminals."""

from __future__ import annotations

import io
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from gin.bench.plan import Plan
from gin.bench.report import Reporter
from gin.cli.main import _group

COMMAND = (sys.executable, "-c", "import sys; sys.argv[0] = 'gin'; from gin.cli.main import main; main()")


def completed(words: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the last word may become."""
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    monkeypatch.setenv("_GIN_COMPLETE", "bash_complete")
    done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=60, check=False)
    return [line.split(",", 1)[1] for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("gin comp", ["compare", "completion"]),
        ("gin bench la", ["latency"]),
        ("gin bench latency --backend n", ["nvshmem", "nccl_gin"]),
        ("gin bench latency --backend nvshmem,n", ["nvshmem,nccl_gin"]),
        ("gin bench latency -s thread,", ["thread,all", "thread,warp", "thread,block"]),
        ("gin bench latency --op put_f", ["put_flush"]),
        ("gin bench --resu", ["--resume"]),
        ("gin compare a.json --by ro", ["route"]),
    ],
)
def test_words_are_completed(words: str, found: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert completed(words, monkeypatch) == found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(shell: str) -> None:
    result = CliRunner().invoke(_group, ["completion", shell])
    assert result.exit_code == 0, result.output
    assert f"_GIN_COMPLETE={shell}_complete" in result.stdout


@pytest.mark.parametrize(("shell", "status"), [("/bin/bash", 0), ("/bin/tcsh", 2), ("", 2)])
def test_the_shell_of_the_environment(shell: str, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", shell)
    assert CliRunner().invoke(_group, ["completion"]).exit_code == status


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("kind", ["dumb", "xterm"])
def test_progress_fits_narrow_terminals_and_has_no_colour_where_none_is_wanted(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("TERM", kind), ("COLUMNS", "40"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    with Reporter(Plan("latency", ("nvshmem",), True, ("native",), (8,)), terminal) as reporter:
        reporter.handle({"event": "begin", "environment": {}, "emulated": True, "total": 1000})
        reporter.handle({"event": "point", "shape": "put_signal_bidir scope=thread", "bytes": 1 << 20})
    text = terminal.getvalue()
    assert not re.search(r"\x1b\[[0-9;]*m", text)
    if kind == "dumb":
        assert "\x1b" not in text
    shown = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", text)
    assert max(len(line) for line in re.split(r"[\r\n]", shown)) <= 40

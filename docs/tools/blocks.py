"""The code blocks of a page, run in the order in which they stand: `python docs/tools/blocks.py [--write] PAGE...`.

What a block is follows from its language and from a comment in front of it:

    ```python title="NAME"    a file of the page's scratch folder, which another block runs or imports
    ```python                 a program of one rank
    ```sh                     commands in that folder; the last one's exit status is 0, or N after `<!-- exit N -->`
    ```cuda                   device code, compiled for every backend on platform host
    ```cpp, c                 text of another library or of the tree, not compiled
    ```json, toml, yaml       parsed
    ```text                   shown as it is; after `<!-- output -->` what the block before it prints

`<!-- output, any order -->` sorts lines before it compares, `<!-- output, sample -->` compares words and not numbers.
`<!-- not run: REASON -->` leaves a block out, REASON being one of REASONS; options of gin's commands in it are still parsed.
`--write` puts what the blocks print now into the page.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["PAGES", "REASONS", "ROOT", "Block", "BlockError", "Page", "parse"]

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path for path in (ROOT / "docs").rglob("*.md"))

REASONS = {
    "GPUs": "needs GPUs",
    "RDMA": "needs an RDMA device, or a virtual machine with one",
    "hosts": "needs several hosts, or a launcher that not every machine has",
    "install": "installs software",
    "long": "takes minutes",
    "browser": "opens a browser",
    "part": "part of a program or file that is checked elsewhere",
}
SECONDS = 150  # for one block
BACKENDS = ("nvshmem", "nccl_gin", "ibrc_proxy")

_FENCE = re.compile(
    r"(?P<marks>(?:^<!-- (?:exit|not run|output)[^\n]*-->\n+)*)"
    r"^```(?P<language>\w+)(?: title=\"(?P<title>[^\"\n]+)\")?\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_ANY_FENCE = re.compile(r"^\s*```", re.MULTILINE)
_INDENTED = re.compile(r"^(?:\A|\n) {4,}(?![-*\d ])\S", re.MULTILINE)
_MARK = re.compile(r"<!-- (exit|not run|output)(?:[:,]? ?([^\n]*?))? -->")


class BlockError(Exception):
    """A block that does not do what its page says."""


@dataclass
class Block:
    """One fenced block. `span` is where its text stands in the page."""

    language: str
    title: str | None
    text: str
    line: int
    span: tuple[int, int]
    marks: dict[str, str] = field(default_factory=dict)


@dataclass
class Page:
    """A page and its blocks."""

    path: Path
    text: str
    blocks: list[Block]

    def run(self) -> str:
        """Runs the blocks in a scratch folder and returns the page with what they print now. Raises BlockError."""
        made: list[tuple[tuple[int, int], str]] = []
        with tempfile.TemporaryDirectory(prefix="gin-docs-") as folder:
            scratch = Scratch(Path(folder))
            printed: str | None = None
            for block in self.blocks:
                try:
                    if "output" in block.marks:
                        if printed is None:
                            raise BlockError("an output follows a block that runs")
                        made.append((block.span, renewed(block.text, printed, block.marks["output"])))
                    else:
                        printed = scratch.run(block)
                except BlockError as error:
                    raise BlockError(f"{self.path.relative_to(ROOT)}:{block.line}: {error}") from None
        text = self.text
        for (start, end), new in reversed(made):
            text = text[:start] + new + text[end:]
        return text


def parse(path: Path) -> Page:
    """Raises BlockError for fences without a language, comments that mean nothing, and files that nothing uses."""
    text = path.read_text(encoding="utf-8")
    blocks = []
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        marks = {kind: rest or "" for kind, rest in _MARK.findall(match["marks"])}
        reason = marks.get("not run")
        if reason is not None and reason not in REASONS:
            raise BlockError(f"{path}:{line}: {reason!r} is none of {', '.join(REASONS)}")
        blocks.append(Block(match["language"], match["title"], match["text"], line, match.span("text"), marks))
    if 2 * len(blocks) != len(_ANY_FENCE.findall(text)):
        raise BlockError(f"{path}: a fence is indented, not closed, without a language, or has more than a title")
    if _INDENTED.search(_FENCE.sub("", text)):
        raise BlockError(f"{path}: a code block by indentation; fence it, so that it has a language")
    _require_use(path, blocks)
    return Page(path, text, blocks)


def _require_use(path: Path, blocks: Sequence[Block]) -> None:
    for block in blocks:
        if block.title is None or "not run" in block.marks or block.language != "python":
            continue
        name = block.title.removesuffix(".py")
        if not any(re.search(rf"\b{re.escape(name)}\b", other.text) for other in blocks if other is not block):
            raise BlockError(f"{path}:{block.line}: nothing runs or imports {block.title}")


class Scratch:
    """The folder that a page's blocks share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "page"
        self.folder.mkdir()
        tools = folder / "bin"
        tools.mkdir()
        command = tools / "gin"
        command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m gin "$@"\n')
        command.chmod(0o755)
        (tools / "python").symlink_to(sys.executable)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GIN_")}
        for name in ("GIN_CACHE_DIR", "GIN_CXX"):
            if name in os.environ:
                kept[name] = os.environ[name]
        self.environment = {**kept, "PATH": f"{tools}:{kept['PATH']}", "COLUMNS": "100", "NO_COLOR": "1"}
        # The package that runs this, and not one that happens to be installed beside it.
        self.environment["PYTHONPATH"] = os.pathsep.join([_package_folder(), *filter(None, [kept.get("PYTHONPATH")])])
        (self.folder / "results").symlink_to(ROOT / "results")
        (self.folder / "examples").symlink_to(ROOT / "examples")

    def run(self, block: Block) -> str | None:
        """What the block prints; None for one that prints nothing. Raises BlockError."""
        if block.title is not None:
            file = self.folder / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text, encoding="utf-8")
        if "not run" in block.marks:
            _check_unrun(block)
            return None
        match block.language:
            case "python" if block.title is not None:
                compile(block.text, block.title, "exec")
            case "python":
                return self._execute([sys.executable, "-c", block.text], 0)
            case "sh":
                return self._execute(["bash", "-euo", "pipefail", "-c", block.text], int(block.marks.get("exit", 0)))
            case "cuda":
                self._compile(block.text)
            case "json" | "toml" | "yaml":
                _parse_data(block.language, block.text)
            case "text" | "cpp" | "c":
                pass
            case other:
                raise BlockError(f"nobody knows how to run {other}")
        return None

    def _execute(self, command: list[str], expected: int) -> str:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
        )
        if done.returncode != expected:
            raise BlockError(f"exit status {done.returncode}, not {expected}:\n{done.stdout}")
        return tidy(done.stdout)

    def _compile(self, source: str) -> None:
        """Device code alone: every kernel in it, for every backend."""
        names = re.findall(r"__global__ void (\w+)\(", source)
        if not names:
            raise BlockError("there is no __global__ function in it")
        program = (
            "import sys, gin\n"
            "from gin.config import Config\n"
            "from gin.platforms.host_compiler import Compiler\n"
            "for backend in sys.argv[2:5]:\n"
            "    compiler = Compiler(Config.from_sources(backend=backend), backend)\n"
            "    for name in sys.argv[5:]:\n"
            "        compiler.compile(sys.argv[1], name)\n"
        )
        source = source if "#include <gin/gin.cuh>" in source else f"#include <gin/gin.cuh>\n{source}"
        self._execute([sys.executable, "-c", program, source, *BACKENDS, *names], 0)


def _package_folder() -> str:
    import gin

    return str(Path(gin.__file__).parent.parent)


def _parse_data(language: str, text: str) -> None:
    import json
    import tomllib

    try:
        if language == "json":
            json.loads(text)
        elif language == "toml":
            tomllib.loads(text)
        elif "\t" in text:
            raise ValueError("YAML has no tabs")
    except ValueError as error:
        raise BlockError(f"not {language}: {error}") from None


def _check_unrun(block: Block) -> None:
    """What can be said of a block without running it. Raises BlockError."""
    if block.language == "python":
        compile(block.text, block.title or "block", "exec")
    if block.language != "sh":
        return
    syntax = subprocess.run(["bash", "-n", "-c", block.text], capture_output=True, text=True)
    if syntax.returncode:
        raise BlockError(syntax.stderr)
    for words in gin_commands(block.text):
        _parse_options(words)


def gin_commands(text: str) -> Iterator[list[str]]:
    """The words after `gin` of every line that calls it, alone or behind a launcher; variables in front are left out."""
    for line in text.replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|\|\||;|\|", line):
            try:
                words = shlex.split(part, comments=True)
            except ValueError:
                continue
            while words and re.fullmatch(r"\w+=.*", words[0]):
                del words[0]
            if words[:1] == ["gin"]:
                yield words[1:]


def _parse_options(words: list[str]) -> None:
    import importlib

    import click

    if not words or words[0].startswith("-"):
        return
    try:
        command: click.Command = importlib.import_module(f"gin.cli.{words[0]}").command
        if "--help" not in words:
            command.make_context(f"gin {words[0]}", words[1:])
    except ModuleNotFoundError:
        raise BlockError(f"there is no command gin {words[0]}") from None
    except click.UsageError as error:
        raise BlockError(f"gin {shlex.join(words)}: {error.format_message()}") from None


def tidy(text: str) -> str:
    """Output without what belongs to a machine: frames of gin and of Python in tracebacks, folders, elapsed time."""
    package = re.escape(_package_folder())
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    text = re.sub(
        rf'^(?:\s|\[\d+\])*File "(?:{package}|[^"\n]*/python3[^"\n]*)/[^\n]*\n(?:(?:\s|\[\d+\])*(?!.*File ")[^\n]*\n)?',
        "",
        text,
        flags=re.MULTILINE,
    )
    text = re.sub(r"^(?:\s|\[\d+\])*[\^~]+\n", "", text, flags=re.MULTILINE)  # which depend on Python's version
    text = re.sub(r"/tmp/gin-docs-\w+/page/", "", text)
    text = re.sub(rf"{package}/", "", text)
    text = re.sub(r" in \d+\.\d+ s \([\d,]+/s\)", "", text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def renewed(old: str, new: str, how: str) -> str:
    """The text of an output block: what it was where only what may differ does."""
    if how == "any order":
        same = sorted(old.splitlines()) == sorted(new.splitlines())
    elif how == "sample":
        same = _skeleton(old) == _skeleton(new)
    elif not how:
        same = old == new
    else:
        raise BlockError(f"an output is exact, `any order` or `sample`, not {how!r}")
    return old if same else new


def _skeleton(text: str) -> list[str]:
    """A table of the benchmark without its numbers, and without remarks on how the measurement went."""
    lines = []
    for line in text.splitlines():
        if line.startswith("# ") and not line.startswith(
            ("# gin", "# EMULATION", "# latency", "# bandwidth", "# rate")
        ):
            continue
        line = re.sub(r"[<>]?-?\d[\d.,]*(?:e[+-]?\d+)?[KMG]?%?", "#", line)
        lines.append(" ".join(line.split()))
    return [line for line in lines if line]


def main() -> int:
    """Runs pages; with --write renews their outputs. Returns 1 when a page is wrong or not current."""
    write = "--write" in sys.argv
    named = [Path(name).resolve() for name in sys.argv[1:] if not name.startswith("-")]
    status = 0
    for path in named or PAGES:
        try:
            page = parse(path)
            text = page.run()
        except BlockError as error:
            print(error)
            status = 1
            continue
        if text == page.text:
            continue
        if write:
            path.write_text(text, encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: renewed")
        else:
            print(
                f"{path.relative_to(ROOT)}: not current; python docs/tools/blocks.py --write {path.relative_to(ROOT)}"
            )
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())

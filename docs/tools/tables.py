"""Tables that are made from the package and from result files."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from prose import markdown, row

__all__ = ["capabilities", "cases", "commands", "coverage", "definitions", "measured", "models", "results", "settings"]


class _Absent(ModuleType):
    """In place of the extension where only texts are asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def settings() -> str:
    """Every knob of gin.config: variable, default, meaning."""
    from gin.config import KNOBS, Config

    described = {setting.name: setting for setting in Config().describe()}
    lines = [row(["argument", "variable", "default", "meaning"]), "|---|---|---|---|"]
    for name, knob in KNOBS.items():
        default = "~/.cache/gin" if name == "cache_dir" else described[name].value or "none"
        lines.append(row([f"`{name}`", f"`{knob.variable}`", f"`{default}`", markdown(described[name].doc)]))
    return "\n".join(lines)


def capabilities() -> str:
    """What each backend can do."""
    from gin import backends

    found = {name: backends.capabilities(name) for name in backends.NAMES}
    lines = [row(["capability", *(f"`{name}`" for name in found)]), "|---|" + "---|" * len(found)]
    for name in next(iter(found.values())):
        lines.append(row([f"`{name}`", *("yes" if able[name] else "no" for able in found.values())]))
    return "\n".join(lines)


def definitions() -> str:
    """What each operation of `gin bench` measures."""
    from gin.bench.tests import TESTS

    lines = [row(["test", "operation", "what is timed"]), "|---|---|---|"]
    for test in TESTS.values():
        for made in test.operations:
            lines.append(row([f"`{test.name}`", f"`{made.name}`", made.definition]))
    return "\n".join(lines)


def models() -> str:
    """The network models of the simulator, and where their figures come from."""
    from gin.sim.model import PRESETS

    lines = [row(["model", "what it is", "figures from"]), "|---|---|---|"]
    for preset in PRESETS.values():
        lines.append(row([f"`{preset.name}`", preset.about, "; ".join(preset.sources)]))
    return "\n".join(lines)


def commands() -> str:
    """Every command's own help. The tree need not be built for it."""
    import importlib
    import importlib.util
    import sys

    import click

    from gin.cli.main import _COMMANDS

    if importlib.util.find_spec("gin._core") is None:
        sys.modules["gin._core"] = _Absent("gin._core")

    out = []
    for name in _COMMANDS:
        command: click.Command = importlib.import_module(f"gin.cli.{name}").command
        context = click.Context(command, info_name=f"gin {name}", terminal_width=100, max_content_width=100)
        out += [f"## gin {name}", "", "```text", inspect.cleandoc(command.get_help(context)), "```", ""]
    return "\n".join(out)


def measured(folder: Path) -> dict[str, dict[str, Any]]:
    """The files of results of hardware, by name: those that are not emulated, and not figures of the host platform."""
    found = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    return {
        name: document
        for name, document in found.items()
        if not document.get("emulated")
        and "figures" not in document
        and not _of_host(document)
        and not _is_conformance(document)
    }


def _is_conformance(document: dict[str, Any]) -> bool:
    found = document.get("results")
    return isinstance(found, list) and all("outcome" in result for result in found)


def _of_host(document: dict[str, Any]) -> bool:
    return document.get("environment", {}).get("platform") in ("host", "sim")


def results(folder: Path) -> str:
    """Every file of hardware's results: how it was made, and its rows."""
    out: list[str] = []
    for name, document in measured(folder).items():
        out += [f"### `results/{name}`", "", _origin(document), ""]
        out += _rows(document["rows"]) if "rows" in document else _figures(document.get("results", document))
        out.append("")
    return "\n".join(out)


def coverage(folder: Path) -> str:
    """What was measured on hardware, by backend and route."""
    from gin.backends import NAMES
    from gin.bench.plan import ROUTES

    ran: dict[tuple[str, str], set[str]] = {}
    for document in measured(folder).values():
        for made in document.get("rows", []):
            ran.setdefault((made["backend"], made["route"]), set()).add(f"{made['test']} `{made['op']}`")
        for part in _parts(document):
            what = "ping-pong" if "round_trips" in part else "bandwidth"
            for route in part["routes"]:
                ran.setdefault((part["backend"], route), set()).add(what)
    lines = [row(["backend", *ROUTES]), "|---|" + "---|" * len(ROUTES)]
    for name in NAMES:
        lines.append(row([f"`{name}`", *(", ".join(sorted(ran.get((name, route), ["not run"]))) for route in ROUTES)]))
    return "\n".join(lines)


def cases(file: Path) -> str:
    """What came of the cases of `gin conformance` on GPUs, by backend and route, with those that were not run."""
    from gin.backends import NAMES
    from gin.bench.plan import ROUTES
    from gin.conformance import Plan, select
    from gin.conformance.results import FAIL, PASS, REFUSED

    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    ranks = set()
    for result in json.loads(file.read_text(encoding="utf-8"))["results"]:
        found.setdefault((result["backend"], result["route"]), {})[result["case"]] = result
        ranks.add(result["ranks"])
    plan = Plan(select(), ranks=sorted(ranks), platform="cuda")
    lines = [
        row(["backend", "route", "passed", "refused, for want of", "failed", "not run"]),
        "|---|---|--:|---|---|---|",
    ]
    for name, route in ((name, route) for name in NAMES for route in reversed(ROUTES)):
        if (name, route) not in found:
            continue
        results = found[name, route]
        outcomes: dict[str, list[dict[str, Any]]] = {PASS: [], REFUSED: [], FAIL: []}
        for result in results.values():
            outcomes[result["outcome"]].append(result)
        refused = [f"{result['capability'] or 'by its own words'}: `{result['case']}`" for result in outcomes[REFUSED]]
        failed = [f"`{result['case']}`" for result in outcomes[FAIL]]
        wanted = [case.name for case in plan.fitting(route, "cuda")]
        left = dict.fromkeys(f"`{case.partition('[')[0]}`" for case in wanted if case not in results)
        count = sum(case not in results for case in wanted)
        missing = f"{count}: {', '.join(left)}" if left else "-"
        shown = [", ".join(refused) or "-", ", ".join(failed) or "-", missing]
        lines.append(row([f"`{name}`", route, len(outcomes[PASS]), *shown]))
    return "\n".join(lines)


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    """The figures of one backend each, wherever they are in a document."""
    if isinstance(value, dict):
        if "backend" in value and "routes" in value:
            yield value
        else:
            for inner in value.values():
                yield from _parts(inner)


def _origin(document: dict[str, Any]) -> str:
    if "command" not in document:
        return "The file does not say by which command and where it was made."
    words = [Path(word).name if word.startswith("/") else word for word in document["command"]]
    environment = document["environment"]
    about = [
        *environment.get("gpus", []),
        f"driver {environment['driver']}" if "driver" in environment else "",
        f"{environment['cpu']}, {environment['cores']} cores",
    ]
    names = ("NCCL_VERSION", "CUDA_VERSION", "NVSHMEM_DISABLE_NVLS", "NCCL_NVLS_ENABLE")
    variables = environment.get("variables", {})
    about += [f"{name}={variables[name]}" for name in names if name in variables]
    incomplete = "" if document.get("complete", True) else " The sweep ended before its last row."
    return f"`{' '.join(words)}`: {', '.join(filter(None, about))}.{incomplete}"


_COLUMNS = ("bytes", "median us", "p99 us", "GB/s", "Mmsg/s", "wrong")


def _rows(rows: list[dict[str, Any]]) -> list[str]:
    from gin.bench.plan import format_size

    lines = [
        row([*("test", "backend", "route", "scope", "blocks x threads", "contexts"), *_COLUMNS]),
        "|---|---|---|---|---|--:|" + "--:|" * len(_COLUMNS),
    ]
    for made in rows:
        lines.append(
            row(
                [
                    f"{made['test']} {made['op']}",
                    made["backend"],
                    made["route"],
                    made["scope"],
                    f"{made['ctas']} x {made['threads']}",
                    made.get("contexts", ""),
                    format_size(made["bytes"]),
                    f"{made['median_us']:.4g}",
                    f"{made['p99_us']:.4g}",
                    f"{made['bandwidth_GBps']:.3g}",
                    f"{made['rate_Mops']:.3g}",
                    made["wrong"],
                ]
            )
        )
    return lines


def _figures(found: dict[str, Any]) -> list[str]:
    """Numbers by name, however deep."""
    return [row(["what", "figure"]), "|---|--:|", *(row(pair) for pair in _flat(found, ""))]


def _flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}: {key}" if name else key)
    elif isinstance(value, list):
        yield name, ", ".join(map(str, value))
    else:
        yield name, value

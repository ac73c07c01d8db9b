"""`gin info`: what was found, and why each backend can or cannot be used."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import click

import gin.ranks
from gin.cli import found, links
from gin.cli.found import State
from gin.config import Config
from gin.errors import Error


def collect() -> dict[str, Any]:
    """Everything `gin info --json` says. Raises ConfigError when the configuration itself is wrong."""
    config = Config.from_sources()
    ranks = gin.ranks.discover()
    return {
        "schema": 1,
        "versions": found.versions(),
        "system": found.system(),
        "backends": [_state(state) for state in found.backends(config)],
        "platforms": [_state(state) for state in found.platforms(config)],
        "wires": [_state(state) for state in found.wires(config)],
        "compilers": found.compilers(config),
        "gpus": found.gpus(),
        "links": _links(),
        "nics": found.nics(),
        "rma_plugin": found.rma_plugin(),
        "memlock_bytes": found.memlock(),
        "cache": found.cache(config),
        "launcher": {"source": ranks.source, "rank": ranks.rank, "size": ranks.size},
        "config": [setting._asdict() for setting in config.describe()],
    }


def _links() -> list[dict[str, Any]]:
    """The links between GPUs, with the routes of each backend over them."""
    nics, plugin = bool(found.nics()), not found.rma_plugin()["obstacle"]
    return [{**link, "routes": links.routes(link, nics=nics, plugin=plugin)} for link in links.links()]


def _state(state: State) -> dict[str, Any]:
    fields = dataclasses.asdict(state)
    fields.update(fields.pop("more"))
    if state.usable:
        del fields["reason"], fields["remedy"]
    return fields


EPILOG = """\b
Examples:
  gin info
  GIN_BACKEND=nvshmem gin info
  gin info --json | jq '.backends[] | {name, usable, reason}'"""


@click.command("info", epilog=EPILOG, short_help="Say what was found and which backends can be used.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """Say what was found on this machine, each setting with its origin, and why a backend cannot be used."""
    try:
        facts = collect()
    except Error as error:
        click.echo(f"gin info: {error}", err=True)
        sys.exit(2)
    if as_json:
        click.echo(json.dumps(facts, indent=1))
        return
    width = shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 100
    for line in _lines(facts):
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        click.echo("\n".join(textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False)) or "")


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    installed = {name: version for name, version in facts["versions"].items() if version}
    yield ", ".join(f"{name} {version}" for name, version in installed.items())
    system = facts["system"]
    yield f"{system['cpu']}, {system['cores']} cores usable, {system['system']} {system['kernel']} {system['machine']}"
    for kind in ("backends", "platforms", "wires"):
        yield ""
        yield kind
        for state in facts[kind]:
            yield f"  {state['name']:<11} {_verdict(state)}"
    yield ""
    yield "found"
    for compiler in facts["compilers"]:
        yield f"  compiler    {compiler['path'] or compiler['name']}: {compiler['version'] or 'does not run'}"
    yield f"  GPUs        {', '.join(facts['gpus']) or 'none'}"
    for link in facts["links"]:
        yield from _link(link)
    yield f"  RDMA NICs   {', '.join(facts['nics']) or 'none'}"
    for wire in facts["wires"]:
        for port in wire.get("ports", []):
            yield f"  {'':<11} {_port(port)}"
        for use in wire.get("uses", []):
            yield f"  {'':<11} {_use(use)}"
    yield f"  RMA plugin  {_plugin(facts['rma_plugin'])}"
    limit = facts["memlock_bytes"]
    yield f"  memlock     {'unlimited' if limit is None else f'{limit} bytes'}"
    cache = facts["cache"]
    yield f"  cache       {cache['path']}{'' if cache['writable'] else ' (CANNOT BE WRITTEN: set GIN_CACHE_DIR)'}"
    place = facts["launcher"]
    yield f"  launcher    {place['source']}, rank {place['rank']} of {place['size']}"
    yield ""
    yield "settings"
    names = max(len(setting["name"]) for setting in facts["config"])
    for setting in facts["config"]:
        yield f"  {setting['name']:<{names}}  {setting['value']}  ({setting['origin']})  {setting['doc']}"


def _link(link: dict[str, Any]) -> Iterator[str]:
    kind = {True: "NVLink", False: "PCIe", None: "a link of unknown kind"}[link["nvlink"]]
    atomics = "with atomics" if link["atomics"] else "without atomics"
    reach = f"{kind}, load and store {atomics}" if link["access"] else "no load and store"
    yield f"  GPU {link['gpus'][0]} - GPU {link['gpus'][1]}  {reach}"
    for backend, route in link["routes"].items():
        yield f"  {'':<11} {backend}: {route}"


def _plugin(plugin: dict[str, Any]) -> str:
    if plugin["obstacle"]:
        return f"not used by nccl_gin: {plugin['obstacle']}"
    return f"{plugin['path']}: NCCL's GIN runs on it between GPUs of this host"


def _port(port: dict[str, Any]) -> str:
    name = f"{port['device']} port {port['port']}"
    if not port["usable"]:
        return f"{name}: not usable: {port['reason']}"
    address = f"GID {port['gid_index']} {port['gid']} {port['gid_type']}".rstrip() if port["gid"] else "by LID"
    return f"{name}: {port['link']}, {address}, MTU {port['mtu']}, {port['atomics']} atomics in flight"


def _use(use: dict[str, Any]) -> str:
    if not use["ports"]:
        return f"{use['owner']} uses none: {use['error']}"
    return f"{use['owner']} uses {'; '.join(f'{port} ({why})' for port, why in use['ports'])}"


def _verdict(state: dict[str, Any]) -> str:
    if not state["usable"]:
        return f"not usable: {state['reason']}. Remedy: {state['remedy']}"
    text = "usable"
    if state.get("platforms"):
        text += f" on platform {', '.join(state['platforms'])}"
    if state.get("emulated"):
        text += f", emulated with {state['compiler']}"
    if state.get("about"):
        text += f": {state['about']}"
    if state.get("capabilities"):
        text += f"; can do {', '.join(_able(state))}"
    return text


def _able(state: dict[str, Any]) -> Iterator[str]:
    """A backend's capabilities; with the platforms where it lacks one, or without it where it lacks it on all."""
    lacking = state.get("lacking", {})
    for name, value in state["capabilities"].items():
        without = [platform for platform, names in lacking.items() if name in names]
        if value and not without:
            yield name
        elif value and len(without) < len(lacking):
            yield f"{name} (not on {', '.join(without)})"

"""gin's RMA plugin for NCCL: with it NCCL's own GIN runs between GPUs of one host that has no RDMA NIC.

NCCL opens what NCCL_RMA_PLUGIN names when a communicator is made. The plugin is named there for the user where nothing of
theirs would be overridden, and only when all ranks can use it.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from gin.collective import Exchange
from gin.config import Config, format_duration

__all__ = ["NAME", "VARIABLE", "choose", "hand_over", "obstacle", "path"]

NAME = "libnccl-rma-gin.so"
VARIABLE = "NCCL_RMA_PLUGIN"
LONGEST = 254  # characters that NCCL takes

# What says by itself which transport NCCL is to use for GIN, with the values that leave the choice open.
_CHOICES = {
    VARIABLE: (),
    "NCCL_GIN_ENABLE": ("1",),
    "NCCL_GIN_TYPE": ("-1", "2"),
    "NCCL_GIN_PLUGIN": ("none",),
    "NCCL_NET_PLUGIN": ("none",),
    "NCCL_RMA_DISABLE": ("0",),
}

log = logging.getLogger("gin.nccl")


def path() -> Path | None:
    """Where the plugin is installed, None where it was not built."""
    from gin import _core

    extension = Path(_core.__file__)
    folders = (extension.parent, extension.resolve().parent)
    return next((folder / NAME for folder in folders if (folder / NAME).is_file()), None)


def obstacle(environment: Mapping[str, str] | None = None, *, nics: Iterable[str] | None = None) -> str:
    """Why the plugin is not used on this machine; empty when it can be.

    environment  variables, those of this process by default
    nics         RDMA devices, those that the kernel shows by default
    """
    values = dict(os.environ if environment is None else environment)
    found = path()
    if found is None:
        return f"{NAME} was not built; reinstall gin"
    if values.get(VARIABLE) == _value(found):
        del values[VARIABLE]  # set here before
    origins = {**_configured(values), **{name: ("", value) for name, value in values.items()}}
    for name, open_values in _CHOICES.items():
        origin, value = origins.get(name, ("", ""))
        if value and value.lower() not in open_values:
            return f"{name}={value}{origin} is set"
    devices = sorted(_nics() if nics is None else nics)
    if devices:
        return f"NCCL looks for its own transport on {', '.join(devices)}"
    return ""


def choose(exchange: Exchange, local_size: int, size: int) -> str:
    """Names the plugin to NCCL where every rank can use it. Collective.

    Returns why it is not used, empty when it is.
    """
    reasons = exchange.gather("nccl plugin", obstacle)
    why = next((f"{reason} on rank {rank}" for rank, reason in enumerate(reasons) if reason), "")
    if not why and local_size != size:
        why = "the ranks are on several hosts"
    if why:
        log.info("gin's RMA plugin is not used: %s", why)
        if os.environ.get(VARIABLE) == _value(path()):
            del os.environ[VARIABLE]
        return why
    found = path()
    assert found is not None
    if _value(found) == NAME:
        ctypes.CDLL(str(found))  # NCCL then finds it by name
    os.environ[VARIABLE] = _value(found)
    log.info("NCCL's GIN runs on gin's RMA plugin %s", found)
    return ""


def hand_over(config: Config) -> None:
    """Tells the plugin the deadlines of the job whose communicator is made next, wherever they were set."""
    os.environ["NCCL_RMA_GIN_TIMEOUT"] = format_duration(config.timeout)
    os.environ["NCCL_RMA_GIN_CONNECT_TIMEOUT"] = format_duration(config.connect_timeout)


def _value(found: Path | None) -> str:
    """What NCCL_RMA_PLUGIN is set to: NCCL splits it at commas and takes no long paths."""
    text = str(found or NAME)
    return text if len(text) <= LONGEST and "," not in text else NAME


def _nics() -> list[str]:
    folder = Path("/sys/class/infiniband")
    return [entry.name for entry in folder.iterdir()] if folder.is_dir() else []


def _configured(environment: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """NCCL's variables from its files, the user's before the system's: name to (origin, value)."""
    files = [Path("/etc/nccl.conf")]
    user = environment.get("NCCL_CONF_FILE")
    files.append(Path(user).expanduser() if user else Path.home() / ".nccl.conf")
    values = {}
    for file in files:
        try:
            lines = file.read_text(errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            name, equals, value = line.partition("#")[0].partition("=")
            if equals:
                values[name.strip()] = (f" (in {file})", value.strip())
    return values

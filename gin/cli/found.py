"""What this machine and installation have: the facts behind `gin info`. Nothing here starts a job."""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import os
import platform as system_platform
import resource
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gin import _version
from gin.backends import NAMES, capabilities
from gin.bench.results import cpu_name, usable_cores
from gin.config import Config

COMPILERS = ("g++", "clang++", "c++")  # in the order of gin.platforms.host


@dataclass(frozen=True)
class State:
    """Whether a backend, platform or wire can be used here; if not, why, and what would help."""

    name: str
    usable: bool
    reason: str = ""
    remedy: str = ""
    more: dict[str, Any] = field(default_factory=dict)


def first_line(*command: str) -> str | None:
    """What a program says first, or None when it is not there or does not answer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = (done.stdout or done.stderr).splitlines()
    return lines[0].strip() if done.returncode == 0 and lines else None


def core_error() -> str | None:
    """Why the extension gin._core cannot be loaded, or None when it can."""
    try:
        import gin._core  # noqa: F401
    except ImportError as error:
        return str(error)
    return None


def compilers(config: Config) -> list[dict[str, Any]]:
    """The C++ compilers found, the one that kernels are compiled with first."""
    asked = [config.cxx] if config.cxx else []
    found = []
    for name in dict.fromkeys([*asked, *COMPILERS]):
        path = shutil.which(name.split()[0])
        version = first_line(path, "--version") if path else None
        if version is not None or name in asked:
            found.append({"name": name, "path": path, "version": version})
    return found


def distribution(name: str) -> str | None:
    """Version of an installed Python distribution."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str | None]:
    """gin and what it stands on; None for what is not installed."""
    names = ("numpy", "cuda-core", "cuda-bindings", "nvshmem4py-cu13", "nccl4py", "cupy-cuda13x")
    return {
        "gin": _version.__version__,
        "python": system_platform.python_version(),
        **{name: distribution(name) for name in names},
    }


def gpus() -> list[str]:
    """Names of the NVIDIA GPUs that the driver shows."""
    names = []
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        for line in file.read_text(errors="replace").splitlines():
            if line.startswith("Model:"):
                names.append(line.split(":", 1)[1].strip())
    return names


def nics() -> list[str]:
    """RDMA devices that the kernel shows."""
    folder = Path("/sys/class/infiniband")
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def memlock() -> int | None:
    """Bytes that this process may lock in memory; None: no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def cache(config: Config) -> dict[str, Any]:
    """The folder of compiled kernels and whether it can be written, without making it."""
    path = config.cache_dir
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    return {
        "path": str(path),
        "exists": path.is_dir(),
        "writable": existing.is_dir() and os.access(existing, os.W_OK | os.X_OK),
    }


def platforms(config: Config) -> list[State]:
    """Where kernels can run."""
    broken = core_error()
    chosen = next((c for c in compilers(config) if c["version"] is not None), None)
    if config.cxx and (chosen is None or chosen["name"] != config.cxx):
        host = State("host", False, f"compiler {config.cxx!r} does not run", f"correct cxx ({config.origin('cxx')})")
    elif broken:
        host = State("host", False, f"gin._core cannot be loaded: {broken}", "reinstall with pip install .")
    elif chosen is None:
        host = State("host", False, "no C++ compiler found", "install g++, or set GIN_CXX to one")
    else:
        host = State("host", True, more={"compiler": chosen["path"], "emulated": True})
    reason = "not in this version of gin" + ("" if gpus() else ", and the driver shows no GPU")
    return [host, State("cuda", False, reason, "use platform host")]


def wires() -> list[State]:
    """What proxies and emulated backends can post to."""
    broken = core_error()
    reason = "gin._core cannot be loaded" if broken else ""
    remedy = "reinstall with pip install ." if broken else ""
    shm = State("shm", not broken, reason, remedy, {"about": "ranks of one host"})
    null = State("null", not broken, reason, remedy, {"about": "moves nothing: measures the ring alone"})
    lacks = [] if ctypes.util.find_library("ibverbs") else ["libibverbs is not installed"]
    lacks += [] if nics() else ["the kernel shows no RDMA device"]
    verbs = State("verbs", False, "; ".join(["not in this version of gin", *lacks]), "use wire shm")
    return [shm, null, verbs]


def backends(config: Config) -> list[State]:
    """Which backends can run here, on the configured platform or the best one found."""
    candidates = platforms(config)
    wanted = [p for p in candidates if config.platform in ("auto", p.name)]
    chosen = next((p for p in wanted if p.usable), None)
    states = []
    for name in NAMES:
        able = {"capabilities": dict(capabilities(name))}
        if chosen is None:
            why = "; ".join(f"platform {p.name}: {p.reason}" for p in wanted)
            states.append(State(name, False, why, wanted[0].remedy, able))
        else:
            states.append(State(name, True, more={"platform": chosen.name, **able}))
    return states


def system() -> dict[str, Any]:
    """The machine."""
    return {
        "cpu": cpu_name(),
        "cores": usable_cores(),
        "system": system_platform.system(),
        "kernel": system_platform.release(),
        "machine": system_platform.machine(),
    }

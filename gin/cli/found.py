"""What this machine and installation have: the facts behind `gin info`. Nothing here starts a job."""

from __future__ import annotations

import ctypes
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
from gin.backends import NAMES, capabilities, load
from gin.backends.connection import verbs_options
from gin.backends.nccl_gin import plugin
from gin.bench.results import cpu_name, usable_cores
from gin.config import Config
from gin.errors import Error, UnsupportedError

MOST_LOCAL_RANKS = 16  # that are told which RDMA ports they would use
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
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=10, check=False)
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
    """Names of the GPUs that the CUDA driver shows, in its order."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count, device, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return []
    names = []
    for index in range(count.value):
        if not cuda.cuDeviceGet(ctypes.byref(device), index) and not cuda.cuDeviceGetName(name, len(name), device):
            names.append(name.value.decode(errors="replace"))
    return names


def gpu_bus_ids() -> list[str]:
    """Where the GPUs that the CUDA driver shows are on the PCIe bus, in its order."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count, bus = ctypes.c_int(), ctypes.create_string_buffer(32)
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return []
    answers = [cuda.cuDeviceGetPCIBusId(bus, len(bus), index) or bus.value.decode() for index in range(count.value)]
    return [answer for answer in answers if isinstance(answer, str)]


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
    lacks, remedies = [], []
    if not gpus():
        lacks.append("the CUDA driver shows no GPU")
        remedies.append("use platform host, or run where there is a GPU")
    if distribution("cuda-bindings") is None:
        lacks.append("cuda-bindings is not installed")
        remedies.append("pip install 'gin[cuda13]'")
    return [host, _simulator(host), State("cuda", not lacks, "; ".join(lacks), "; ".join(remedies))]


def _simulator(host: State) -> State:
    """The platform sim: what the host platform needs, and greenlet."""
    if host.usable and distribution("greenlet") is None:
        return State("sim", False, "greenlet is not installed", "pip install greenlet")
    return State("sim", host.usable, host.reason, host.remedy, dict(host.more))


def wires(config: Config) -> list[State]:
    """What proxies and emulated backends can post to. A verbs wire's ports are in `more["ports"]`, and which of them a rank
    would use in `more["uses"]`."""
    if broken := core_error():
        reason = f"gin._core cannot be loaded: {broken}"
        return [State(name, False, reason, "reinstall with pip install .") for name in ("shm", "null")]
    from gin import _core

    states = {
        "shm": lambda: State("shm", True, more={"about": "ranks of one host"}),
        "null": lambda: State("null", True, more={"about": "moves nothing: measures the ring alone"}),
        "verbs": lambda: _verbs(config),
        "cuda": _cuda,
    }
    return [states[name]() if name in states else State(name, True) for name in _core.wires()]


def _verbs(config: Config) -> State:
    from gin import _core

    try:
        ports = list(_core.verbs_ports(verbs_options(config)))
    except Error as error:
        return State("verbs", False, str(error), "install libibverbs1 and the device's driver, or use wire shm")
    usable = [f"{port['device']}:{port['port']}" for port in ports if port["usable"]]
    if usable:
        more = {"about": f"ports {', '.join(usable)}", "ports": ports, "uses": verbs_uses(config, len(usable))}
        return State("verbs", True, more=more)
    reasons = [f"{port['device']}:{port['port']}: {port['reason']}" for port in ports]
    filtered = nics() and "no device and port is as asked for (GIN_IB_HCA, GIN_IB_PORT)"
    reason = "; ".join(reasons) or filtered or "the kernel shows no RDMA device"
    return State("verbs", False, reason, "use wire shm", {"ports": ports})


def verbs_uses(config: Config, ports: int) -> list[dict[str, Any]]:
    """Which RDMA ports a rank would use and why: one row for each of the first ranks of a host, as many as can differ, whose
    memory is the host's; then one for each GPU.

    ports  how many are usable
    """
    from gin import _core

    options = verbs_options(config)
    ranks = min(max(ports, (config.ib_hca or "").count("/") + 1), MOST_LOCAL_RANKS)
    owners: list[tuple[str, dict[str, Any]]] = [(f"local rank {rank}", {"local_rank": rank}) for rank in range(ranks)]
    owners += [(f"GPU {rank}", {"local_rank": rank, "gpu": bus}) for rank, bus in enumerate(gpu_bus_ids())]
    rows = []
    for owner, place in owners:
        try:
            rows.append({"owner": owner, "ports": [list(use) for use in _core.verbs_used(options | place)]})
        except Error as error:
            rows.append({"owner": owner, "ports": [], "error": str(error)})
    return rows


def _cuda() -> State:
    if gpus():
        return State("cuda", True, more={"about": "GPUs of one host"})
    return State("cuda", False, "the CUDA driver shows no GPU", "use wire shm")


def rma_plugin() -> dict[str, str | None]:
    """gin's RMA plugin for NCCL: where it is, and why nccl_gin would not use it (None when it would)."""
    if broken := core_error():
        return {"path": None, "obstacle": f"gin._core cannot be loaded: {broken}"}
    found = plugin.path()
    return {"path": None if found is None else str(found), "obstacle": plugin.obstacle() or None}


def backends(config: Config) -> list[State]:
    """Which backends can run here, on the configured platform or on any."""
    candidates = [state for state in platforms(config) if config.platform in ("auto", state.name)]
    return [_backend(config, name, candidates) for name in NAMES]


def _backend(config: Config, name: str, candidates: list[State]) -> State:
    able: dict[str, Any] = {"capabilities": dict(capabilities(name))}
    usable, reasons, remedies = [], [], []
    for state in candidates:
        reason = state.reason if not state.usable else _load_error(name, state.name)
        if reason is None:
            usable.append(state.name)
        else:
            reasons.append(f"platform {state.name}: {reason}")
            remedies.append(state.remedy or "pip install 'gin[cuda13]'")
    if usable:
        able["lacking"] = {platform: _lacking(config, name, platform) for platform in usable}
        return State(name, True, more={"platforms": usable, **able})
    return State(name, False, "; ".join(reasons), "; ".join(dict.fromkeys(remedies)), able)


def _lacking(config: Config, backend: str, platform: str) -> dict[str, str]:
    """What a backend could do, and cannot as configured on a platform, each with what is in the way."""
    from gin.comm import _choose

    try:
        here = _choose(config.detected(backend=backend, platform=platform))
    except UnsupportedError:  # the wire is another platform's
        return {}
    lacks = load(backend, platform).lacks(here)
    return {name: why for name, why in lacks.items() if capabilities(backend)[name]}


def _load_error(backend: str, platform: str) -> str | None:
    """Why a backend's code for a platform cannot be loaded."""
    try:
        load(backend, platform)
    except (ImportError, Error) as error:
        return str(error)
    return None


def system() -> dict[str, Any]:
    """The machine."""
    return {
        "cpu": cpu_name(),
        "cores": usable_cores(),
        "system": system_platform.system(),
        "kernel": system_platform.release(),
        "machine": system_platform.machine(),
    }

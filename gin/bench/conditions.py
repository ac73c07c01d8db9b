"""What disturbed the machine while it was measured on: other work, stolen time, throttling. Reported, never corrected."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gin.bench import gpus
from gin.bench.results import usable_cores

__all__ = ["counted", "kept", "merge", "read", "since", "warnings"]

_THROTTLES = "devices/system/cpu/cpu*/thermal_throttle/*_throttle_count"
Reading = dict[str, float]


def read(system: Path = Path("/sys"), processes: Path = Path("/proc"), *, with_gpus: bool = False) -> Reading:
    """Counters of this process and machine, as far as the system shows them, and of its GPUs where they count."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    found: Reading = {"preemptions": usage.ru_nivcsw, "major_faults": usage.ru_majflt}
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = (processes / "stat").read_text(encoding="ascii").splitlines()[0].split()[1:]
        ticks = [int(field) for field in fields]
        found |= {"ticks": sum(ticks[:8]), "stolen_ticks": ticks[7]}
    with contextlib.suppress(OSError, ValueError):
        counters = [int(path.read_text()) for path in system.glob(_THROTTLES)]
        if counters:
            found["throttles"] = sum(counters)
    return found | gpus.slowed_ns() if with_gpus else found


def since(
    before: Reading, system: Path = Path("/sys"), processes: Path = Path("/proc"), *, with_gpus: bool = False
) -> dict[str, Any]:
    """What happened since a reading: preemptions and major faults of this process, throttling events and the share of
    time that a hypervisor took from this machine, the time that GPUs were held down, and the load now."""
    now = read(system, processes, with_gpus=with_gpus)
    found: dict[str, Any] = {name: int(now[name] - before[name]) for name in ("preemptions", "major_faults")}
    if "throttles" in now and "throttles" in before:
        found["throttles"] = int(now["throttles"] - before["throttles"])
    for name in ("gpu_power_ns", "gpu_thermal_ns"):
        if name in now and name in before:
            found[name.replace("_ns", "_ms")] = round((now[name] - before[name]) / 1e6, 3)
    if "ticks" in now and now["ticks"] > before.get("ticks", now["ticks"]):
        stolen = now["stolen_ticks"] - before["stolen_ticks"]
        found["stolen_percent"] = round(100 * stolen / (now["ticks"] - before["ticks"]), 2)
    with contextlib.suppress(OSError):
        found["load"] = round(os.getloadavg()[0], 2)
    found["cores"] = usable_cores()
    return found


def counted(cores: int) -> str:
    """A number of cores, in words."""
    return f"{cores} core{'' if cores == 1 else 's'}"


def kept(found: Any) -> dict[str, Any]:
    """The conditions that a file of results tells of, as far as they are numbers."""
    values = found.items() if isinstance(found, dict) else ()
    return {name: value for name, value in values if isinstance(value, (int, float)) and not isinstance(value, bool)}


def merge(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the ranks say together: counts are added, the rest is the worst."""
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for rank in ranks for name in rank):
        values = [rank[name] for rank in ranks if name in rank]
        merged[name] = sum(values) if name in ("preemptions", "major_faults") else max(values)
    return merged


def warnings(found: Mapping[str, Any], ranks: int, emulated: bool) -> list[str]:
    """What a reader of the results has to know of the conditions, in words."""
    told = []
    if found.get("throttles"):
        told.append(f"the processor was throttled {found['throttles']} times: clocks were not constant")
    for name, cause in (("gpu_power_ms", "power"), ("gpu_thermal_ms", "heat")):
        if found.get(name):
            told.append(f"GPU clocks were held down for {cause} during {found[name]:g} ms")
    if found.get("stolen_percent", 0) >= 1:
        told.append(f"{found['stolen_percent']:g} % of the machine's time went to others (steal)")
    if emulated and found.get("cores", ranks) < ranks:
        told.append(f"{ranks} ranks share {counted(found['cores'])}: they wait for each other's turn")
    if found.get("load", 0) > max(found.get("cores", 1), ranks) + 0.5:
        told.append(f"load {found['load']:g} on {counted(found['cores'])}: other work ran meanwhile")
    return told

"""GPUs as the driver's management library (NVML) tells of them: names for the record, and whether they were slowed."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

__all__ = ["facts", "slowed_ns"]

_NAME_BYTES = 96
_POLICIES = {"gpu_power_ns": 0, "gpu_thermal_ns": 1}  # NVML_PERF_POLICY_POWER, _THERMAL


class _Violation(ctypes.Structure):
    """nvmlViolationTime_t: microseconds of reference, nanoseconds of violation."""

    _fields_ = (("reference", ctypes.c_ulonglong), ("violation", ctypes.c_ulonglong))


@contextlib.contextmanager
def _library() -> Iterator[Any]:
    """NVML, initialised, or None where there is none."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        yield None
        return
    if nvml.nvmlInit_v2():
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _handles(nvml: Any) -> list[ctypes.c_void_p]:
    count = ctypes.c_uint()
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return []
    found = []
    for index in range(count.value):
        handle = ctypes.c_void_p()
        if not nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)):
            found.append(handle)
    return found


def facts() -> dict[str, Any]:
    """`gpus`: their names, and `driver`: its version; nothing where NVML tells nothing."""
    with _library() as nvml:
        if nvml is None:
            return {}
        text = ctypes.create_string_buffer(_NAME_BYTES)
        names = []
        for handle in _handles(nvml):
            if not nvml.nvmlDeviceGetName(handle, text, ctypes.c_uint(_NAME_BYTES)):
                names.append(text.value.decode(errors="replace"))
        found: dict[str, Any] = {"gpus": names}
        if not nvml.nvmlSystemGetDriverVersion(text, ctypes.c_uint(_NAME_BYTES)):
            found["driver"] = text.value.decode(errors="replace")
        return found


def slowed_ns() -> dict[str, int]:
    """Nanoseconds that clocks were held down for power (`gpu_power_ns`) and for heat (`gpu_thermal_ns`), all GPUs."""
    with _library() as nvml:
        if nvml is None:
            return {}
        found: dict[str, int] = {}
        for handle in _handles(nvml):
            for name, policy in _POLICIES.items():
                told = _Violation()
                if not nvml.nvmlDeviceGetViolationStatus(handle, ctypes.c_int(policy), ctypes.byref(told)):
                    found[name] = found.get(name, 0) + told.violation
        return found

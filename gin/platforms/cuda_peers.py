"""Which GPUs of this host loads and stores reach, and whether atomics do too."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gin.platforms.cuda_memory import driver

if TYPE_CHECKING:
    from gin.platforms.cuda_memory import Gpu

__all__ = ["NVML_ATOMICS", "NVML_NVLINK", "nvml_status", "without_atomics"]

NVML_NVLINK, NVML_ATOMICS = 2, 3  # NVML_P2P_CAPS_INDEX_*
UNKNOWN = 6  # NVML_P2P_STATUS_UNKNOWN


def without_atomics(gpu: Gpu, rows: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    """The ranks of this host whose memory this GPU's atomics do not reach as such: over PCIe an addition is a load and a
    store, between which another can come. Those that nobody can tell of are left out.

    rows  `host`, `uuid` and `bus` of every rank's GPU
    """
    here = next(row["host"] for row in rows if row["uuid"] == gpu.uuid)
    return frozenset(
        rank
        for rank, row in enumerate(rows)
        if row["host"] == here and row["uuid"] != gpu.uuid and _reached(gpu, row["bus"]) is False
    )


def _reached(gpu: Gpu, bus_id: str) -> bool | None:
    """Whether atomics on another GPU are atomic; None where neither CUDA nor NVML tells."""
    cu = driver()
    code, other = cu.cuDeviceGetByPCIBusId(bus_id.encode())
    if int(code) == 0:
        which = cu.CUdevice_P2PAttribute.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
        code, value = cu.cuDeviceGetP2PAttribute(which, gpu.handle, other)
        return bool(value) if int(code) == 0 else None
    return nvml_status(gpu.bus_id, bus_id, NVML_ATOMICS)  # CUDA_VISIBLE_DEVICES hides it from this process


def nvml_status(one: str, other: str, index: int) -> bool | None:
    """What NVML says of the way between two GPUs, by their bus ids; None where it does not tell."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if nvml.nvmlInit_v2():
        return None
    try:
        handles = []
        for bus_id in (one, other):
            handle = ctypes.c_void_p()
            if nvml.nvmlDeviceGetHandleByPciBusId_v2(bus_id.encode(), ctypes.byref(handle)):
                return None
            handles.append(handle)
        status = ctypes.c_int()
        failed = nvml.nvmlDeviceGetP2PStatus(*handles, index, ctypes.byref(status))
        return None if failed or status.value == UNKNOWN else status.value == 0
    finally:
        nvml.nvmlShutdown()

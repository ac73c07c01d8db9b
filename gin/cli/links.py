"""How the GPUs of this machine reach one another, and the route that each backend would take between two of them."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

from gin.platforms.cuda_peers import NVML_NVLINK, nvml_status

__all__ = ["links", "routes"]

ATTRIBUTES = {"access": 2, "atomics": 3}  # CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, _NATIVE_ATOMIC_SUPPORTED


def links() -> list[dict[str, Any]]:
    """One row per pair of GPUs, both directions alike: `gpus`, whether each loads and stores the other's memory (`access`),
    whether atomics do (`atomics`), and `nvlink` (None where the driver does not tell)."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return []
    return [
        {"gpus": [first, second], **_attributes(cuda, first, second), "nvlink": _nvlink(first, second)}
        for first, second in itertools.combinations(range(count.value), 2)
    ]


def _attributes(cuda: Any, first: int, second: int) -> dict[str, bool]:
    found = {}
    for name, attribute in ATTRIBUTES.items():
        value, both = ctypes.c_int(), True
        for one, other in ((first, second), (second, first)):
            failed = cuda.cuDeviceGetP2PAttribute(ctypes.byref(value), attribute, one, other)
            both = both and not failed and bool(value.value)
        found[name] = both
    return found


def _nvlink(first: int, second: int) -> bool | None:
    """Whether NVLink joins them. CUDA's and NVML's numbers agree unless CUDA_VISIBLE_DEVICES is set: then by bus id."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    one, other = ctypes.create_string_buffer(32), ctypes.create_string_buffer(32)
    for bus, ordinal in ((one, first), (other, second)):
        if cuda.cuDeviceGetPCIBusId(bus, len(bus), ordinal):
            return None
    return nvml_status(one.value.decode(), other.value.decode(), NVML_NVLINK)


def routes(link: dict[str, Any], *, nics: bool, plugin: bool) -> dict[str, str]:
    """For each backend, what operations between the two GPUs of a row of `links` would go by, and what is in the way of
    the rest.

    nics    whether this machine has RDMA NICs
    plugin  whether nccl_gin would use gin's RMA plugin for NCCL
    """
    near, direct = link["access"], link["access"] and link["atomics"]
    over = " or ".join(["cuda"] * near + ["verbs"] * nics)
    gin = "native over the NIC" if nics else "native over gin's RMA plugin" if plugin else ""
    without = "no load and store between them (peer access), and no RDMA NIC: put both under one PCIe switch or NVLink"
    return {
        "nvshmem": "direct, " * direct + "native" if near else "native over the NIC" if nics else f"none: {without}",
        "nccl_gin": ", ".join(filter(None, ["direct" if direct else "", gin])) or f"none: {without}",
        "ibrc_proxy": "direct, " * direct + f"native over wire {over}" if over else f"none: {without}",
    }

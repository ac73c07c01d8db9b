"""Models of networks for the simulator: published or measured figures, each with its source, and what they are used as.

A model has three classes of links: a rank to itself, to ranks of its node, and to those of other nodes. A message takes
`overhead_ns` and its bytes at `bandwidth_GBps` on the sender's card, `latency_ns` on the way, and `poll_ns` until a thread
that waits has noticed; a card sends at most `rate_Mops` messages per microsecond. The thread that sends is busy for
`post_ns` meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from gin.errors import ConfigError

__all__ = ["PRESETS", "Preset", "model_options"]

_LINK = ("latency_ns", "overhead_ns", "bandwidth_GBps", "rate_Mops")
_WHOLE = ("ranks_per_node", "post_ns", "poll_ns", "proxy_ns", "launch_ns")
PARAMETERS = (*_WHOLE, *(f"{link}.{name}" for link in ("self", "intra", "inter") for name in _LINK))


@dataclass(frozen=True)
class Preset:
    """A named model. `sources` has the origin of each figure that was not made up."""

    name: str
    about: str
    parameters: Mapping[str, float]
    sources: tuple[str, ...] = field(default=())


# One way of NVSHMEM's 8-byte put with signal over NVLink takes 2.50 us (half of 5.00), of which the plain store of a flag is
# 1.23 (half of 2.46); a thread that polls has noticed after 0.2; one block copies 44 GB/s. A proxy's own time is part of the
# published round trips.
_NVLINK = {
    "intra.latency_ns": 1430,
    "intra.overhead_ns": 870,
    "intra.bandwidth_GBps": 44.0,
    "intra.rate_Mops": 100.0,
    "self.latency_ns": 600,
    "self.overhead_ns": 100,
    "self.bandwidth_GBps": 44.0,
    "self.rate_Mops": 100.0,
    "post_ns": 200,
    "poll_ns": 200,
    "proxy_ns": 0,
    "launch_ns": 3000,
}
_NVLINK_SOURCES = (
    "two H200s, NV18: putmem_signal_nbi_block of NVSHMEM 3.8.0, 8 bytes, round trip 5.00 us; flag by plain stores 2.46 us",
    "the same: putmem_nbi_block of 32 MiB by one block of 1024 threads, 44 GB/s",
)


def _infiniband(one_way_ns: int, bandwidth: float, rate: float) -> dict[str, float]:
    """Nodes of NVLink GPUs, with a card each between nodes."""
    way = one_way_ns - int(_NVLINK["poll_ns"])
    return {
        **_NVLINK,
        "ranks_per_node": 8,
        "inter.latency_ns": way,
        "inter.overhead_ns": 0,
        "inter.bandwidth_GBps": bandwidth,
        "inter.rate_Mops": rate,
    }


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        preset.name: preset
        for preset in (
            Preset(
                "nvlink-h200",
                "GPUs of one host over NVLink, one block per transfer",
                {**_NVLINK, "ranks_per_node": 1 << 20},
                _NVLINK_SOURCES,
            ),
            Preset(
                "ib400-proxy",
                "400 Gb/s InfiniBand, posted by a CPU proxy; NVLink inside nodes of 8",
                _infiniband(9000, 46.6, 2.5),
                (
                    "put with signal, 4 to 128 bytes, NCCL 2.28 GIN proxy: round trip 18.0 us (arXiv 2511.15076; DGX H100)",
                    "torchcomms IBRC, 1 GB: 46.60 GB/s (comms/prims/benchmarks/results/IbrcBenchmarkResults.md)",
                    "NVSHMEM IBRC, ConnectX-7: 2.5 to 3.2 million puts a second, whatever the number of blocks",
                    *_NVLINK_SOURCES,
                ),
            ),
            Preset(
                "ib400-gpu",
                "400 Gb/s InfiniBand, posted by the GPU; NVLink inside nodes of 8",
                _infiniband(8350, 48.36, 87.2),
                (
                    "put with signal, 4 to 128 bytes, NCCL 2.28 GDAKI: round trip 16.7 us (arXiv 2511.15076; DGX H100)",
                    "torchcomms IBGDA, 1 GB: 48.36 GB/s (comms/prims/benchmarks/results/IbrcBenchmarkResults.md)",
                    "NVSHMEM 3.6.5 IBGDA, p of 4 bytes: at most 87.2 million a second (16 blocks)",
                    *_NVLINK_SOURCES,
                ),
            ),
        )
    }
)


def model_options(text: str) -> dict[str, float]:
    """Options of the simulation for a model such as `ib400-proxy` or `ib400-proxy,ranks_per_node=4,inter.latency_ns=5000`.

    The preset may be left out. Raises ConfigError for names that do not exist and values that are no numbers.
    """
    parameters: dict[str, float] = {}
    for word in filter(None, (word.strip() for word in text.split(","))):
        name, equals, value = word.partition("=")
        if not equals:
            if name not in PRESETS:
                raise ConfigError(f"model: no preset is called {name!r}; there are {', '.join(PRESETS)}")
            parameters.update(PRESETS[name].parameters)
        elif name not in PARAMETERS:
            raise ConfigError(f"model: {name!r} is no parameter; there are {', '.join(PARAMETERS)}")
        else:
            parameters[name] = _number(name, value)
    return {f"model.{name}": value for name, value in parameters.items()}


def _number(name: str, text: str) -> float:
    try:
        return float(text) if name.endswith(("GBps", "Mops")) else int(text)
    except ValueError:
        raise ConfigError(f"model: {name}={text} is not a number") from None

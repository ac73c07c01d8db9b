"""Wires that have options and connections: what a wire is made with, and how the ranks' endpoints find each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gin.backends.base import Job

__all__ = ["connect", "verbs_lacks", "verbs_options", "wire_options"]

PROBE_SECONDS = 60.0  # where connect_timeout is 0: a probe has to end

# Settings that the verbs wire takes under the same names.
VERBS_SETTINGS = (
    "ib_hca",
    "ib_nics",
    "ib_port",
    "ib_gid_index",
    "ib_pkey_index",
    "ib_sl",
    "ib_traffic_class",
    "ib_timeout",
    "ib_retry",
    "ib_mtu",
    "ib_inline",
    "ib_depth",
    "ib_relaxed_ordering",
)


def verbs_options(config: Any) -> dict[str, Any]:
    """The options of the verbs wire that a configuration gives: numbers and text by name."""
    values = {name: getattr(config, name) for name in VERBS_SETTINGS}
    return {name: int(v) if isinstance(v, bool) else v for name, v in values.items() if v is not None}


def verbs_lacks(config: Any) -> dict[str, str]:
    """Capabilities that no backend has over the verbs wire as configured, each with what is in the way."""
    if config.wire == "verbs" and config.ib_nics > 1:
        return {
            "atomics": f"with ib_nics={config.ib_nics}: atomics of two NICs on one word are not atomic with each other; "
            "use ib_nics=1"
        }
    return {}


def wire_options(job: Job) -> dict[str, Any]:
    """What the job's wire is made with."""
    config = job.config
    options: dict[str, Any] = {"max_message": config.max_message} if config.max_message else {}
    if config.wire == "verbs":
        options |= verbs_options(config) | {"local_rank": job.local_rank}
    return options


def connect(job: Job, fabric: Any) -> None:
    """Connects the endpoints of all ranks and proves that every peer is reached. Collective; all endpoints exist.

    Raises RemoteError naming the peers that are not reached, ConfigError when ranks differ.
    """
    ranks = range(job.size)
    offers = job.exchange.gather("connect", lambda: [fabric.address(peer).hex() for peer in ranks])
    if not any(any(offer) for offer in offers):
        return

    def reach() -> None:
        for peer in ranks:
            fabric.connect(peer, bytes.fromhex(offers[peer][job.rank]))

    job.exchange.agree("connect: queue pairs", reach)
    job.exchange.agree("connect: probe", lambda: fabric.probe(job.config.connect_timeout or PROBE_SECONDS))

"""The simulator: every rank, block, thread, proxy and message of a job in one OS thread, under one seed, in virtual time.

Loaded by every communicator, so that this module imports nothing of it: what it defines is what the others have to know.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gin.config import Config
    from gin.rendezvous.store import Store

__all__ = ["join_simulated", "simulated", "simulated_defaults"]

RING_DEPTH = 32  # small, so that rings wrap around and fill in short runs


def simulated() -> bool:
    """Whether a simulated rank's program is what runs now."""
    job = sys.modules.get("gin.sim.job")
    return job is not None and job.current() is not None


def _checked() -> bool:
    """Whether the simulated rank that runs now is one of `gin check`."""
    job = sys.modules.get("gin.sim.job")
    place = job.current() if job is not None else None
    return place is not None and place.job.checks_ranges


def simulated_defaults(config: Config) -> dict[str, Any]:
    """What the settings left open are in the simulator: messages can be delayed, direct stores cannot. Where it looks for
    bugs, ranges are checked."""
    found: dict[str, Any] = {}
    if config.origin("check") == "default" and _checked():
        found["check"] = True
    if config.origin("route") == "default":
        found["route"] = "native"
    if config.origin("ring_depth") == "default":
        found["ring_depth"] = RING_DEPTH
    return found


def join_simulated(config: Config, *, rank: int | None, size: int | None, bootstrap: object | None) -> Store:
    """The store of a simulated rank's next communicator: of the job that it is in, or of a job of this rank alone.

    Raises UnsupportedError in a process that is one rank of several.
    """
    from gin.sim import store
    from gin.sim.job import current_or_solo

    place = current_or_solo(config, rank, size, bootstrap)
    return store.join(config, place)

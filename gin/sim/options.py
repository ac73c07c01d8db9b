"""What a simulation is made with: settings in the words of gin._core.Simulation."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

from gin.config import Config, parse_size
from gin.errors import ConfigError, OutOfMemoryError
from gin.sim.model import model_options

__all__ = ["CHECKS", "FAULTS", "HOST", "AllocationFault", "simulation_options"]

HOST = "host."  # options that are not the simulation's but the job's
CHECKS = f"{HOST}check"  # kernels check ranges where the settings leave it open

_Options = dict[str, Any]
_LONGEST_SPIN = 10**9  # ms
_EARLY = 48  # seeded faults strike one of so many first requests


def simulation_options(config: Config, size: int, seed: int | None = None) -> _Options:
    """The options of a job of `size` ranks with these settings. What is seeded and not given comes from the seed.

    Raises ConfigError for models and faults that there are none of.
    """
    seed = config.seed if seed is None else seed
    # Poison is for what a put or get moves: a word that put_value is about to change still reads as the old or the new one.
    options: _Options = {
        "seed": seed,
        "policy": config.policy,
        "hostile": int(config.hostile),
        "poison": 1,
        "spin_limit_ms": min(math.ceil(config.spin_limit * 1000), _LONGEST_SPIN),
    }
    if config.max_message is not None:
        options["max_message"] = config.max_message
    if config.model is not None:
        options |= model_options(config.model)
    if config.faults is not None:
        options |= _fault_options(config.faults, size, random.Random(seed))
    return options


def _error(value: str, size: int, draw: random.Random) -> _Options:
    return {"fault.fail_at": _whole("error", value) if value else draw.randrange(_EARLY)}


def _dead(value: str, size: int, draw: random.Random) -> _Options:
    rank, _, after = value.partition("@")
    number = _whole("dead", rank) if rank else draw.randrange(size)
    if number >= size:
        raise ConfigError(f"faults: dead={value}: the job has {size} ranks")
    return {"fault.dead_rank": number, "fault.dead_after": _whole("dead", after) if after else draw.randrange(_EARLY)}


def _full(value: str, size: int, draw: random.Random) -> _Options:
    return {"queue": _whole("full", value) if value else draw.randrange(1, 5)}


def _alloc(value: str, size: int, draw: random.Random) -> _Options:
    return {f"{HOST}alloc_at": _whole("alloc", value) if value else draw.randrange(3 * size)}


def _register(value: str, size: int, draw: random.Random) -> _Options:
    return {"fault.register_at": _whole("register", value) if value else draw.randrange(3 * size)}


def _message(value: str, size: int, draw: random.Random) -> _Options:
    try:
        return {"max_message": parse_size(value or "64K")}
    except ValueError as error:
        raise ConfigError(f"faults: message={value} is not {error}") from None


def _refuse(value: str, size: int, draw: random.Random) -> _Options:
    return {"fault.refuse_one_in": _whole("refuse", value) if value else draw.randrange(2, 6)}


# What can be asked for: name -> (how, what it does).
FAULTS: Mapping[str, tuple[Callable[[str, int, random.Random], _Options], str]] = {
    "error": (_error, "a request completes in error: error=N the N-th, from 0"),
    "dead": (_dead, "a rank dies: dead=RANK@N when the job has posted N requests"),
    "full": (_full, "queues are short: full=N requests at a time"),
    "alloc": (_alloc, "an allocation fails: alloc=N the N-th of the job, from 0"),
    "register": (_register, "a registration fails: register=N the N-th of the job, from 0"),
    "message": (_message, "messages are limited: message=SIZE, by default 64K"),
    "refuse": (_refuse, "posts are refused now and then, to be tried again: refuse=N one in N"),
}


def _fault_options(text: str, size: int, draw: random.Random) -> _Options:
    options: _Options = {}
    for word in filter(None, (word.strip() for word in text.split(","))):
        name, _, value = word.partition("=")
        if name.startswith("fault."):  # the simulation's own, of which some break the library's promises
            options[name] = _whole(name, value)
        elif name not in FAULTS:
            raise ConfigError(f"faults: none is called {name!r}; there are {', '.join(FAULTS)}")
        else:
            options |= FAULTS[name][0](value, size, draw)
    return options


def _whole(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"faults: {name}={text} is not a whole number")
    return int(text)


class AllocationFault:
    """Makes one allocation of a job fail. `at` counts them from 0 over all ranks; None: none fails."""

    def __init__(self, at: int | None) -> None:
        self._left = at

    def allocate(self, rank: int, tag: str, nbytes: int) -> None:
        """Raises OutOfMemoryError where this allocation is the one."""
        if self._left is None:
            return
        self._left -= 1
        if self._left < 0:
            self._left = None
            raise OutOfMemoryError(f"{tag}: rank {rank} cannot have {nbytes} bytes: a fault was asked for (alloc)")

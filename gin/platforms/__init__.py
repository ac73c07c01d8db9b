"""The platforms by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gin.errors import UnsupportedError

if TYPE_CHECKING:
    from gin.collective import Exchange
    from gin.config import Config
    from gin.platforms.base import Platform
    from gin.ranks import Ranks

__all__ = ["open_platform"]


def open_platform(config: Config, ranks: Ranks, exchange: Exchange, threads: int) -> Platform:
    """The platform that `config` names. Collective.

    threads  busy threads that each rank has while kernels run
    """
    if config.platform == "host":
        from gin.platforms.host import HostPlatform

        return HostPlatform(config, ranks, threads)
    if config.platform == "cuda":
        from gin.platforms.cuda import CudaPlatform

        return CudaPlatform(config, ranks, exchange)
    if config.platform == "sim":
        from gin.platforms.sim import SimPlatform
        from gin.sim.job import current_or_solo

        return SimPlatform(config, current_or_solo(config, ranks.rank, ranks.size))
    raise UnsupportedError(f"platform {config.platform} is not in this version of gin; use host, cuda or sim")

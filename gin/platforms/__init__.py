"""The platforms by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gin.errors import UnsupportedError

if TYPE_CHECKING:
    from gin.config import Config
    from gin.platforms.base import Platform

__all__ = ["open_platform"]


def open_platform(config: Config, local_size: int, threads: int) -> Platform:
    """The platform that `config` names.

    local_size  ranks of this host
    threads     busy threads that each of them has while kernels run
    """
    if config.platform == "host":
        from gin.platforms.host import HostPlatform

        return HostPlatform(config, local_size, threads)
    raise UnsupportedError(f"platform {config.platform} is not in this version of gin; use platform=host")

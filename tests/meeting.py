"""Helpers: ranks as threads of the test process."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gin.config import Config
from gin.rendezvous import join
from gin.rendezvous.store import Store


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def new_address(kind: str) -> str:
    return f"unix:@gin-test-{secrets.token_hex(6)}" if kind == "unix" else f"127.0.0.1:{free_port()}"


def settings_for(address: str, **more: Any) -> Config:
    return Config.from_sources(**{"rendezvous": address, "job_secret": "test", "connect_timeout": "20s", **more})


def together(size: int, function: Callable[[int], Any]) -> list[Any]:
    """`function(rank)` for all ranks at once, in threads; exceptions are returned in place."""

    def guarded(rank: int) -> Any:
        try:
            return function(rank)
        except BaseException as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(guarded, range(size)))


def open_stores(size: int, address: str, **more: Any) -> list[Store]:
    config = settings_for(address, **more)
    stores = together(size, lambda rank: join(config, rank=rank, size=size))
    for store in stores:
        if isinstance(store, BaseException):
            raise store
    return stores


def close_stores(stores: list[Store]) -> None:
    together(len(stores), lambda rank: stores[rank].close(5))

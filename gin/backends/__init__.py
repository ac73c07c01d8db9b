"""The backends by name, and what each can do."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gin.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from gin.backends.base import Backend
    from gin.config import Config

__all__ = [
    "NAMES",
    "Capabilities",
    "capabilities",
    "effective",
    "folder",
    "lacking_macros",
    "load",
    "others_with",
    "require",
]

NAMES = ("nvshmem", "nccl_gin", "ibrc_proxy")

_LINE = re.compile(r"^GIN_CAPABILITY\((\w+), (true|false)\)", re.MULTILINE)


class Capabilities(Mapping[str, bool]):
    """What a backend can do, by name. The same constants that its device code is compiled with."""

    def __init__(self, backend: str, values: Mapping[str, bool]) -> None:
        self.backend = backend
        self._values = dict(values)

    def __getitem__(self, name: str) -> bool:
        try:
            return self._values[name]
        except KeyError:
            known = ", ".join(sorted(self._values))
            raise ConfigError(f"no capability is called {name!r}; there are {known}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Capabilities({self.backend}: {', '.join(f'{k}={v}' for k, v in self._values.items())})"


def folder(name: str) -> Path:
    """The folder of a backend: its device code and its Python."""
    return Path(__file__).parent / name


@cache
def capabilities(name: str) -> Capabilities:
    """The capabilities of a backend, read from its capabilities.h."""
    text = (folder(name) / "capabilities.h").read_text(encoding="utf-8")
    return Capabilities(name, {match[1]: match[2] == "true" for match in _LINE.finditer(text)})


def effective(config: Config) -> Capabilities:
    """What the configured backend can do on the configured platform, by its wire and route, which may lack some of it."""
    lacks = load(config.backend, config.platform).lacks(config)
    able = capabilities(config.backend)
    return Capabilities(config.backend, {name: value and name not in lacks for name, value in able.items()})


def others_with(capability: str, config: Config) -> list[str]:
    """The other backends that have a capability where the configured one runs."""
    return [
        name
        for name in NAMES
        if name != config.backend and effective(dataclasses.replace(config, backend=name))[capability]
    ]


def lacking_macros(config: Config) -> tuple[str, ...]:
    """What kernels are compiled with, so that they refuse what the backend lacks as configured: names and values."""
    lacks = load(config.backend, config.platform).lacks(config)
    return tuple(f"GIN_LACKS_{name.upper()}=1" for name in lacks)


def require(config: Config, wanted: Iterable[str]) -> None:
    """Raises UnsupportedError unless the configured backend has every capability in `wanted`, and those that its settings
    need; says what would."""
    name = config.backend
    for capability in (*wanted, *(["peer_failure"] if config.on_peer_failure == "peer" else [])):
        if effective(config)[capability]:
            continue
        if capabilities(name)[capability]:
            why = load(name, config.platform).lacks(config)[capability]
            raise UnsupportedError(f"backend {name} cannot do {capability!r} on platform {config.platform} {why}")
        others = others_with(capability, config)
        where = f"; {', '.join(others)} can" if others else ", nor can any other"
        raise UnsupportedError(f"backend {name} cannot do {capability!r}{where}")


def load(name: str, platform: str) -> type[Backend]:
    """The class of a backend on a platform: `Backend` in gin/backends/<name>/<platform>.py."""
    from importlib import import_module

    backend: type[Backend] = import_module(f"gin.backends.{name}.{platform}").Backend
    return backend

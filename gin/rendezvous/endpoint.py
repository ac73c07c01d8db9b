"""Where ranks meet: an abstract Unix socket on one host, or a TCP address that rank 0 listens on."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from gin.config import Config
from gin.errors import BootstrapError, ConfigError
from gin.ranks import Ranks

__all__ = ["Endpoint", "choose", "connect", "listen", "parse", "peer_identity", "tune"]

# The rendezvous of a job under torchrun is this far from its MASTER_PORT, where torchrun's own store listens; the next
# few ports are the first that other libraries try.
PORT_OFFSET = 117

_LONGEST_NAME = 100


@dataclass(frozen=True)
class Endpoint:
    """An address, and the setting it comes from (`origin`, for messages)."""

    kind: str  # unix or tcp
    host: str  # the abstract name (unix), or a host name or address
    port: int = 0
    origin: str = ""

    def __str__(self) -> str:
        if self.kind == "unix":
            return f"unix:@{self.host}"
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"


def parse(text: str, origin: str = "rendezvous") -> Endpoint:
    """An endpoint out of `host:port`, `tcp://host:port` or `unix:@name`. Raises ConfigError."""
    if text.startswith("unix:"):
        name = text.removeprefix("unix:")
        if not re.fullmatch(f"@[!-~]{{1,{_LONGEST_NAME}}}", name):
            raise ConfigError(
                f"{origin}: {text!r:.200}: give unix:@NAME, an abstract name of at most {_LONGEST_NAME} visible ASCII "
                "characters (sockets in the file system are not used)"
            )
        return Endpoint("unix", name[1:], origin=origin)
    match = re.fullmatch(r"(?:tcp://)?(?:\[([0-9a-fA-F:.%\w]+)\]|([^\s:/\[\]]+)):([0-9]{1,5})/?", text)
    if match is None or not 1 <= int(match[3]) <= 65535:
        raise ConfigError(f"{origin}: {text!r:.200} is none of host:port, tcp://host:port, unix:@name")
    return Endpoint("tcp", match[1] or match[2], int(match[3]), origin)


def choose(ranks: Ranks, config: Config, generation: int, variables: Mapping[str, str] | None = None) -> Endpoint:
    """Where the ranks of this job meet for the `generation`-th time. Raises ConfigError when nothing says."""
    environment = os.environ if variables is None else variables
    if config.rendezvous is not None:
        return parse(config.rendezvous, config.origin("rendezvous"))
    if ranks.single_host:
        identity = f"{os.geteuid()}\0{ranks.job}\0{generation}"
        return Endpoint("unix", "gin-" + hashlib.sha256(identity.encode()).hexdigest()[:32], origin=ranks.source)
    master = environment.get("MASTER_ADDR", "").strip()
    if not master:
        raise ConfigError(
            f"rank {ranks.rank} of {ranks.size} ({ranks.source}) has ranks on other hosts and nothing says where to "
            "meet: set GIN_RENDEZVOUS=HOST:PORT on all ranks, HOST being where rank 0 runs"
        )
    return Endpoint("tcp", master.strip("[]"), _port(config, environment), "MASTER_ADDR")


def _port(config: Config, environment: Mapping[str, str]) -> int:
    if config.port is not None:
        return config.port
    text = environment.get("MASTER_PORT", "").strip()
    if not re.fullmatch("[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
        raise ConfigError(f"MASTER_PORT={text!r:.80} is not a port; set GIN_PORT on all ranks (the same free port)")
    first = 1024  # stay among the ports that users may bind
    return first + (int(text) - first + PORT_OFFSET) % (65536 - first)


def listen(endpoint: Endpoint, *, single_host: bool) -> list[socket.socket]:
    """Sockets that accept at the endpoint and at no other address. Raises BootstrapError with the remedy.

    A name that only this host resolves to its loopback address is refused for a job of several hosts.
    """
    if endpoint.kind == "unix":
        return [_listen_unix(endpoint)]
    meant = endpoint.host in ("localhost", "::1") or endpoint.host.startswith("127.")
    return _listen_tcp(endpoint, loopback_allowed=single_host or meant)


def _listen_unix(endpoint: Endpoint) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind("\0" + endpoint.host)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        if error.errno != errno.EADDRINUSE:
            raise BootstrapError(f"cannot listen at {endpoint}: {error.strerror}") from None
        raise BootstrapError(
            f"{endpoint} is in use{_holder(endpoint)}: another job, or another rank 0 of this one. Set GIN_RENDEZVOUS "
            "to another unix:@NAME on all ranks"
        ) from None
    listener.setblocking(False)
    return listener


def _holder(endpoint: Endpoint) -> str:
    """Who listens at a busy abstract name, as far as it can be seen."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(0.5)
            probe.connect("\0" + endpoint.host)
            process, user = peer_identity(probe)
            return f" by process {process} of user {user}"
    except OSError:
        return ""


def _listen_tcp(endpoint: Endpoint, *, loopback_allowed: bool) -> list[socket.socket]:
    listeners: list[socket.socket] = []
    refused: list[str] = []
    in_use = False
    for family, address in _addresses(endpoint):
        if (address[0].startswith("127.") or address[0] == "::1") and not loopback_allowed:
            refused.append(f"{address[0]}: only this host can reach it, and the job has ranks on others")
            continue
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(address)
            listener.listen(1024)
            listener.setblocking(False)
            listeners.append(listener)
        except OSError as error:
            listener.close()
            in_use = in_use or error.errno == errno.EADDRINUSE
            reason = "not an address of this host" if error.errno == errno.EADDRNOTAVAIL else error.strerror
            refused.append(f"{address[0]}: {reason}")
    if listeners and not in_use:
        return listeners
    for listener in listeners:
        listener.close()
    remedy = (
        "Set GIN_PORT or GIN_RENDEZVOUS to a free port on all ranks"
        if in_use
        else "Set GIN_RENDEZVOUS=HOST:PORT on all ranks, HOST being an address of rank 0's host that all can reach"
    )
    raise BootstrapError(f"rank 0 cannot listen at {endpoint} (from {endpoint.origin}): {'; '.join(refused)}. {remedy}")


def _addresses(endpoint: Endpoint) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    """The addresses of a host name, each once, in the resolver's order."""
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise BootstrapError(
            f"the host {endpoint.host!r} (from {endpoint.origin}) cannot be resolved: {error}. "
            "Set GIN_RENDEZVOUS=HOST:PORT with a name or address that all ranks know"
        ) from None
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))  # type: ignore[misc]


def connect(endpoint: Endpoint, timeout: float) -> socket.socket:
    """A connection, non-blocking. Raises OSError with every address's reason, or BootstrapError (see `_addresses`)."""
    if endpoint.kind == "unix":
        return _connect_one(socket.AF_UNIX, "\0" + endpoint.host, timeout)
    reasons = []
    for family, address in _addresses(endpoint):
        try:
            return _connect_one(family, address, timeout)
        except OSError as error:
            reasons.append(f"{address[0]}: {error.strerror or error}")
    raise OSError(errno.ECONNREFUSED, "; ".join(reasons))


def _connect_one(family: socket.AddressFamily, address: str | tuple[str, int], timeout: float) -> socket.socket:
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        connection.connect(address)
        if family == socket.AF_UNIX and (user := peer_identity(connection)[1]) != os.geteuid():
            raise BootstrapError(
                f"the name unix:@{str(address)[1:]} is held by user {user}, not by this job. "
                "Set GIN_RENDEZVOUS to another unix:@NAME on all ranks"
            )
        if family != socket.AF_UNIX and connection.getsockname() == connection.getpeername():
            raise OSError(errno.ECONNREFUSED, "Connection refused")  # a port in the ephemeral range met itself
        connection.setblocking(False)
        tune(connection)
        return connection
    except BaseException:
        connection.close()
        raise


def peer_identity(connection: socket.socket) -> tuple[int, int]:
    """(process, user) at the other end of a Unix socket."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
    process, user, _ = struct.unpack("iII", credentials)
    return process, user


def tune(connection: socket.socket) -> None:
    """Over TCP: send at once, and notice within about half a minute when the other host is gone."""
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)

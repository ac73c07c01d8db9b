"""Meeting through what the program already has: an mpi4py communicator or torch.distributed, asked twice and let go."""

from __future__ import annotations

import json
import secrets
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gin.config import Config
from gin.errors import BootstrapError, ConfigError, Error
from gin.ranks import Ranks
from gin.rendezvous.endpoint import Endpoint, parse
from gin.rendezvous.hosts import host_identity
from gin.rendezvous.secret import fresh
from gin.rendezvous.server import Hosting, Server

__all__ = ["Agreement", "agree"]

_Exchange = Callable[[str], list[str]]  # this rank's text in, every rank's out


@dataclass(frozen=True)
class Agreement:
    """Where and as whom this rank joins; on rank 0 also the server that is already there."""

    ranks: Ranks
    endpoint: Endpoint
    secret: bytes
    hosting: Hosting | None


def agree(bootstrap: object, config: Config) -> Agreement:
    """Agrees on place, address and a fresh secret. Collective over the foreign communicator.

    Raises ConfigError for an object that is neither, BootstrapError on all ranks when rank 0 cannot listen.
    """
    rank, size, exchange, name = _adapt(bootstrap)
    here = json.dumps({"host": host_identity(), "name": socket.gethostname()})
    places = [json.loads(text) for text in exchange(here)]
    hosts = [str(place["host"]) for place in places]
    local = [other for other in range(size) if hosts[other] == hosts[rank]]
    single_host = len(local) == size
    offer, hosting = "", None
    if rank == 0:
        try:
            secret, job = fresh(), f"{name}:{secrets.token_hex(8)}"
            others = [str(place["name"]) for place in places if place["host"] != hosts[0]]
            endpoint = _endpoint(config, single_host, job, others)
            if size > 1:
                hosting = Server.host(endpoint, (job, size, 0), secret.encode(), single_host=single_host)
                endpoint = hosting.server.endpoint
            offer = json.dumps({"endpoint": str(endpoint), "secret": secret, "job": job})
        except Error as error:  # the others must not be left waiting
            offer = json.dumps({"error": str(error)})
    answer = json.loads(exchange(offer)[0])
    if "error" in answer:
        raise BootstrapError(f"rank 0 cannot open the job that {name} was to start: {answer['error']}")
    ranks = Ranks(rank, size, local.index(rank), len(local), name, answer["job"], single_host)
    return Agreement(ranks, parse(answer["endpoint"], name), answer["secret"].encode(), hosting)


def _adapt(bootstrap: Any) -> tuple[int, int, _Exchange, str]:
    """(rank, size, exchange, name) of a communicator, known by what it can do."""
    if all(callable(getattr(bootstrap, name, None)) for name in ("Get_rank", "Get_size", "allgather")):
        return (
            int(bootstrap.Get_rank()),
            int(bootstrap.Get_size()),
            lambda text: list(bootstrap.allgather(text)),
            "mpi4py",
        )
    group, distributed = None, bootstrap
    if not callable(getattr(bootstrap, "all_gather_object", None)):
        group, distributed = bootstrap, sys.modules.get("torch.distributed")
        if distributed is None or not (
            callable(getattr(group, "rank", None)) and callable(getattr(group, "size", None))
        ):
            raise ConfigError(
                f"bootstrap={bootstrap!r:.100} is neither an mpi4py communicator nor torch.distributed nor one of its "
                "process groups"
            )
    if not distributed.is_initialized():
        raise ConfigError("bootstrap: torch.distributed is not initialised; call init_process_group first")
    rank, size = int(distributed.get_rank(group)), int(distributed.get_world_size(group))
    if rank < 0:
        raise ConfigError("bootstrap: this process is not in the process group")

    def exchange(text: str) -> list[str]:
        texts: list[str] = [""] * size
        distributed.all_gather_object(texts, text, group=group)
        return texts

    return rank, size, exchange, "torch.distributed"


def _endpoint(config: Config, single_host: bool, job: str, others: Sequence[str]) -> Endpoint:
    """Where rank 0 will listen; port 0 stands for any free one."""
    if config.rendezvous is not None:
        return parse(config.rendezvous, config.origin("rendezvous"))
    if single_host:
        return Endpoint("unix", f"gin-{job.rpartition(':')[2]}", origin="bootstrap")
    return Endpoint("tcp", _address_towards(others), config.port or 0, "bootstrap")


def _address_towards(others: Sequence[str]) -> str:
    """This host's own address on the way to the others."""
    for name in dict.fromkeys(others):
        try:
            found = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)
        except OSError:
            continue
        for family, kind, _, _, address in found:
            try:
                with socket.socket(family, kind) as probe:
                    probe.connect(address)  # of a datagram socket: chooses a route and sends nothing
                    own = str(probe.getsockname()[0])
            except OSError:
                continue
            if not own.startswith("127.") and own != "::1":
                return own
    raise BootstrapError(
        f"no address of this host leads to {', '.join(dict.fromkeys(others))}; set GIN_RENDEZVOUS=HOST:PORT, HOST "
        "being an address of rank 0's host that all ranks can reach"
    )

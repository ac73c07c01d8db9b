"""How ranks find each other, agree, and learn of each other's death."""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from gin.config import Config
from gin.errors import BootstrapError, BootstrapTimeoutError, Error, RemoteError, TimeoutError
from gin.ranks import Ranks, discover
from gin.rendezvous.hosts import host_identity
from gin.rendezvous.store import FailureCallback, SoloStore, Store
from gin.sim import join_simulated, simulated

if TYPE_CHECKING:
    from gin.rendezvous.endpoint import Endpoint
    from gin.rendezvous.server import Hosting

__all__ = ["FailureCallback", "Store", "join"]

_Key = tuple[str, int, int]  # job, size, and how often the job was opened before


class _Openings:
    """How often a job has been opened here. The lock keeps the count of one job in step with the other ranks'."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0


_openings: dict[tuple[str | None, str, int, int], _Openings] = {}


def join(config: Config, bootstrap: object | None = None, *, rank: int | None = None, size: int | None = None) -> Store:
    """Meets the other ranks of the job. Collective: every rank of the job calls it, as often as the others.

    The place of this rank comes from `rank` and `size`, from `bootstrap` (an mpi4py communicator, `torch.distributed`
    or one of its process groups: used once, to agree on address and secret), or from the launcher's variables.

    Simulated ranks meet in their own process, and need none of that.

    Raises ConfigError when the place or the address is not known, BootstrapError when the ranks cannot meet
    (BootstrapTimeoutError, naming the missing ranks, when some do not come within `config.connect_timeout`).
    """
    if config.platform == "sim" or simulated():
        return join_simulated(config, rank=rank, size=size, bootstrap=bootstrap)
    if bootstrap is not None:
        from gin.rendezvous.foreign import agree

        agreed = agree(bootstrap, config)
        if agreed.ranks.size == 1:
            return SoloStore(agreed.ranks, config.connect_timeout, host_identity())
        return _open(
            agreed.ranks,
            config,
            agreed.endpoint,
            agreed.secret,
            (agreed.ranks.job, agreed.ranks.size, 0),
            agreed.hosting,
        )
    ranks = discover(rank, size)
    if ranks.size == 1:
        return SoloStore(ranks, config.connect_timeout, host_identity())

    from gin.rendezvous.endpoint import choose
    from gin.rendezvous.secret import job_secret

    openings = _openings.setdefault((config.rendezvous, ranks.job, ranks.size, ranks.rank), _Openings())
    with openings.lock:
        endpoint = choose(ranks, config, openings.count)
        secret = job_secret(config.job_secret, same_user_proved=endpoint.kind == "unix")
        job = f"{ranks.job:.200}" if config.rendezvous is None else "given"  # an address that is given is the job's own
        store = _open(ranks, config, endpoint, secret, (job, ranks.size, openings.count))
        # Once the job is complete, so that a failed try can be repeated; by the count of ranks that were not started again.
        openings.count = store.opening + 1
        return store


def _open(
    ranks: Ranks, config: Config, endpoint: Endpoint, secret: bytes, key: _Key, hosting: Hosting | None = None
) -> Store:
    """The store of one rank of several, all of them present. `key` tells the job from others at the endpoint."""
    from gin.rendezvous.client import NetworkStore, reach
    from gin.rendezvous.frames import MEMBER, Decoder
    from gin.rendezvous.server import Server

    seconds = config.connect_timeout
    if ranks.rank == 0:
        if hosting is None:
            hosting = Server.host(endpoint, key, secret, single_host=ranks.single_host)
        connection, decoder = hosting.connection, Decoder(MEMBER)
    else:
        hello = {
            "op": "hello",
            "job": key[0],
            "size": key[1],
            "generation": key[2],
            "rank": ranks.rank,
            "process": os.getpid(),
            "host": socket.gethostname(),
        }
        connection, decoder = reach(endpoint, hello, secret, seconds)
    store = NetworkStore(ranks, seconds, connection, decoder, hosting, config.on_peer_failure == "peer")
    try:
        _meet(store, ranks, endpoint, key[2])
    except BaseException as error:
        if not isinstance(error, Error):
            store.fail(f"{type(error).__name__} while joining")
        store.close(1.0)
        raise
    return store


def _meet(store: Store, ranks: Ranks, endpoint: Endpoint, opening: int) -> None:
    """Waits for all ranks, and learns which share a host and how often they have opened the job before."""
    try:
        answers = store.allgather("joining the job", f"{opening} {host_identity()}".encode())
    except TimeoutError as error:
        raise BootstrapTimeoutError(
            f"{error}. Rank {ranks.rank} of {ranks.size} ({ranks.source}) waits at {endpoint}"
            + "".join(f"; {note}" for note in ranks.notes),
            record=error.record,
        ) from None
    except RemoteError as error:
        raise BootstrapError(str(error), record=error.record) from None
    counts, hosts = zip(*(answer.decode().split(" ", 1) for answer in answers), strict=True)
    store.opening = max(map(int, counts))
    store.hosts = hosts
    here = [rank for rank, host in enumerate(store.hosts) if host == store.hosts[ranks.rank]]
    store.ranks = replace(
        ranks, local_rank=here.index(ranks.rank), local_size=len(here), single_host=len(here) == ranks.size
    )


@atexit.register
def _at_exit() -> None:
    """Says goodbye, or why the process ends. In a session at a prompt, the last exception is no reason to end."""
    client = sys.modules.get("gin.rendezvous.client")
    if client is not None:
        error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        if isinstance(error, RemoteError):
            from gin.launch.processes import tell_of_following

            tell_of_following()
        client.NetworkStore.say_goodbye_at_exit(f"{type(error).__name__}: {error}" if error else None)

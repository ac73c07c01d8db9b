"""A run under a launcher: each of its processes starts, job after job, a fresh process that is a rank."""

from __future__ import annotations

import json
import os
import secrets
import socket
from pathlib import Path
from typing import Any

import gin
from gin.config import Config
from gin.conformance.plan import Job
from gin.conformance.rank import LOG, STACKS, work
from gin.errors import RemoteError
from gin.ranks import Ranks
from gin.rendezvous import join
from gin.rendezvous.endpoint import choose
from gin.rendezvous.secret import fresh

__all__ = ["Launched"]

JOB_SECONDS = 3600.0  # that the processes of a launcher may be apart


class Launched:
    """This process among those that the launcher started. Opening, `launch` and closing are collective."""

    def __init__(self) -> None:
        self._config = Config.from_sources()
        self._store = join(self._config)

    @property
    def ranks(self) -> Ranks:
        return self._store.ranks

    def launch(self, job: Job, folder: str) -> None:
        """Runs this process's rank of a job, and brings what rank 0 logged to every process."""
        meeting = self._gather("meeting place", self._meeting() if self.ranks.rank == 0 else {})[0]
        place = {
            "GIN_RANK": str(self.ranks.rank),
            "GIN_SIZE": str(self.ranks.size),
            "GIN_LOCAL_RANK": str(self.ranks.local_rank),
            "GIN_LOCAL_SIZE": str(self.ranks.local_size),
        }
        error = ""
        try:
            gin.spawn(1, work, job, folder, {**place, **meeting})
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}"
        stacks = Path(folder, f"{STACKS}.{self.ranks.rank}")
        told = self._gather(
            "job's end",
            {
                "error": error,
                "log": Path(folder, LOG).read_text() if self.ranks.rank == 0 else "",
                "stacks": stacks.read_text(errors="replace") if stacks.exists() else "",
            },
        )
        self._keep(told, folder)
        errors = [f"rank {rank}: {answer['error']}" for rank, answer in enumerate(told) if answer["error"]]
        if errors:
            raise RemoteError(sorted(errors, key=lambda text: "RemoteError" in text)[0])

    def close(self) -> None:
        self._store.close(5.0)

    def _keep(self, told: list[Any], folder: str) -> None:
        if self.ranks.rank != 0:
            Path(folder, LOG).write_text(told[0]["log"])
        for rank, answer in enumerate(told):
            Path(folder, f"{STACKS}.{rank}").write_text(answer["stacks"])

    def _gather(self, tag: str, value: Any) -> list[Any]:
        answers = self._store.allgather(tag, json.dumps(value).encode(), timeout=JOB_SECONDS)
        return [json.loads(answer) for answer in answers]

    def _meeting(self) -> dict[str, str]:
        """Where the next job's ranks meet, and what proves that they belong to it."""
        if self.ranks.single_host:
            where = f"unix:@gin-{os.getpid()}-{secrets.token_hex(8)}"
        else:
            host = choose(self.ranks, self._config, 0).host
            with socket.create_server((host, 0), family=_family(host)) as probe:
                where = f"tcp://{f'[{host}]' if ':' in host else host}:{probe.getsockname()[1]}"
        return {"GIN_RENDEZVOUS": where, "GIN_JOB_SECRET": fresh()}


def _family(host: str) -> socket.AddressFamily:
    return socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]

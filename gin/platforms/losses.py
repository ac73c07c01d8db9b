"""What a rank knows of the peers that it has lost, in host memory that kernels, proxies and Python share.

With on_peer_failure=peer it lies behind the rank's failure record: the words of gin::Comm::lost(), then a record per rank.
"""

from __future__ import annotations

from typing import Any

from gin import _core
from gin.config import Config

__all__ = ["Losses", "open_losses", "proxy_arguments", "record_bytes"]

_LINE = 128


class Losses:
    """The losses of a job's peers.

    `words` is the address of what kernels look at, `records` that of the records. All zero while nobody is lost.
    """

    def __init__(self, size: int, record: int) -> None:
        """
        size    ranks of the job
        record  address of the rank's failure record, of `record_bytes` bytes, which has to live as long
        """
        self._size = size
        self.words = record + int(_core.record_bytes)
        self.records = self.words + _words_bytes(size)

    def read(self) -> dict[int, dict[str, Any]]:
        """The record of each lost peer by rank. Any thread."""
        found = {rank: _core.read_record(self.records + rank * _core.record_bytes) for rank in range(self._size)}
        return {rank: record for rank, record in found.items() if record is not None}


def open_losses(config: Config, size: int, record: int) -> Losses | None:
    """The losses behind a failure record; None where the loss of a peer is the job's failure."""
    return Losses(size, record) if config.on_peer_failure == "peer" else None


def record_bytes(config: Config, size: int) -> int:
    """Bytes of a rank's failure record and of what lies behind it."""
    behind = _words_bytes(size) + size * int(_core.record_bytes) if config.on_peer_failure == "peer" else 0
    return int(_core.record_bytes) + behind


def proxy_arguments(losses: Losses | None) -> dict[str, int]:
    """Where a proxy writes the losses of peers; nothing where they are the job's failures."""
    return {} if losses is None else {"lost": losses.words, "losses": losses.records}


def _words_bytes(size: int) -> int:
    return -(-4 * (size + 1) // _LINE) * _LINE

"""The one NVSHMEM of a process: opened once, shared by communicators of the same ranks, closed with the process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gin.backends.device_memory import end_at_once, within
from gin.errors import TimeoutError, UnsupportedError

__all__ = ["Block", "Instance", "joins", "joint_block"]

END_SECONDS = 2.0  # that the end of a process waits for the others' ends


@dataclass
class Block:
    """An allocation of the symmetric heap. Every rank makes the same ones in the same order."""

    address: int
    nbytes: int
    used: bool = True  # by a communicator of this rank


@dataclass
class Instance:
    """NVSHMEM as this process has it open.

    token      the unique id that it was started with; empty while it is not open
    gpu        identity of the GPU that it uses
    unusable   a step of its start or of its heap has failed, or has not come back
    broken     a communicator has failed: not all ranks may be there any more
    heap_size  what gin has set NVSHMEM_SYMMETRIC_SIZE to; empty where it was the user's
    """

    token: str = ""
    rank: int = 0
    size: int = 0
    gpu: str = ""
    unusable: bool = False
    broken: bool = False
    heap_size: str = ""
    blocks: list[Block] = field(default_factory=list)

    def offer(self, gpu: str) -> dict[str, Any]:
        """What the other ranks have to know before a communicator opens on a GPU, as JSON. Raises UnsupportedError."""
        if self.unusable:
            raise UnsupportedError(
                "NVSHMEM did not start, or did not allocate, in this process before, and is started once; use a new process"
            )
        if self.token and gpu != self.gpu:
            raise UnsupportedError(
                "NVSHMEM is open in this process since an earlier communicator, on another GPU; use a new process"
            )
        spare = [[number, block.nbytes] for number, block in enumerate(self.blocks) if not block.used]
        return {"token": self.token, "rank": self.rank, "size": self.size, "spare": spare}

    def started(self, token: str, rank: int, size: int, gpu: str) -> None:
        """NVSHMEM is open, as one of so many ranks."""
        self.token, self.rank, self.size, self.gpu = token, rank, size, gpu
        self.unusable = False

    def end(self, finalize: Callable[[], Any], enter: Callable[[], None]) -> None:
        """Closes NVSHMEM, as the process ends: with the others that end now, or not at all. Python 3.12.0 to 3.12.2 start no
        threads then, so not at all."""
        if self.broken or self.unusable:
            return
        try:
            within(END_SECONDS, "nvshmem end", finalize, enter)
        except TimeoutError:
            end_at_once()
        except Exception:
            return


def joins(offers: Sequence[dict[str, Any]]) -> bool:
    """From every rank's offer: whether NVSHMEM is open already, or is to be started.

    Raises UnsupportedError, on every rank, where it is open on some ranks only or of other ranks than these.
    """
    tokens = {offer["token"] for offer in offers}
    if tokens == {""}:
        return False
    places = [(offer["rank"], offer["size"]) for offer in offers]
    if len(tokens) == 1 and places == [(rank, len(offers)) for rank in range(len(offers))]:
        return True
    raise UnsupportedError(
        "NVSHMEM is open in a process of these ranks since an earlier communicator, until the process ends: only "
        "communicators of the same ranks in the same order share it; open this one in new processes"
    )


def joint_block(offers: Sequence[dict[str, Any]], nbytes: int) -> int | None:
    """From every rank's offer: the first block of at least `nbytes` that no rank uses."""
    rows: list[dict[int, int]] = [dict(offer["spare"]) for offer in offers]
    for number, size in sorted(rows[0].items()):
        if size >= nbytes and all(number in row for row in rows):
            return number
    return None

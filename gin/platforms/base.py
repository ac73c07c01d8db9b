"""What a platform owes: where kernels are compiled, launched and waited for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from gin.platforms.losses import Losses

__all__ = ["Module", "Platform"]


class Module(Protocol):
    """A compiled kernel. `params` has one (kind, size, alignment) per parameter, in bytes; kind is one of comm, window,
    signed, unsigned, float, bool, pointer, struct."""

    @property
    def params(self) -> list[tuple[str, int, int]]: ...


class Platform(ABC):
    """One communicator's kernels on one kind of machine."""

    name: str
    emulated: bool  # whether times say anything about the hardware that the backends are for
    array_protocol: str = "__array_interface__"  # what an array library asks of memory of this platform
    losses: Losses | None = None  # with on_peer_failure=peer

    @abstractmethod
    def words(self) -> Mapping[str, int]:
        """Addresses of the words that kernels keep between launches: the pointer fields of gin::Comm by name."""

    @abstractmethod
    def read_record(self) -> dict[str, Any] | None:
        """The failure record's fields, or None while nothing has failed. Any thread."""

    @abstractmethod
    def fail(self, code: int, peer: int) -> None:
        """Records a failure unless there is one, which ends the waits of running kernels. Any thread."""

    @abstractmethod
    def array(self, lease: Any) -> Any:
        """The bytes of a window as an array of the platform's array library, without a copy.

        lease  offers `array_protocol`, and has to live as long as the array
        """

    @abstractmethod
    def read(self, address: int, nbytes: int) -> bytearray:
        """A copy of a window's bytes, as they are now."""

    @abstractmethod
    def write(self, address: int, data: Any) -> None:
        """Sets a window's bytes from a buffer of bytes; done when it returns."""

    def arrays_settled(self) -> None:  # noqa: B027 - most have none
        """Waits for what array libraries were asked to do with windows."""

    def why_far(self, ranks: Sequence[int]) -> str:
        """Why ranks are not loaded and stored, to be added to a message; empty where there is nothing to say."""
        del ranks
        return ""

    @abstractmethod
    def compile(self, source: str, entry: str, flags: int, beside: Path | None = None) -> Module:
        """A kernel from its CUDA C++, compiled now or before. Raises CompileError.

        flags   gin::Comm's, for a platform on which they do not change any more
        beside  the folder of the source's file, where it is of one: its headers are found there
        """

    def compile_ahead(  # noqa: B027 - some keep nothing
        self, kernels: Sequence[tuple[str, str]], flags: int, workers: int, stopped: Callable[[], bool]
    ) -> None:
        """Compiles kernels (source and name) for a later `compile` to find in the cache, `workers` at once, until `stopped`.
        What does not compile is left for that one to tell."""

    @abstractmethod
    def launch(
        self,
        module: Module,
        name: str,
        args: list[bytes],
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        stream: Any,
        library: int,
    ) -> None:
        """Starts a kernel; `library` is `Backend.library`.

        Raises ArgumentError for a shape, a size or a stream that cannot be.
        """

    @abstractmethod
    def synchronize(self, timeout: float | None) -> None:
        """Waits until all launches have ended. Raises KernelError for what a kernel did wrong, TimeoutError."""

    @property
    def idle(self) -> bool:
        """Whether no launch is under way."""
        return True

    def captured(self) -> str:
        """Where the threads of a kernel stood when a wait of it passed its deadline; empty when that is not known."""
        return ""

    @abstractmethod
    def close(self, timeout: float) -> None:
        """Waits like synchronize, then ends everything in any case. A kernel that cannot be stopped leaves it not `idle`."""

    def abandon(self) -> bool:
        """Stops kernels that run on threads of this process, if there are any. Returns whether none is left."""
        return True

"""The exceptions of gin. Every message says what failed, where, and what to do about it."""

from __future__ import annotations

import builtins

__all__ = [
    "ArgumentError",
    "BootstrapError",
    "BootstrapTimeoutError",
    "CompileError",
    "ConfigError",
    "ConfigWarning",
    "Error",
    "KernelError",
    "OutOfMemoryError",
    "RangeError",
    "RemoteError",
    "ResultsError",
    "TimeoutError",
    "UnsupportedError",
]


class Error(Exception):
    """Base of all of gin's exceptions.

    `record` holds the failure record of the device or the rendezvous where there is one: a dictionary with the keys
    that are known out of `rank`, `peer`, `operation`, `id`, `expected`, `seen`, `detail`.
    """

    record: dict[str, object] | None

    def __init__(self, message: str = "", *, record: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self.record = record


class ConfigError(Error):
    """A setting, an argument or a variable has a wrong value, or ranks disagree on one."""


class ArgumentError(Error, TypeError, ValueError):
    """An argument of a call has a wrong type, value or size. Also a builtin `TypeError` and `ValueError`."""


class RangeError(ArgumentError, IndexError):
    """A kernel's operation named a peer, a place or an id out of range (GIN_CHECK=1). Also a builtin `IndexError`."""


class UnsupportedError(Error):
    """What was asked for exists in gin, but not on this backend, platform or machine."""


class BootstrapError(Error):
    """The ranks of a job could not find each other or agree."""


class TimeoutError(Error, builtins.TimeoutError):
    """A wait passed its deadline. Also a builtin `TimeoutError`."""


class BootstrapTimeoutError(BootstrapError, TimeoutError):
    """Some ranks did not join the job in time."""


class RemoteError(Error):
    """Another rank, or the path to it, failed. `record["rank"]` is that rank where it is known."""


class OutOfMemoryError(Error, MemoryError):
    """Memory for a window, a heap or a table could not be had. Also a builtin `MemoryError`."""


class CompileError(Error):
    """A kernel did not compile, or has no entry of the given name."""


class KernelError(Error):
    """A kernel did something wrong while it ran: a deadlock, or a barrier that not all its threads reach."""


class ResultsError(Error):
    """A file of results cannot be read, or what was asked of the results has no answer in them."""


class ConfigWarning(UserWarning):
    """A setting that is probably a mistake, such as a misspelt variable."""

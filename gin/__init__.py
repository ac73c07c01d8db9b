"""GPU-initiated networking with one device API over NVSHMEM, NCCL GIN and a CPU proxy over InfiniBand RC.

with gin.init() as comm:
    window = comm.window(4096)
    comm.compile(source, "kernel").launch(window, grid=1, block=32)
    comm.synchronize()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gin._version import __version__
from gin.errors import (
    ArgumentError,
    BootstrapError,
    CompileError,
    ConfigError,
    Error,
    KernelError,
    OutOfMemoryError,
    RangeError,
    RemoteError,
    ResultsError,
    TimeoutError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from gin.comm import Comm, init
    from gin.kernel import Kernel
    from gin.launch.spawn import spawn
    from gin.window import Window

__all__ = [
    "ArgumentError",
    "BootstrapError",
    "Comm",
    "CompileError",
    "ConfigError",
    "Error",
    "Kernel",
    "KernelError",
    "OutOfMemoryError",
    "RangeError",
    "RemoteError",
    "ResultsError",
    "TimeoutError",
    "UnsupportedError",
    "Window",
    "__version__",
    "init",
    "spawn",
]

# Loaded on first use, so that `import gin` needs neither NumPy nor the extension.
_LAZY = {
    "Comm": "gin.comm",
    "Kernel": "gin.kernel",
    "Window": "gin.window",
    "init": "gin.comm",
    "spawn": "gin.launch.spawn",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY and name != "_core":
        raise AttributeError(f"module 'gin' has no attribute {name!r}")
    import sys
    from importlib import import_module
    from importlib.util import find_spec

    if "gin._core" not in sys.modules and find_spec("gin._core") is None:
        raise ImportError(
            f"{__path__[0]} is gin's source tree, not an installed gin: its extension is not built there. Run from another "
            "folder, or install the tree with `pip install -e .`"
        )
    value = import_module("gin._core") if name == "_core" else getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))

"""How a function travels to a rank: whole, with what it uses of its module, and with its file's name for tracebacks."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import sysconfig
import threading
from collections import ChainMap
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any, ClassVar

import cloudpickle

from gin.errors import ConfigError

__all__ = ["is_users", "pickle_call"]

_registry = threading.Lock()  # cloudpickle's list of modules that are pickled by value is the process's


def pickle_call(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """The call as bytes.

    A function of a module that is neither installed nor gin's is pickled by value, so that a rank need not import a
    test module, a notebook or a script, nor what those import. Raises ConfigError for what cannot be pickled at all.
    """
    try:
        with _registry, _by_value(sys.modules.get(getattr(function, "__module__", None) or "")):
            return _dumps((function, args))
    except Exception as first:
        try:  # something that the module holds cannot be pickled: the ranks import the module
            return _dumps((function, args))
        except Exception:
            name = getattr(function, "__qualname__", repr(function))
            raise ConfigError(f"spawn: {name} or its arguments cannot be sent to another process: {first}") from first


def _dumps(value: object) -> bytes:
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()


_dispatch = cloudpickle.Pickler.dispatch_table


def _reduce_code(code: CodeType) -> Any:
    """As cloudpickle does it, but the code keeps the name of its file."""
    make, fields, *rest = _dispatch[CodeType](code)
    return make, tuple(code.co_filename if field == "<dynamic-code>" else field for field in fields), *rest


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table: ClassVar = ChainMap({CodeType: _reduce_code}, _dispatch)


@contextlib.contextmanager
def _by_value(module: ModuleType | None) -> Iterator[None]:
    if module is None or not is_users(module) or module.__name__ in cloudpickle.list_registry_pickle_by_value():
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def is_users(module: ModuleType) -> bool:
    """Whether the module is neither installed nor part of Python nor of gin."""
    file = getattr(module, "__file__", None)
    if file is None or module.__name__ == "__main__" or module.__name__.partition(".")[0] == "gin":
        return False
    path = os.path.abspath(file)
    installed = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return not any(path.startswith(os.path.abspath(folder) + os.sep) for folder in installed if folder)

"""Programs and functions as simulated ranks."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import pickle
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from gin.config import Config
from gin.errors import ConfigError, RemoteError
from gin.sim.job import Job, Place, current, failure_text
from gin.sim.options import simulation_options
from gin.sim.output import Outputs

__all__ = ["Script", "exit_code", "run_script", "spawn", "write_errors"]

_MOST_NOTES = 16  # of other ranks' failures


@dataclass(frozen=True)
class Script:
    """A Python program: compiled once, run by every rank in a `__main__` of its own."""

    path: str
    arguments: tuple[str, ...]
    code: CodeType
    package: str | None = None
    module: str | None = None

    @classmethod
    def of_file(cls, path: str, arguments: tuple[str, ...] = ()) -> Script:
        """Raises ConfigError for a file that cannot be read or is no Python."""
        try:
            code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
        except (OSError, SyntaxError, ValueError) as error:
            raise ConfigError(f"{path} is no Python program that can be run: {error}") from None
        return cls(path, arguments, code)

    @classmethod
    def of_module(cls, name: str, arguments: tuple[str, ...] = ()) -> Script:
        """As `python -m`, the current folder first. Raises ConfigError for a module that is not found."""
        path = list(sys.path)
        sys.path.insert(0, os.getcwd())
        try:
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.submodule_search_locations is not None:
                spec = importlib.util.find_spec(f"{name}.__main__")
            loader: Any = spec.loader if spec is not None else None
            code = loader.get_code(spec.name) if spec is not None and loader is not None else None
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"module {name} cannot be run: {error}") from None
        finally:
            sys.path[:] = path
        if spec is None or code is None:
            raise ConfigError(f"there is no Python module {name}")
        return cls(spec.origin or name, arguments, code, spec.parent, name)

    def main(self, place: Place) -> None:
        """The program, on one rank."""
        module = ModuleType("__main__")
        module.__dict__.update({"__file__": self.path, "__package__": self.package, "__builtins__": __builtins__})
        place.module = sys.modules["__main__"] = module
        exec(self.code, module.__dict__)

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        """sys.argv and sys.path as the program expects them."""
        argv, path = list(sys.argv), list(sys.path)
        sys.argv[:] = [self.path, *self.arguments]
        sys.path.insert(0, os.getcwd() if self.package is not None else os.path.dirname(os.path.abspath(self.path)))
        try:
            yield
        finally:
            sys.argv[:], sys.path[:] = argv, path


def run_script(script: Script, job: Job, outputs: Outputs) -> None:
    """Runs the script on all ranks of the job. What became of each is in `job.places`."""
    job.outputs = outputs
    _seed_generators(job.seed)
    with script.surroundings(), outputs.in_force():
        job.run([functools.partial(script.main, place) for place in job.places])


def write_errors(places: Iterable[Place], outputs: Outputs) -> None:
    """Writes what the ranks' processes would have written at their ends: tracebacks, and what they exited with."""
    with outputs.in_force():
        for place in places:
            if place.error is None or not exit_code(place):
                continue
            outputs.rank = place.rank
            if not isinstance(place.error, SystemExit):
                sys.stderr.write(failure_text(place))
            elif isinstance(place.error.code, str):
                sys.stderr.write(place.error.code + "\n")
        outputs.rank = None


def exit_code(place: Place) -> int:
    """The exit code that the rank's process would have had."""
    if place.error is None:
        return 0
    if not isinstance(place.error, SystemExit):
        return 1
    code = place.error.code
    return 0 if code is None else code if isinstance(code, int) else 1


def _seed_generators(seed: int) -> None:
    """A run is its seed: also what the program draws without a seed of its own."""
    random.seed(seed)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed(seed & 0xFFFFFFFF)


def spawn(
    size: int, function: Callable[..., Any], args: tuple[Any, ...], seconds: float, env: Mapping[str, str | None]
) -> list[Any]:
    """gin.spawn for simulated ranks: `function(*args)` on each, with copies of its own of what it uses."""
    from gin.launch.pickling import pickle_call

    call = pickle_call(function, args)
    here = current()
    with _variables(env):
        options = here.job.options if here is not None else simulation_options(Config.from_sources(), size)
        job = Job(size, options, trace=here is not None and here.job.tracing)
        if here is not None:
            here.job.children.append(job)

    def program() -> Any:
        mine, arguments = pickle.loads(call)
        return mine(*arguments)

    with _variables(env):
        job.run([program] * size, seconds)
    if job.first_error is not None:
        raise _error(job)
    return [place.result for place in job.places]


@contextlib.contextmanager
def _variables(env: Mapping[str, str | None]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in env}
    _set(env)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _error(job: Job) -> BaseException:
    """The exception to raise: the first cause, with the other ranks' failures as notes."""
    failed = [place for place in job.places if place.error is not None]
    assert job.first_error is not None
    first = job.first_error
    if isinstance(first.error, RemoteError):
        first = next((place for place in failed if not isinstance(place.error, RemoteError)), first)
    error = first.error
    assert error is not None
    error.add_note(f"raised on rank {first.rank} of {job.size}:\n{failure_text(first).rstrip()}")
    others = [place for place in failed if place is not first]
    for place in others[:_MOST_NOTES]:
        error.add_note(f"rank {place.rank} of {job.size} also failed: {type(place.error).__name__}: {place.error}")
    if len(others) > _MOST_NOTES:
        error.add_note(f"{len(others) - _MOST_NOTES} more ranks failed as well")
    return error

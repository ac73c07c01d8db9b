"""`gin run`."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys

import click

from gin.config import Config, parse_duration
from gin.launch.run import run

__all__ = ["command"]


def _duration(context: click.Context, parameter: click.Parameter, value: str) -> float:
    try:
        return parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not {error}", context, parameter) from None


@click.command(
    "run",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="Start a program as several ranks on this machine.",
)
@click.option("-n", "--ranks", type=click.IntRange(1, 4096), required=True, help="Number of ranks.")
@click.option("-m", "module", metavar="MODULE", help="Run a Python module instead of a program.")
@click.option("-l", "--label", is_flag=True, help="Put [rank] before each line of output.")
@click.option(
    "--timeout", callback=_duration, default="0", metavar="TIME", help="End the job after this time (exit code 4)."
)
@click.option(
    "--grace",
    callback=_duration,
    default="10s",
    show_default=True,
    metavar="TIME",
    help="Once a rank has failed, how long the others may take to end by themselves.",
)
@click.option(
    "--keep-going/--end-all",
    default=None,
    help="Once a rank has failed, let the others run to their end, or end them after the grace. "
    "[default: by the setting on_peer_failure]",
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(
    context: click.Context,
    ranks: int,
    module: str | None,
    label: bool,
    timeout: float,
    grace: float,
    keep_going: bool | None,
    program: tuple[str, ...],
) -> None:
    """Start PROGRAM as N ranks on this machine and wait for all of them.

    A program whose name ends in .py runs with this Python. The ranks find each other through GIN_* variables that are
    set for them; gin.init() in the program needs no arguments. The exit code is that of the first rank that failed, or
    0; a rank that an uncaught gin.RemoteError ends has failed after another. Options come before the program; what
    follows it is the program's own.

    With GIN_ON_PEER_FAILURE=peer, or --keep-going, a rank that fails does not end the others.

    \b
    Examples:
      gin run -n 4 shift.py
      gin run -n 2 --label --timeout 60s train.py --steps 10
      GIN_BACKEND=nccl_gin gin run -n 4 -m package.module
      gin run -n 2 ./a_compiled_program
    """
    config = Config.from_sources()
    if keep_going is None:
        keep_going = config.on_peer_failure == "peer"
    if config.platform == "sim":
        words = _simulated_command_line(ranks, module, program, label)
        context.exit(run(1, words, timeout=timeout, grace=grace))
    words = _command_line(module, program)
    context.exit(run(ranks, words, timeout=timeout, grace=grace, label=label, keep_going=keep_going))


def _command_line(module: str | None, program: tuple[str, ...]) -> list[str]:
    """The command that each rank executes. Raises UsageError for a program that is not there."""
    if module is not None:
        return [sys.executable, "-m", module, *program]
    if not program:
        raise click.UsageError("No program is given: gin run -n N PROGRAM [ARGUMENTS]")
    name = program[0]
    if name.endswith(".py"):
        if not os.path.isfile(name):
            raise click.UsageError(f"There is no file {name!r}.")
        return [sys.executable, *program]
    if shutil.which(name) is None:
        hint = " (for a script in the current folder: ./" + name + ")" if os.path.isfile(name) else ""
        raise click.UsageError(f"{name!r} is no program that can be executed{hint}.")
    return list(program)


def _simulated_command_line(ranks: int, module: str | None, program: tuple[str, ...], label: bool) -> list[str]:
    """The command that runs all ranks in one process, in the simulator."""
    # -P: this gin, not a source tree in the current folder. gin.sim puts on the path what the program expects there.
    words = [sys.executable, "-P", "-m", "gin.sim", "-n", str(ranks), *(["--label"] if label else [])]
    if module is not None:
        return [*words, "-m", module, *program]
    command = _command_line(None, program)
    if command[0] != sys.executable:
        found = shutil.which(program[0]) or program[0]
        if not _is_python(found):
            raise click.UsageError(f"{program[0]!r}: the platform sim runs Python programs, all ranks in one process.")
        command = [sys.executable, found, *program[1:]]
    return [*words, "--", *command[1:]]


def _is_python(path: str) -> bool:
    """Whether a file names Python as its interpreter."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        first = file.readline(512)
        return first.startswith(b"#!") and b"python" in first
    return False

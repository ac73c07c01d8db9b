"""`gin`: the group of commands. A command's module is imported when the command is used."""

from __future__ import annotations

import difflib
import importlib
import sys
from typing import Any, NoReturn

import click

import gin
from gin.errors import ConfigError, Error, TimeoutError, UnsupportedError

__all__ = ["main"]

# Exit codes of errors; 1 is any other.
USAGE, UNAVAILABLE, TIMED_OUT = 2, 3, 4
INTERRUPTED = 130  # as a shell says it of SIGINT

# Command -> what it does. Each is `command` in the module of its name.
_COMMANDS = {
    "check": "Run a program under adversarial delivery, seed after seed.",
    "bench": "Sweep latency, bandwidth and rate of the backends, side by side.",
    "compare": "Compare results row by row, as ratios; fail past thresholds.",
    "completion": "Print what makes a shell complete gin's commands.",
    "conformance": "Check the contract, case by case, on any backend.",
    "info": "Say what was found here, and which backend would run.",
    "report": "Show results as one HTML file that people look at.",
    "run": "Start a program as several ranks on this machine.",
}


class _Group(click.Group):
    """Commands by name, loaded when needed; gin's errors become messages and exit codes."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"gin.cli.{name}").command
        return command

    def resolve_command(self, context: click.Context, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name = args[0]
        if name not in _COMMANDS and not name.startswith("-"):
            near = difflib.get_close_matches(name, _COMMANDS, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"The commands are {', '.join(_COMMANDS)}."
            raise click.UsageError(f"No command is called {name!r}. {hint}", context)
        return super().resolve_command(context, args)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except Error as error:
            _fail(context, error)
        except KeyboardInterrupt:  # before or after what a command does about it
            click.echo("gin: interrupted", err=True)
            context.exit(INTERRUPTED)


def _fail(context: click.Context, error: Error) -> NoReturn:
    """Shows an error without a traceback, and leaves with its exit code."""
    click.echo(f"gin: {error}", err=True)
    for note in getattr(error, "__notes__", []):
        click.echo(note, err=True)
    match error:
        case ConfigError():
            code = USAGE
        case UnsupportedError():
            code = UNAVAILABLE
        case TimeoutError():
            code = TIMED_OUT
        case _:
            code = 1
    context.exit(code)


@click.command(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Each command has examples: gin COMMAND --help.",
)
@click.version_option(gin.__version__, prog_name="gin")
def _group() -> None:
    """GPU-initiated networking: one device API over NVSHMEM, NCCL GIN and an InfiniBand proxy."""


def main() -> None:
    """The entry point of `gin`."""
    _group.main(args=sys.argv[1:], prog_name="gin")

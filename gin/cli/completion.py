"""`gin completion`: the script by which a shell completes commands, options, backends and tests."""

from __future__ import annotations

import os

import click
from click.shell_completion import get_completion_class

__all__ = ["command"]

SHELLS = ("bash", "zsh", "fish")
EPILOG = """\b
Examples:
  eval "$(gin completion bash)"                       for this shell; in ~/.bashrc for every one
  gin completion zsh > "${fpath[1]}/_gin"             for zsh
  gin completion fish > ~/.config/fish/completions/gin.fish"""


@click.command("completion", epilog=EPILOG, short_help="Print what makes a shell complete gin's commands.")
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@click.pass_context
def command(context: click.Context, /, shell: str | None) -> None:
    """Print the script that makes SHELL complete gin's commands. By default for the shell of $SHELL."""
    name = shell or os.path.basename(os.environ.get("SHELL", ""))
    if name not in SHELLS:
        raise click.UsageError(f"say for which shell: {', '.join(SHELLS)}")
    kind = get_completion_class(name)
    assert kind is not None
    made = kind(context.find_root().command, {}, "gin", "_GIN_COMPLETE")
    # Without the check of the shell's version that source() makes by running it.
    click.echo(made.source_template % made.source_vars())

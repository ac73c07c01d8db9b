"""`gin report`: results as one HTML file, or as PNG."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import click

from gin.bench.load import load
from gin.bench.results import Output, abandon
from gin.errors import Error, ResultsError

__all__ = ["command"]

OK, WRONG, USAGE, UNAVAILABLE = 0, 1, 2, 3

EPILOG = """\b
Examples:
  gin bench latency --op all --json latency.json && gin report latency.json -o report.html
  gin report base.json new.json --title 'With and without inline sends' -o report.html
  gin report latency.json --png figures

\b
Exit status: 0 written, 1 written and some of the data was wrong, 2 usage or unreadable results, 3 matplotlib is missing.
The HTML file needs no network and nothing beside it."""


@click.command("report", epilog=EPILOG, short_help="Show results as one HTML file that people look at.")
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="RESULTS...")
@click.option("-o", "--output", type=click.Path(), help="The HTML file, or - for the standard output.")
@click.option("--png", "png", type=click.Path(), metavar="FOLDER", help="Write each curve as a PNG into this folder.")
@click.option("--title", default="Transports compared", show_default=True, help="What the report is called.")
@click.option("--force", is_flag=True, help="Replace files that exist.")
@click.pass_context
def command(
    context: click.Context, /, files: tuple[str, ...], output: str | None, png: str | None, title: str, force: bool
) -> None:
    """Show results: curves with intervals, ratios, distributions, tables, and where the numbers come from."""
    if output is None and png is None:
        raise click.UsageError("give -o FILE for HTML, --png FOLDER for pictures, or both")
    try:
        loaded = [load(path) for path in files]
        if output is not None:
            from gin.report.page import render

            _write(output, lambda: render(loaded, title), force)
        if png is not None:
            from gin.report.png import pictures

            for name, picture in pictures(loaded):
                _save(Path(png), name, picture, force)
    except ImportError as error:
        click.echo(f"gin report: {error}; pip install 'gin[report]'", err=True)
        context.exit(UNAVAILABLE)
    except Error as error:
        click.echo(f"gin report: {error}", err=True)
        context.exit(USAGE)
    wrong = sum(file.wrong for file in loaded)
    if wrong:
        click.echo(f"gin report: WRONG DATA: {wrong} elements; the rows are marked and not drawn", err=True)
    context.exit(WRONG if wrong else OK)


def _write(path: str, make: Callable[[], str], force: bool) -> None:
    """Claims the file before the work, and puts it in place whole."""
    try:
        output = Output(path, force=force)
    except FileExistsError:
        raise ResultsError(f"{path} exists; give another name, or --force to replace it") from None
    except OSError as error:
        raise ResultsError(f"cannot write {path or repr(path)}: {error.strerror}") from None
    try:
        output.write(make())
    except OSError as error:
        if path == "-":
            abandon(sys.stdout)
        raise ResultsError(f"cannot write {path}: {error.strerror}") from None
    finally:
        output.discard()


def _save(folder: Path, name: str, picture: bytes, force: bool) -> None:
    path = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(path, "wb" if force else "xb") as file:
            file.write(picture)
    except FileExistsError:
        raise ResultsError(f"{path} exists; give another folder, or --force to replace it") from None
    except OSError as error:
        raise ResultsError(f"cannot write {path}: {error.strerror}") from None

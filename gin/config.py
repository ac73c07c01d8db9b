"""Settings: one table of knobs, read from arguments, GIN_* variables and gin.toml, each value with its origin."""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gin.errors import ConfigError, ConfigWarning, UnsupportedError

__all__ = ["KNOBS", "Config", "Knob", "Setting", "check_agreement", "format_ranks", "resolve"]

PREFIX = "GIN_"

# Variables that are not knobs: rank discovery, the launcher's mark, the settings file, and a Go framework's variable.
OTHER_VARIABLES = frozenset(
    {"GIN_RANK", "GIN_SIZE", "GIN_LOCAL_RANK", "GIN_LOCAL_SIZE", "GIN_LAUNCHER", "GIN_CONFIG", "GIN_MODE"}
)
OTHER_PREFIXES = ("GIN_TEST_", "GIN_VENDOR_")  # of the tests

Parser = Callable[[object], Any]


# Parsers take text or the TOML value and raise ValueError with what would have been right.

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kmgt]?)(?:i?b)?", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?) ?(ns|us|ms|s|sec|min|m|h|)", re.IGNORECASE)
_DURATION_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "sec": 1, "": 1, "min": 60, "m": 60, "h": 3600}
_LARGEST = (1 << 63) - 1
_LONGEST = 1e9  # seconds; a deadline in nanoseconds must fit 64 bits
_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def parse_size(value: object) -> int:
    """Bytes: a number, or text such as 64K, 1M, 2GiB (powers of 1024)."""
    expected = "a size in bytes, such as 4096, 64K, 1M or 2GiB"
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and len(value) <= 64 and (match := _SIZE.fullmatch(value.strip())):
        whole, _, fraction = match[1].partition(".")
        scale = 10 ** len(fraction)
        number, rest = divmod(int(whole + fraction) * _SIZE_UNITS[match[2].lower()], scale)
        if rest:
            raise ValueError(expected + "; this is not a whole number of bytes")
    else:
        raise ValueError(expected)
    if not 0 <= number <= _LARGEST:
        raise ValueError(expected + ", not negative and below 2^63")
    return number


def format_size(value: int) -> str:
    """The shortest exact text that parse_size reads back."""
    for unit, scale in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value and value % scale == 0:
            return f"{value // scale}{unit}"
    return str(value)


def parse_duration(value: object) -> float:
    """Seconds: a number, or text such as 500ms, 30s, 2min. 0 and `never` mean no deadline."""
    expected = "a duration such as 500ms, 30s or 2min (0: never)"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            seconds = float(value)
        except OverflowError:
            raise ValueError(expected) from None
    elif isinstance(value, str) and value.strip().lower() == "never":
        seconds = 0.0
    elif isinstance(value, str) and len(value) <= 64 and (match := _DURATION.fullmatch(value.strip())):
        seconds = float(match[1]) * _DURATION_UNITS[match[2].lower()]
    else:
        raise ValueError(expected)
    if not math.isfinite(seconds) or not 0 <= seconds <= _LONGEST:
        raise ValueError(f"{expected}, at most {_LONGEST:.0f} s")
    return seconds


def format_duration(value: float) -> str:
    """Text that parse_duration reads back."""
    if value == 0:
        return "never"
    return f"{value:g}s" if float(f"{value:g}") == value else f"{value!r}s"


def parse_bool(value: object) -> bool:
    """A truth value: a bool, 0 or 1, or 1/0, true/false, yes/no, on/off as text."""
    if isinstance(value, bool):
        return value
    try:
        return _BOOLEANS[str(value).strip().lower()]
    except KeyError:
        raise ValueError("1 or 0 (also true/false, yes/no, on/off)") from None


def parse_text(value: object) -> str:
    """Text that is not empty."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError("text that is not empty")
    return value.strip()


def parse_path(value: object) -> Path:
    """A path; a leading ~ is the home folder. Relative paths are relative to the current folder."""
    if not isinstance(value, (str, os.PathLike)) or not str(value) or "\0" in str(value):
        raise ValueError("a path")
    try:
        return Path(os.path.abspath(os.path.expanduser(os.fspath(value))))
    except (OSError, TypeError) as error:
        raise ValueError(f"a path ({error})") from None


def parse_flags(value: object) -> tuple[str, ...]:
    """Command-line words: a list of text, or one text split as a shell would."""
    if isinstance(value, (list, tuple)) and all(isinstance(word, str) for word in value):
        return tuple(value)
    if not isinstance(value, str):
        raise ValueError("text or a list of text")
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise ValueError(f"words as in a shell ({error})") from None


def integer(least: int, most: int, *, power_of_two: bool = False) -> Parser:
    """A parser of whole numbers from `least` to `most`."""
    expected = f"a {'power of two' if power_of_two else 'whole number'} from {least} to {most}"

    def parse(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool):
            number = value
        elif isinstance(value, str) and re.fullmatch("[0-9]{1,19}", value.strip()):
            number = int(value)
        else:
            raise ValueError(expected)
        if not least <= number <= most or (power_of_two and number & (number - 1)):
            raise ValueError(expected)
        return number

    return parse


def size_between(least: int, most: int = _LARGEST) -> Parser:
    """A parser of sizes from `least` to `most` bytes."""

    def parse(value: object) -> int:
        number = parse_size(value)
        if not least <= number <= most:
            raise ValueError(f"a size from {format_size(least)} to {format_size(most)}")
        return number

    return parse


def choice(*names: str) -> Parser:
    """A parser of one of `names`, in any case."""

    def parse(value: object) -> str:
        name = value.strip().lower() if isinstance(value, str) else ""
        if name in names:
            return name
        near = difflib.get_close_matches(name, names, n=1)
        raise ValueError(f"one of {', '.join(names)}" + (f"; did you mean {near[0]}?" if near else ""))

    return parse


def optional(parse: Parser, absent: str = "auto") -> Parser:
    """`parse`, where `absent` and None stand for None."""

    def parse_optional(value: object) -> Any:
        if value is None or (isinstance(value, str) and value.strip().lower() == absent):
            return None
        return parse(value)

    return parse_optional


_platform = choice("auto", "host", "cuda")


def parse_platform(value: object) -> str:
    """A platform's name. The simulator is refused by name: a kernel run elsewhere instead would prove nothing."""
    if isinstance(value, str) and value.strip().lower() == "sim":
        raise UnsupportedError("platform 'sim' (the simulator) is not in this version of gin; use platform 'host'")
    return str(_platform(value))


@dataclass(frozen=True)
class Knob:
    """One setting: how it is read and shown, and what it is for."""

    name: str
    parse: Parser
    default: Any
    doc: str
    agree: bool = False  # all ranks must have the same value
    secret: bool = False  # never shown, and not read from files
    show: Callable[[Any], str] = str
    also: str = ""  # a variable of other tools that is honoured after GIN_<NAME> and the file

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()


class Setting(NamedTuple):
    """One row of `Config.describe`: texts."""

    name: str
    value: str
    origin: str
    doc: str


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base if os.path.isabs(base) else os.path.expanduser("~/.cache")) / "gin"


def _knob(parse: Parser, default: Any, doc: str, **more: Any) -> Any:
    metadata = {"parse": parse, "default": default, "doc": doc, **more}
    shown = not more.get("secret", False)
    if callable(default):
        return field(default_factory=default, repr=shown, metadata=metadata)
    return field(default=default, repr=shown, metadata=metadata)


def _or_auto(value: object) -> str:
    return "auto" if value is None else str(value)


@dataclass(frozen=True)
class Config:
    """The settings of one communicator. Made by `from_sources`; the fields below are the whole table of knobs."""

    backend: str = _knob(
        choice("auto", "nvshmem", "nccl_gin", "ibrc_proxy"), "auto", "how kernels send to other ranks", agree=True
    )
    platform: str = _knob(parse_platform, "auto", "where kernels run: host or cuda", agree=True)
    wire: str = _knob(
        choice("auto", "shm", "null", "verbs", "cuda"), "auto", "what proxies and emulated backends post to", agree=True
    )
    route: str = _knob(
        choice("auto", "direct", "native"), "auto", "loads and stores, or the backend's own operations", agree=True
    )
    timeout: float = _knob(parse_duration, 30.0, "deadline of waits on the device; 0: never", show=format_duration)
    connect_timeout: float = _knob(
        parse_duration, 60.0, "deadline of joining a job and of collective host calls; 0: never", show=format_duration
    )
    contexts: int = _knob(integer(1, 1024), 4, "contexts of a communicator", agree=True)
    signals: int = _knob(integer(1, 1 << 20), 64, "signals of each context", agree=True)
    counters: int = _knob(integer(0, 1 << 20), 16, "counters of each context", agree=True)
    barriers: int = _knob(integer(0, 1 << 16), 16, "barrier indices of each context", agree=True)
    heap: int = _knob(
        size_between(1 << 16), 1 << 30, "symmetric heap of each rank (nvshmem)", agree=True, show=format_size
    )
    max_message: int | None = _knob(
        optional(size_between(8)),
        None,
        "larger puts and gets are split; auto: the transport's limit",
        agree=True,
        show=lambda value: "auto" if value is None else format_size(value),
    )
    ring_depth: int = _knob(
        integer(4, 1 << 20, power_of_two=True), 4096, "descriptors in a proxy's ring, a power of two"
    )
    proxy_cpu: int | None = _knob(
        optional(integer(0, 1 << 16)),
        None,
        "CPU of the proxy's progress thread; auto: not pinned",
        show=lambda value: "auto" if value is None else str(value),
    )
    device: int | None = _knob(
        optional(integer(0, 1 << 16)),
        None,
        "GPU of this rank; auto: the one of the rank's number on its host",
        show=lambda value: "auto" if value is None else str(value),
    )
    share_gpu: bool = _knob(
        parse_bool,
        False,
        "let ranks share a GPU, whose kernels then take turns",
        agree=True,
        show=lambda value: str(int(value)),
    )
    nvcc: str | None = _knob(
        optional(parse_text),
        None,
        "nvcc of the cuda platform, where NVRTC does not do",
        show=lambda value: value or "auto",
    )
    ib_hca: str | None = _knob(
        optional(parse_text), None, "RDMA devices to use, name or name:port with commas (verbs)", show=_or_auto
    )
    ib_port: int | None = _knob(optional(integer(1, 255)), None, "their port; auto: each that is up", show=_or_auto)
    ib_gid_index: int | None = _knob(
        optional(integer(0, 65535)), None, "this side's GID; auto: RoCE v2 and IPv4 first", show=_or_auto
    )
    ib_pkey_index: int = _knob(integer(0, 127), 0, "index of the partition key")
    ib_sl: int = _knob(integer(0, 15), 0, "InfiniBand service level, RoCE priority")
    ib_traffic_class: int = _knob(integer(0, 255), 0, "traffic class: for RoCE the DSCP times 4")
    ib_timeout: int = _knob(integer(1, 31), 18, "unanswered packets are sent again after 4.096 us * 2^this")
    ib_retry: int = _knob(integer(0, 7), 6, "so often, before the peer is given up; Soft-RoCE takes 7 for ever")
    ib_mtu: int | None = _knob(
        optional(integer(256, 4096, power_of_two=True)), None, "path MTU; auto: the smaller port's", show=_or_auto
    )
    ib_inline: int = _knob(integer(8, 1024), 64, "puts of up to so many bytes travel inside the work request")
    ib_depth: int = _knob(integer(8, 1 << 15), 256, "work requests of a queue pair, rounded up to a power of two")
    ib_relaxed_ordering: bool = _knob(
        parse_bool, True, "let the PCIe bus reorder payload", show=lambda value: str(int(value))
    )
    check: bool = _knob(parse_bool, False, "compile checks of ranges into kernels", show=lambda value: str(int(value)))
    cxx: str | None = _knob(
        optional(parse_text), None, "C++ compiler of the host platform", also="CXX", show=lambda value: value or "auto"
    )
    cxxflags: tuple[str, ...] = _knob(parse_flags, (), "more flags for kernels on the host platform", show=shlex.join)
    cache_dir: Path = _knob(parse_path, _default_cache, "compiled kernels are kept here")  # noqa: RUF009
    rendezvous: str | None = _knob(
        optional(parse_text),
        None,
        "where ranks meet: host:port, tcp://host:port or unix:@name",
        show=lambda value: value or "auto",
    )
    port: int | None = _knob(
        optional(integer(1, 65535)),
        None,
        "port of the rendezvous at MASTER_ADDR; auto: derived from MASTER_PORT",
        show=lambda value: "auto" if value is None else str(value),
    )
    job_secret: str | None = _knob(
        optional(parse_text, absent=""),
        None,
        "what proves to a rank that another belongs to the job",
        secret=True,
        show=lambda value: "(set)" if value else "(key file)",
    )
    log: str = _knob(choice("debug", "info", "warning", "error"), "warning", "least severity of messages shown")
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def from_sources(cls, **arguments: object) -> Config:
        """Settings from `arguments` (None: not given), then GIN_* variables, then gin.toml, then defaults.

        Raises ConfigError for a wrong value or an unknown name, UnsupportedError for one that exists elsewhere.
        """
        return resolve(arguments, os.environ, Path.cwd())

    def detected(self, **values: object) -> Config:
        """A copy in which `values` are what detection found."""
        origins = {**self.origins, **dict.fromkeys(values, "detected")}
        return dataclasses.replace(self, **values, origins=origins)  # type: ignore[arg-type]

    def origin(self, name: str) -> str:
        """Where the value of `name` comes from: `argument`, a variable, a file, `detected` or `default`."""
        return self.origins.get(name, "default")

    def describe(self) -> list[Setting]:
        """One row for each knob, in the table's order, secrets hidden."""
        return [Setting(k.name, k.show(getattr(self, k.name)), self.origin(k.name), k.doc) for k in KNOBS.values()]

    def agreement(self) -> dict[str, dict[str, Any]]:
        """What all ranks must agree on, as JSON: knob -> {"value": ..., "origin": ...}."""
        return {
            knob.name: {"value": getattr(self, knob.name), "origin": self.origin(knob.name)}
            for knob in KNOBS.values()
            if knob.agree
        }


KNOBS: dict[str, Knob] = {f.name: Knob(f.name, **f.metadata) for f in dataclasses.fields(Config) if f.metadata}


def check_agreement(agreements: Sequence[Mapping[str, Mapping[str, Any]]]) -> None:
    """Raises ConfigError that names each knob on which ranks disagree, with every rank's value.

    `agreements[r]` is what rank r's `Config.agreement()` returned.
    """
    complaints = []
    for name in dict.fromkeys(name for agreement in agreements for name in agreement):
        holders: dict[str, list[int]] = {}
        for rank, agreement in enumerate(agreements):
            entry = agreement.get(name)
            text = f"{entry['value']!r} ({entry['origin']})" if entry is not None else "no such knob"
            holders.setdefault(text, []).append(rank)
        values = {repr(agreement[name]["value"]) if name in agreement else "" for agreement in agreements}
        if len(values) > 1:
            who = "; ".join(f"{format_ranks(ranks)}: {text}" for text, ranks in holders.items())
            complaints.append(f"{name}: {who}")
    if complaints:
        raise ConfigError("ranks disagree on settings that must be equal everywhere. " + " | ".join(complaints))


def format_ranks(ranks: Sequence[int]) -> str:
    """`rank 3`, or `ranks 0, 2-5, 9`: runs of three and more are shortened."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(parts)


def resolve(arguments: Mapping[str, object], environment: Mapping[str, str], directory: Path) -> Config:
    """`Config.from_sources` with its surroundings given: variables, and the folder where the search starts."""
    for name in arguments:
        if name not in KNOBS:
            raise ConfigError(f"no setting is called {name!r}{_suggest(name, KNOBS)}")
    _warn_of_unknown_variables(environment)
    path, table = _read_file(environment, directory)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for knob in KNOBS.values():
        found = _find(knob, arguments, environment, path, table)
        if found is not None:
            raw, origins[knob.name] = found
            values[knob.name] = _parse(knob, raw, origins[knob.name])
    return Config(**values, origins=origins)


def _find(
    knob: Knob, arguments: Mapping[str, object], environment: Mapping[str, str], path: str, table: Mapping[str, object]
) -> tuple[object, str] | None:
    """The raw value of the first source that has one, and that source's name."""
    if arguments.get(knob.name) is not None:
        return arguments[knob.name], "argument"
    if environment.get(knob.variable, "").strip():
        return environment[knob.variable], knob.variable
    if knob.name in table:
        if knob.secret:
            raise ConfigError(f"{path}: {knob.name} does not belong in a file; set {knob.variable}")
        return table[knob.name], path
    if knob.also and environment.get(knob.also, "").strip():
        return environment[knob.also], knob.also
    return None


def _parse(knob: Knob, raw: object, origin: str) -> Any:
    try:
        return knob.parse(raw)
    except ValueError as error:
        given = "the value" if knob.secret else f"{raw!r:.200}"
        where = f"{knob.name} (from {origin})" if origin != knob.variable else origin
        raise ConfigError(f"{where}: {given} is not {error}") from None


def _suggest(name: str, known: Sequence[str] | Mapping[str, Any] | frozenset[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else f"; the settings are {', '.join(sorted(known))}"


def _warn_of_unknown_variables(environment: Mapping[str, str]) -> None:
    known = {knob.variable for knob in KNOBS.values()} | OTHER_VARIABLES
    for name in environment:
        if name.startswith(PREFIX) and name not in known and not name.startswith(OTHER_PREFIXES):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "`gin info` lists the settings"
            warnings.warn(f"{name} is not a setting of gin and is ignored; {hint}", ConfigWarning, stacklevel=4)


def _read_file(environment: Mapping[str, str], directory: Path) -> tuple[str, dict[str, object]]:
    """The settings file in force, as (its name in messages, its table); ("", {}) when there is none."""
    if "GIN_CONFIG" in environment:
        text = environment["GIN_CONFIG"].strip()
        if not text:
            return "", {}
        path = Path(os.path.expanduser(text))
        if not path.is_file():
            raise ConfigError(f"GIN_CONFIG: there is no file {path}")
        found = _load(path)
        return found if found is not None else (str(path), {})
    for folder in _search_path(directory):
        for name in ("gin.toml", "pyproject.toml"):
            path = folder / name
            if _trusted(path, directory) and (found := _load(path)) is not None:
                return found
    return "", {}


def _search_path(directory: Path) -> list[Path]:
    """The folder itself, and its parents up to the repository's root or the home folder, if one is above it."""
    folders = [directory, *directory.parents]
    home = Path(os.path.expanduser("~"))
    for depth, folder in enumerate(folders):
        if (folder / ".git").exists() or folder == home:
            return folders[: depth + 1]
    return [directory]


def _trusted(path: Path, directory: Path) -> bool:
    """Whether the file exists and its settings (which name programs to run) are the user's: of a file above the current
    folder, the owner must be the user, the superuser or the owner of the current folder."""
    try:
        owner = path.stat().st_uid
        return path.is_file() and (path.parent == directory or owner in (0, os.geteuid(), directory.stat().st_uid))
    except OSError:
        return False


def _load(path: Path) -> tuple[str, dict[str, object]] | None:
    """The file's (name, settings), or None for a pyproject.toml without [tool.gin]."""
    import tomllib

    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    name, table = str(path), document
    if path.name == "pyproject.toml":
        tools = document.get("tool")
        if not isinstance(tools, dict) or "gin" not in tools:
            return None
        name, table = f"{path} [tool.gin]", tools["gin"]
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: [tool.gin] must be a table")
    for key in table:
        if key not in KNOBS:
            raise ConfigError(f"{name}: no setting is called {key!r}{_suggest(key, KNOBS)}")
    return name, table

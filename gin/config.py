"""Settings: one table of knobs, read from arguments, GIN_* variables and gin.toml, each value with its origin."""

from __future__ import annotations

import dataclasses
import difflib
import os
import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from gin.errors import ConfigError, ConfigWarning
from gin.values import (
    Parser,
    choice,
    format_duration,
    format_ranks,
    format_size,
    integer,
    optional,
    parse_bool,
    parse_duration,
    parse_flags,
    parse_path,
    parse_size,
    parse_text,
    size_between,
)

__all__ = [
    "KNOBS",
    "Config",
    "Knob",
    "Setting",
    "check_agreement",
    "format_duration",
    "format_ranks",
    "format_size",
    "parse_duration",
    "parse_size",
    "resolve",
]

PREFIX = "GIN_"

# Variables that are not knobs: rank discovery, the launcher's mark, the settings file, and a Go framework's variable.
OTHER_VARIABLES = frozenset(
    {"GIN_RANK", "GIN_SIZE", "GIN_LOCAL_RANK", "GIN_LOCAL_SIZE", "GIN_LAUNCHER", "GIN_CONFIG", "GIN_MODE"}
)
OTHER_PREFIXES = ("GIN_TEST_", "GIN_VENDOR_")  # of the tests


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


def _or_none(value: object) -> str:
    return "none" if value is None else str(value)


_LAST_SEED = (1 << 63) - 1


@dataclass(frozen=True)
class Config:
    """The settings of one communicator. Made by `from_sources`; the fields below are the whole table of knobs."""

    backend: str = _knob(
        choice("auto", "nvshmem", "nccl_gin", "ibrc_proxy"), "auto", "how kernels send to other ranks", agree=True
    )
    platform: str = _knob(
        choice("auto", "host", "cuda", "sim"), "auto", "where kernels run: host, cuda or sim", agree=True
    )
    wire: str = _knob(
        choice("auto", "shm", "null", "verbs", "cuda", "sim"),
        "auto",
        "what proxies and emulated backends post to",
        agree=True,
    )
    route: str = _knob(
        choice("auto", "direct", "native"), "auto", "loads and stores, or the backend's own operations", agree=True
    )
    on_peer_failure: str = _knob(
        choice("job", "peer"),
        "job",
        "what ends where a rank fails or is not reached: the job, or what needs that peer",
        agree=True,
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
        "let ranks share a GPU, whose kernels take turns then unless MPS runs",
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
        optional(parse_text),
        None,
        "RDMA devices to use, name or name:port with commas; a slash between the ranks of a host (verbs)",
        show=_or_auto,
    )
    ib_nics: int = _knob(
        integer(1, 8), 1, "how many of them a rank uses, the nearest ones; contexts take them in turn", agree=True
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
    seed: int = _knob(integer(0, _LAST_SEED), 0, "which run of a simulated job this is")
    policy: str = _knob(
        choice("random", "pct"),
        "random",
        "how the simulator schedules: random, or by priority with few preemptions (pct)",
    )
    hostile: bool = _knob(
        parse_bool,
        True,
        "deliver as late, torn and reordered as the contract allows (sim); 0: as the model says",
        show=lambda value: str(int(value)),
    )
    model: str | None = _knob(
        optional(parse_text, absent="none"),
        None,
        "the simulated network: a preset, with key=value after commas",
        show=_or_none,
    )
    faults: str | None = _knob(
        optional(parse_text, absent="none"),
        None,
        "what goes wrong in the simulator, with commas between",
        show=_or_none,
    )
    spin_limit: float = _knob(
        parse_duration,
        10.0,
        "processor time after which a simulated thread that never gives way is ended; 0: none",
        show=format_duration,
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


@lru_cache(maxsize=16)
def _document(path: Path, _state: tuple[int, ...]) -> dict[str, Any]:
    """A TOML file's content; read again when its state has changed."""
    import tomllib

    return tomllib.loads(path.read_text(encoding="utf-8"))


def _load(path: Path) -> tuple[str, dict[str, object]] | None:
    """The file's (name, settings), or None for a pyproject.toml without [tool.gin]."""
    import tomllib

    try:
        status = path.stat()
        document = _document(path, (status.st_mtime_ns, status.st_size, status.st_ino))
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

"""Which rank this process is: a complete (rank, size) pair from one source, never mixed from two."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gin.errors import ConfigError, ConfigWarning

__all__ = ["Ranks", "discover"]


@dataclass(frozen=True)
class Ranks:
    """This process's place in its job.

    `job` tells jobs of one user on one host apart. `single_host` says that all ranks are believed to be on this host.
    `notes` are remarks for error messages, such as pairs that were passed over.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    source: str
    job: str
    single_host: bool
    notes: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class _Source:
    """Where a launcher leaves its numbers; of several variables the first that is set counts."""

    name: str
    rank: tuple[str, ...]
    size: tuple[str, ...]
    local_rank: tuple[str, ...] = ()
    local_size: tuple[str, ...] = ()
    job: tuple[str, ...] = ()
    generic: bool = False  # other programs use the rank variable too: half a pair means nothing
    inherited: bool = False  # launchers inside pass the variables on: another value is no contradiction


_SOURCES = (
    _Source("GIN_RANK", ("GIN_RANK",), ("GIN_SIZE",), ("GIN_LOCAL_RANK",), ("GIN_LOCAL_SIZE",)),
    _Source(
        "torchrun",
        ("RANK",),
        ("WORLD_SIZE",),
        ("LOCAL_RANK",),
        ("LOCAL_WORLD_SIZE",),
        ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"),
        generic=True,
    ),
    _Source(
        "Open MPI",
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
        ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    ),
    _Source(
        "PMIx",
        ("PMIX_RANK",),
        ("PMIX_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        ("PMIX_LOCAL_RANK", "SLURM_LOCALID"),
        ("PMIX_LOCAL_SIZE",),
        ("PMIX_NAMESPACE",),
        inherited=True,
    ),
    _Source(
        "PMI",
        ("PMI_RANK",),
        ("PMI_SIZE",),
        ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"),
        ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
        ("PMI_JOBID", "SLURM_JOB_ID", "SLURM_STEP_ID"),
    ),
    _Source(
        "MVAPICH2",
        ("MV2_COMM_WORLD_RANK",),
        ("MV2_COMM_WORLD_SIZE",),
        ("MV2_COMM_WORLD_LOCAL_RANK",),
        ("MV2_COMM_WORLD_LOCAL_SIZE",),
    ),
    _Source(
        "Slurm",
        ("SLURM_PROCID",),
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        ("SLURM_LOCALID",),
        (),
        ("SLURM_JOB_ID", "SLURM_STEP_ID"),
        inherited=True,
    ),
)


def discover(rank: int | None = None, size: int | None = None, environment: Mapping[str, str] | None = None) -> Ranks:
    """The place of this process: `rank` and `size` where given, else the first launcher that left a complete pair.

    Raises ConfigError for numbers that cannot be right and for half a pair. Warns when two launchers left different
    pairs, unless one was merely inherited from around the other (torchrun or mpirun inside a Slurm step).
    """
    variables = os.environ if environment is None else environment
    pairs = [(source, pair) for source in _SOURCES if (pair := _pair(source, variables)) is not None]
    if rank is not None or size is not None:
        return _explicit(rank, size, pairs, variables)
    if not pairs:
        _refuse_half_a_pair(variables)
        return Ranks(0, 1, 0, 1, "single process", "single", True)
    source, (rank, size) = pairs[0]
    return replace(_place(source, rank, size, variables), notes=_notes(pairs, variables))


def _pair(source: _Source, variables: Mapping[str, str]) -> tuple[int, int] | None:
    """(rank, size) of a source that has both."""
    rank, size = _number(source.rank, variables), _number(source.size, variables)
    if rank is None or size is None:
        return None
    _check(rank, size, source.name)
    return rank[1], size[1]


def _number(names: tuple[str, ...], variables: Mapping[str, str]) -> tuple[str, int] | None:
    """(variable, value) of the first variable that is set."""
    for name in names:
        text = variables.get(name, "").strip()
        if text:
            if not re.fullmatch("[0-9]{1,9}", text):
                raise ConfigError(f"{name}={text!r:.80} is not a whole number; unset it, or set GIN_RANK and GIN_SIZE")
            return name, int(text)
    return None


def _check(rank: tuple[str, int], size: tuple[str, int], source: str) -> None:
    if size[1] < 1 or rank[1] >= size[1]:
        raise ConfigError(
            f"{rank[0]}={rank[1]} and {size[0]}={size[1]} (from {source}) are not a rank and a size: "
            "0 <= rank < size is needed"
        )


def _explicit(
    rank: int | None, size: int | None, pairs: list[tuple[_Source, tuple[int, int]]], variables: Mapping[str, str]
) -> Ranks:
    """The place that arguments give. The launcher around it, if any, still tells jobs apart."""
    if rank is None or size is None:
        raise ConfigError(f"rank={rank}, size={size}: give both or none")
    for value in (rank, size):
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise ConfigError(f"rank={rank!r}, size={size!r}: whole numbers are needed")
    rank, size = int(rank), int(size)
    if not 0 <= rank < size:
        raise ConfigError(f"rank={rank}, size={size}: 0 <= rank < size is needed")
    for source, pair in pairs:
        if pair == (rank, size):
            return replace(_place(source, rank, size, variables), source="argument")
    around = _place(pairs[0][0], *pairs[0][1], variables) if pairs else None
    single_host = around.single_host if around else not variables.get("MASTER_ADDR")
    job = f"argument:{around.job}" if around else "argument"
    return Ranks(rank, size, rank, size, "argument", job, single_host)


def _place(source: _Source, rank: int, size: int, variables: Mapping[str, str]) -> Ranks:
    """The place that one source gives, with its local numbers where they are known."""
    local = _number(source.local_rank, variables), _number(source.local_size, variables)
    local_rank = local[0][1] if local[0] else None
    local_size = local[1][1] if local[1] else _slurm_local_size(source, size, variables)
    if local_rank is not None and local_size is not None and not (local_rank < local_size <= size):
        raise ConfigError(
            f"{source.name}: local rank {local_rank} of {local_size} does not fit rank {rank} of {size}; "
            "the local size is the number of ranks on this host"
        )
    if local_size is not None:
        single_host = local_size == size
    else:
        single_host = local_rank in (None, rank) and not variables.get("MASTER_ADDR")
        local_size = size if single_host else (local_rank or 0) + 1  # a lower bound until the ranks have met
    if local_rank is None:
        local_rank = rank if single_host else 0
    return Ranks(rank, size, local_rank, local_size, source.name, _job(source, variables), single_host)


def _slurm_local_size(source: _Source, size: int, variables: Mapping[str, str]) -> int | None:
    """Tasks on this node out of Slurm's "2(x3),1", for the sources that take their numbers from Slurm."""
    if source.name not in ("Slurm", "PMIx"):
        return None
    counts: list[int] = []
    text = variables.get("SLURM_STEP_TASKS_PER_NODE") or variables.get("SLURM_TASKS_PER_NODE") or ""
    for part in text.replace(" ", "").split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", part)
        if match is None:
            break
        counts += [int(match[1])] * int(match[2] or 1)
    node = _number(("SLURM_NODEID",), variables)
    if sum(counts) == size and (node[1] if node else 0) < len(counts) and (node or len(counts) == 1):
        return counts[node[1] if node else 0]
    nodes = _number(("SLURM_STEP_NUM_NODES", "SLURM_NNODES"), variables)
    return size if nodes and nodes[1] == 1 else None


def _job(source: _Source, variables: Mapping[str, str]) -> str:
    """A name of the job that its ranks share and other jobs of the user do not."""
    parts = [variables[name] for name in source.job if variables.get(name)]
    if not parts and source.name in ("PMI", "MVAPICH2"):
        parts = [f"launcher {os.getppid()}"]  # these leave no job's name, but one process of theirs starts all ranks
    return ":".join([source.name, *parts])


def _notes(pairs: list[tuple[_Source, tuple[int, int]]], variables: Mapping[str, str]) -> tuple[str, ...]:
    """Remarks on the pairs that were passed over; warns of contradictions."""
    chosen, (rank, size) = pairs[0]
    notes = []
    for other, pair in pairs[1:]:
        if pair == (rank, size):
            continue
        text = (
            f"{chosen.name} says rank {rank} of {size} and {other.name} says rank {pair[0]} of {pair[1]}: "
            f"{chosen.name} was taken"
        )
        notes.append(text)
        if not other.inherited and "GIN_LAUNCHER" not in variables:
            warnings.warn(text + "; set GIN_RANK and GIN_SIZE if that is wrong", ConfigWarning, stacklevel=3)
    if chosen.name == "Slurm" and size > 1 and not variables.get("SLURM_STEP_ID"):
        notes.append("there is no SLURM_STEP_ID: in a batch script, ranks are started with srun")
    return tuple(notes)


def _refuse_half_a_pair(variables: Mapping[str, str]) -> None:
    """A process of a job must not take itself for a job of one."""
    for source in _SOURCES:
        if source.generic:
            continue
        rank, size = _number(source.rank, variables), _number(source.size, variables)
        if rank is not None or (size is not None and source.name == "GIN_RANK"):
            seen = rank or size
            missing = source.size if rank else source.rank
            assert seen is not None
            raise ConfigError(
                f"{seen[0]}={seen[1]} is set, but {' or '.join(missing)} is not: this process is one of a job whose "
                f"{'size' if rank else 'rank'} is unknown. Set GIN_RANK and GIN_SIZE"
            )

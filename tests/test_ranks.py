"""Rank discovery: one launcher's complete pair, by a table."""

from __future__ import annotations

import warnings

import pytest

from gin.errors import ConfigError, ConfigWarning
from gin.ranks import Ranks, discover

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
    "PMIX_RANK": "2",
    "PMIX_NAMESPACE": "1972895745",
}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NNODES": "2",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
}

# name: (variables, rank, size, local rank, local size, source, single host)
TABLE: dict[str, tuple[dict[str, str], int, int, int, int, str, bool]] = {
    "nothing": ({}, 0, 1, 0, 1, "single process", True),
    "gin": (
        {"GIN_RANK": "1", "GIN_SIZE": "2", "GIN_LOCAL_RANK": "0", "GIN_LOCAL_SIZE": "1"},
        *(1, 2, 0, 1, "GIN_RANK", False),
    ),
    "gin without local": ({"GIN_RANK": "1", "GIN_SIZE": "2"}, 1, 2, 1, 2, "GIN_RANK", True),
    "torchrun": (TORCHRUN, 1, 4, 1, 4, "torchrun", True),
    "torchrun, two hosts": (TORCHRUN | {"RANK": "3", "LOCAL_WORLD_SIZE": "2"}, 3, 4, 1, 2, "torchrun", False),
    "half of torchrun's": ({"RANK": "3"}, 0, 1, 0, 1, "single process", True),
    "open mpi": (OPEN_MPI, 2, 3, 2, 3, "Open MPI", True),
    "open mpi, one of each host": (
        OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
        *(2, 3, 0, 1, "Open MPI", False),
    ),
    "srun --mpi=pmix": (SLURM | {"PMIX_RANK": "5", "PMIX_NAMESPACE": "slurm.pmix.77.0"}, 5, 8, 1, 4, "PMIx", False),
    "pmi": ({"PMI_RANK": "0", "PMI_SIZE": "2"}, 0, 2, 0, 2, "PMI", True),
    "hydra": (
        {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
        *(3, 4, 1, 2, "PMI", False),
    ),
    "mvapich2": (
        {
            "MV2_COMM_WORLD_RANK": "1",
            "MV2_COMM_WORLD_SIZE": "2",
            "MV2_COMM_WORLD_LOCAL_RANK": "1",
            "MV2_COMM_WORLD_LOCAL_SIZE": "2",
        },
        *(1, 2, 1, 2, "MVAPICH2", True),
    ),
    "slurm": (SLURM, 5, 8, 1, 4, "Slurm", False),
    "slurm, one node": (
        SLURM
        | {"SLURM_LOCALID": "5", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "8", "SLURM_NODEID": "0"},
        *(5, 8, 5, 8, "Slurm", True),
    ),
    "slurm, uneven nodes": (
        SLURM | {"SLURM_STEP_TASKS_PER_NODE": "3(x2),2", "SLURM_NODEID": "2", "SLURM_PROCID": "7"},
        *(7, 8, 1, 2, "Slurm", False),
    ),
    "slurm, three variables": (
        {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1"},
        *(1, 2, 1, 2, "Slurm", True),
    ),
    "slurm, a step smaller than its allocation": (
        SLURM | {"SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_TASKS_PER_NODE": "4,2"},
        *(5, 6, 1, 2, "Slurm", False),
    ),
    "torchrun in a slurm step": (TORCHRUN | SLURM | {"SLURM_PROCID": "0"}, 1, 4, 1, 4, "torchrun", True),
    "gin before all": (TORCHRUN | OPEN_MPI | {"GIN_RANK": "1", "GIN_SIZE": "4"}, 1, 4, 1, 4, "GIN_RANK", False),
}


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.filterwarnings("ignore:.*was taken")
def test_table(name: str) -> None:
    variables, rank, size, local_rank, local_size, source, single_host = TABLE[name]
    found = discover(environment=variables)
    assert (found.rank, found.size, found.source) == (rank, size, source)
    if name != "gin before all":  # its local numbers are not given
        assert (found.local_rank, found.local_size, found.single_host) == (local_rank, local_size, single_host)


def test_inherited_slurm_is_no_contradiction() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = discover(environment=TORCHRUN | SLURM)
    assert "torchrun was taken" in found.notes[0]
    assert "Slurm says rank 5 of 8" in found.notes[0]


def test_contradiction_warns_with_both() -> None:
    with pytest.warns(
        ConfigWarning, match=r"torchrun says rank 1 of 4 and Open MPI says rank 2 of 3: torchrun was taken"
    ):
        discover(environment=TORCHRUN | OPEN_MPI)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        discover(environment=TORCHRUN | OPEN_MPI | {"GIN_RANK": "0", "GIN_SIZE": "2", "GIN_LAUNCHER": "gin run"})
        discover(1, 4, OPEN_MPI)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"GIN_RANK": "x", "GIN_SIZE": "2"}, "GIN_RANK='x' is not a whole number"),
        ({"GIN_RANK": "-1", "GIN_SIZE": "2"}, "whole number"),
        ({"GIN_RANK": "2", "GIN_SIZE": "2"}, "GIN_RANK=2 and GIN_SIZE=2"),
        ({"GIN_RANK": "0", "GIN_SIZE": "0"}, "GIN_SIZE=0"),
        ({"GIN_RANK": "0"}, "GIN_SIZE is not"),
        ({"GIN_SIZE": "2"}, "GIN_RANK is not"),
        ({"PMIX_RANK": "3"}, "Set GIN_RANK and GIN_SIZE"),
        ({"OMPI_COMM_WORLD_RANK": "3"}, "OMPI_COMM_WORLD_SIZE is not"),
        ({"SLURM_PROCID": "3"}, "SLURM_STEP_NUM_TASKS or SLURM_NTASKS"),
        (TORCHRUN | {"LOCAL_RANK": "4"}, "local rank 4 of 4"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "5"}, "local rank 1 of 5"),
    ],
)
def test_wrong_numbers(variables: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        discover(environment=variables)


def test_arguments() -> None:
    assert discover(1, 3, {}) == Ranks(1, 3, 1, 3, "argument", "argument", True)
    around = discover(1, 2, TORCHRUN)
    assert (around.rank, around.size, around.single_host) == (1, 2, True)
    assert around.job != discover(1, 2, TORCHRUN | {"MASTER_PORT": "29501"}).job
    for rank, size in ((None, 2), (0, None), (2, 2), (-1, 2), (0, 0), ("0", 2), (True, 2)):
        with pytest.raises(ConfigError):
            discover(rank, size, {})  # type: ignore[arg-type]


def test_jobs_differ() -> None:
    def job(variables: dict[str, str]) -> str:
        return discover(environment=variables).job

    assert job(TORCHRUN) != job(TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "1"})
    assert job(OPEN_MPI) != job(OPEN_MPI | {"PMIX_NAMESPACE": "3"})
    assert job(OPEN_MPI) == job(OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0"})
    assert job(SLURM) != job(SLURM | {"SLURM_STEP_ID": "1"})


def test_batch_script_is_remarked() -> None:
    variables = {name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"}
    assert any("srun" in note for note in discover(environment=variables).notes)

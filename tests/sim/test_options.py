"""Models, faults and compiled kernels: what the simulator is told, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from gin import _core
from gin.config import Config
from gin.errors import ConfigError, OutOfMemoryError
from gin.sim.events import Trace, WindowPlace
from gin.sim.model import PARAMETERS, PRESETS, model_options
from gin.sim.modules import writable_variables
from gin.sim.options import FAULTS, HOST, AllocationFault, simulation_options


def config(**settings: object) -> Config:
    return Config(platform="sim", **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_what_the_simulation_takes(name: str) -> None:
    assert PRESETS[name].sources
    options = simulation_options(config(model=f"{name},ranks_per_node=4"), 2)
    assert options["model.ranks_per_node"] == 4
    assert _core.Simulation(2, options).now_ns == 0


def test_every_parameter_is_an_option_of_the_simulation() -> None:
    known = {name.strip() for name in _core.sim_options().split(",")}
    assert {f"model.{name}" for name in PARAMETERS} <= known


@pytest.mark.parametrize(
    ("text", "words"),
    [("warp-drive", "ib400-proxy"), ("inter.speed=3", "inter.latency_ns"), ("post_ns=fast", "not a number")],
)
def test_wrong_models(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        model_options(text)


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_drawn_from_the_seed(name: str) -> None:
    drawn = [str(simulation_options(config(faults=name), 4, seed)) for seed in (1, 1, 2, 3, 4, 5)]
    assert drawn[0] == drawn[1]
    assert name == "message" or len(set(drawn)) > 2
    options = simulation_options(config(faults=name), 4, 1)
    _core.Simulation(4, {key: value for key, value in options.items() if not key.startswith(HOST)})


def test_faults_by_script() -> None:
    options = simulation_options(config(faults="dead=1@7, full=2, message=4K, fault.lose_at=3"), 2)
    assert (options["fault.dead_rank"], options["fault.dead_after"]) == (1, 7)
    assert (options["queue"], options["max_message"], options["fault.lose_at"]) == (2, 4096, 3)


@pytest.mark.parametrize("text", ["fire", "dead=9", "dead=x", "full=two", "message=big"])
def test_wrong_faults(text: str) -> None:
    with pytest.raises(ConfigError, match="faults"):
        simulation_options(config(faults=text), 2)


def test_one_allocation_fails() -> None:
    fault = AllocationFault(1)
    fault.allocate(0, "window 1", 8)
    with pytest.raises(OutOfMemoryError, match="rank 1 cannot have 8 bytes"):
        fault.allocate(1, "window 1", 8)
    fault.allocate(0, "window 2", 8)


def test_variables_of_a_shared_object() -> None:
    assert writable_variables(Path(_core.__file__))  # the extension has some


def test_places_are_named_by_window() -> None:
    post = (5, "post", 0, 1, 2, "put", 0, 4096 + 8, 16, 0, 0, 1, 0, "kernel.cu", 3)
    trace = Trace([post], {0: (4, 80, 64)}, [WindowPlace(0, 1, 0, 0, 64), WindowPlace(0, 2, 0, 4096, 64)])
    assert trace.place(trace.events[0]) == "window 2, bytes 8 to 23"
    assert trace.events[0].where == "kernel.cu:3"

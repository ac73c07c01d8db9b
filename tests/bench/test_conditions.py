"""What disturbed a measurement, read from a made-up machine."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from gin.bench import conditions, gpus


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    folder = tmp_path / "devices/system/cpu/cpu0/thermal_throttle"
    folder.mkdir(parents=True)
    (folder / "core_throttle_count").write_text("5\n")
    (folder / "package_throttle_count").write_text("2\n")
    (tmp_path / "stat").write_text("cpu  10 0 10 70 0 0 0 10 0 0\ncpu0 1\n")
    return tmp_path


def test_what_happened_between_two_readings(machine: Path) -> None:
    before = conditions.read(machine, machine)
    (machine / "stat").write_text("cpu  20 0 20 120 0 0 0 40 0 0\n")
    (machine / "devices/system/cpu/cpu0/thermal_throttle/core_throttle_count").write_text("8\n")
    found = conditions.since(before, machine, machine)
    assert (found["stolen_percent"], found["throttles"]) == (30.0, 3)
    assert found["preemptions"] >= 0
    text = "\n".join(conditions.warnings({**found, "load": 0.0}, 2, True))
    assert "throttled 3 times" in text
    assert "30 % of the machine's time went to others" in text


def test_a_machine_that_shows_nothing(tmp_path: Path) -> None:
    found = conditions.since(conditions.read(tmp_path, tmp_path), tmp_path, tmp_path)
    assert set(found) == {"preemptions", "major_faults", "load", "cores"}
    (tmp_path / "stat").write_text("nonsense\n")
    assert "ticks" not in conditions.read(tmp_path, tmp_path)


def test_ranks_are_merged() -> None:
    ranks = [{"preemptions": 1, "load": 0.5, "throttles": 2}, {"preemptions": 4, "load": 0.7}]
    assert conditions.merge(ranks) == {"preemptions": 5, "load": 0.7, "throttles": 2}
    assert conditions.merge([{}, {}]) == {}


@pytest.mark.parametrize(
    ("found", "count"),
    [
        ({}, 0),
        ({"load": 2.2, "cores": 2}, 0),
        ({"load": 5.0, "cores": 2}, 1),
        ({"cores": 1}, 1),
        ({"gpu_power_ms": 3.0, "gpu_thermal_ms": 0.0}, 1),
        ({"stolen_percent": 0.5}, 0),
    ],
)
def test_warnings(found: dict[str, Any], count: int) -> None:
    assert len(conditions.warnings(found, 2, True)) == count


class Nvml:
    """Two GPUs; the second does not tell of heat."""

    def __init__(self) -> None:
        self.shut = 0
        self.time = 1_000_000

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return 0

    def nvmlShutdown(self) -> int:  # noqa: N802
        self.shut += 1
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:  # noqa: N802
        handle._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetName(self, handle: Any, text: Any, size: Any) -> int:  # noqa: N802
        text.value = f"GPU {handle.value}".encode()
        return 0

    def nvmlSystemGetDriverVersion(self, text: Any, size: Any) -> int:  # noqa: N802
        text.value = b"580.1"
        return 0

    def nvmlDeviceGetViolationStatus(self, handle: Any, policy: Any, told: Any) -> int:  # noqa: N802
        if handle.value == 2 and policy.value == 1:
            return 3
        told._obj.violation = self.time
        return 0


def test_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvml = Nvml()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: nvml)
    assert gpus.facts() == {"gpus": ["GPU 1", "GPU 2"], "driver": "580.1"}
    before = conditions.read(tmp_path, tmp_path, with_gpus=True)
    nvml.time += 5_000_000
    found = conditions.since(before, tmp_path, tmp_path, with_gpus=True)
    assert (found["gpu_power_ms"], found["gpu_thermal_ms"]) == (10.0, 5.0)
    assert nvml.shut == 3


def test_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert gpus.facts() == {}
    assert gpus.slowed_ns() == {}

"""Runs the C++ tests: those that GIN_TEST_CPP points to, or a build of this checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gin
from gin import _core

ROOT = Path(__file__).parents[1]
try:
    _core.verbs_ports()
    VERBS = ""
except gin.Error as error:  # no library or device, if not worse
    VERBS = str(error)
NAMES = sorted(path.stem for path in (ROOT / "tests" / "cpp").glob("*.cpp"))


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built test programs."""
    if given := os.environ.get("GIN_TEST_CPP"):
        return Path(given)
    if not (ROOT / "CMakeLists.txt").exists() or shutil.which("cmake") is None:
        pytest.skip("the C++ tests need a checkout and cmake")
    build = tmp_path_factory.mktemp("cpp")
    options = ["-DGIN_PYTHON=OFF", "-DGIN_TESTS=ON"]
    for command in (["cmake", "-S", str(ROOT), "-B", str(build), *options], ["cmake", "--build", str(build), "-j2"]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return build / "tests" / "cpp"


@pytest.mark.timeout(700)
@pytest.mark.parametrize("name", NAMES)
def test_program(programs: Path, name: str) -> None:
    done = subprocess.run([str(programs / name)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(700)
@pytest.mark.parametrize("vendor", ["0x02c9", "0xffffff"], ids=["fake", "soft"])
def test_the_verbs_wire_on_pretended_devices(programs: Path, vendor: str) -> None:
    """As another device and as Soft-RoCE."""
    library = programs / "fake"
    if not (library / "libibverbs.so.1").exists():
        pytest.skip("the C++ tests were built without infiniband/verbs.h")
    env = {
        **os.environ,
        "LD_LIBRARY_PATH": str(library),
        "GIN_TEST_VERBS": "1",
        "FAKE_VERBS": f"vendor={vendor}",
    }
    done = subprocess.run(
        [str(programs / "wire_verbs")], capture_output=True, text=True, timeout=120, check=False, env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(700)
@pytest.mark.parametrize("vendor", ["0x02c9", "0xffffff"], ids=["fake", "soft"])
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_kernels_over_pretended_devices(programs: Path, ranks: int, vendor: str) -> None:
    """From a kernel by ring, engine and wire to a device that is late, and back: ranks as threads of one process."""
    library = programs / "fake"
    if not (library / "libibverbs.so.1").exists() or "when it was built" in VERBS:
        pytest.skip("built without infiniband/verbs.h")
    env = {**os.environ, "FAKE_VERBS": f"vendor={vendor},seed={ranks}", "LD_LIBRARY_PATH": str(library)}
    command = [sys.executable, "-P", str(ROOT / "tests" / "verbs_threads.py"), "host", str(ranks)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=env)
    lines = done.stdout.splitlines()
    assert len(lines) == ranks and all(": 0 wrong, by ['native'" in line for line in lines), done.stdout + done.stderr

"""What an installation contains, and what importing it costs."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

import gin
from gin.backends import NAMES, folder
from gin.bench.plan import SCOPES, TESTS, Shape, kernel_name, kernel_source

PACKAGE = Path(gin.__file__).parent
ROOT = Path(__file__).parents[1]


def run_python(code: str, *flags: str) -> str:
    done = subprocess.run(
        [sys.executable, *flags, "-c", code], capture_output=True, text=True, timeout=60, check=True, cwd="/"
    )
    return done.stdout


def test_import_is_quick_and_needs_next_to_nothing() -> None:
    code = (
        "import sys, time; start = time.perf_counter(); import gin; took = time.perf_counter() - start\n"
        "import json; print(json.dumps([took, sorted(sys.modules)]))"
    )
    answers = [json.loads(run_python(code)) for _ in range(3)]
    assert min(took for took, _ in answers) < 0.3
    loaded = {name.split(".")[0] for name in answers[0][1]}
    assert not loaded & {"numpy", "click", "rich", "cloudpickle", "cuda", "cupy", "nccl", "nvshmem", "torch"}
    assert "gin._core" not in answers[0][1]


def test_one_version_everywhere() -> None:
    from gin import _core

    assert gin.__version__ == _core.__version__ == importlib.metadata.version("gin")


def test_every_public_name_is_there() -> None:
    for name in gin.__all__:
        assert getattr(gin, name) is not None
    assert set(gin.__all__) <= set(dir(gin))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = gin.no_such_name


def test_headers_types_and_licence_are_installed() -> None:
    from gin.platforms.host_compiler import include_folders

    assert (PACKAGE / "py.typed").is_file()
    folders = include_folders()
    assert all(place.is_dir() for place in folders)
    for header in ("gin/gin.cuh", "gin/comm.h", "cuda_runtime.h", "nvshmem.h", "nccl_device.h"):
        assert any((place / header).is_file() for place in folders), header
    for name in NAMES:
        assert (folder(name) / "device.cuh").is_file()
    files = importlib.metadata.files("gin") or []
    assert any(file.name == "LICENSE" for file in files)


def test_the_command_is_installed() -> None:
    commands = importlib.metadata.entry_points(group="console_scripts", name="gin")
    assert [command.value for command in commands] == ["gin.cli.main:main"]


def test_ci_refuses_steps_that_do_not_exist() -> None:
    script = ROOT / ".ci" / "run"
    if not script.exists():
        pytest.skip("not a checkout")
    done = subprocess.run(["bash", str(script), "frobnicate"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "frobnicate" in done.stderr


# -- compiling for CUDA. What the vendors' headers are needed for is left out where they are not installed.


def nvcc() -> str:
    import shutil

    path = shutil.which("nvcc")
    if path is None:
        pytest.skip("nvcc is not installed")
    return path


OPERATIONS = [made for test in TESTS.values() for made in test.operations]
ARCHITECTURES = ("sm_80", "sm_90")


@pytest.mark.parametrize("number", range(len(OPERATIONS)), ids=lambda n: f"{OPERATIONS[n].test}-{OPERATIONS[n].name}")
@pytest.mark.parametrize("backend", ["ibrc_proxy"])
def test_benchmark_kernels_compile_for_cuda(number: int, backend: str, tmp_path: Path) -> None:
    # Each operation with one scope and architecture, in turn; the first with all scopes.
    compiler = nvcc()
    made, architecture = OPERATIONS[number], ARCHITECTURES[number % 2]
    include = PACKAGE / "include"
    if not include.is_dir():
        include = PACKAGE.parent / "csrc" / "include"
    for scope in SCOPES if number == 0 else SCOPES[number % 3 :][:1]:
        source = tmp_path / f"{made.kernel}.cu"
        source.write_text(kernel_source(Shape(made, scope, 1, 32, None)))
        command = [
            compiler,
            "-std=c++17",
            f"-arch={architecture}",
            "-ptx",
            str(source),
            "-o",
            str(tmp_path / "out.ptx"),
        ]
        command += ['-DGIN_BACKEND_HEADER="device.cuh"', f"-I{folder(backend)}", f"-I{include}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert f".entry {kernel_name(made.test, made.name)}(" in (tmp_path / "out.ptx").read_text()

"""Kernels compile for GPUs with the vendors' own headers, on a machine that has no GPU.

The headers come from installed nvidia-* packages, or from a folder that holds nvidia/nccl and nvidia/nvshmem, named by
GIN_VENDOR_INCLUDE.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from gin import _core
from gin.bench.plan import Shape, kernel_name, kernel_source
from gin.bench.tests import TESTS, operation
from gin.config import Config
from gin.errors import CompileError
from gin.platforms import ahead
from gin.platforms.cuda_compile import KINDS, CudaCompiler, DeviceCode

ARCHITECTURES = ["sm_80", "sm_90", "sm_100"]

EVERYTHING = r"""
#include <gin/gin.cuh>

template <int n>
__global__ void everything(gin::Comm comm, gin::Window a, gin::Window b, uint64_t bytes, uint64_t* out, float scale) {
  gin::Context net(comm, 1);
  const int right = (net.rank() + 1) % net.size();
  net.put_value(right, a, 0, net.rank(), gin::signal_inc{0});
  net.put_value(right, a, 0, make_int2(1, n));
  net.put(gin::thread, right, a, 0, b, 0, bytes, gin::ordered(gin::signal_add{1, 5}), gin::counter_inc{2});
  net.put(gin::warp, right, a, 0, b, 0, bytes, gin::signal_inc{1});
  net.put(gin::block, right, a, 0, b, 0, bytes);
  net.get(gin::block, right, a, 0, b, 0, bytes);
  net.signal(right, gin::ordered(gin::signal_inc{3}));
  const gin::Status status = net.wait(gin::block, 0, net.epoch(0) + 1);
  net.wait(gin::warp, 0, 1, 1000);
  if (net.alive(right)) net.wait(gin::block, 0, 1, gin::from{uint32_t(right)});
  net.wait(gin::thread, 0, 1, gin::from{uint32_t(right)}, 1000);
  uint32_t ids[2] = {0, 1}, which[2], found;
  uint64_t least[2] = {1, 2};
  net.wait_any(gin::block, ids, least, 2);
  net.wait_all(gin::warp, ids, least, 2);
  net.wait_some(gin::thread, ids, least, 2, which, &found);
  net.wait_counter(gin::block, 2, 1);
  net.flush(gin::block);
  gin::Ticket ticket = net.flush_async(right);
  while (!net.test(ticket)) {}
  net.wait(gin::warp, ticket);
  net.fence(gin::block);
  net.quiet(gin::block);
  net.barrier(gin::block);
  net.barrier(gin::thread, gin::Team{0, 2, 2}, 1, false);
  net.iput(gin::block, right, a, 0, 16, b, 0, 8, 4, bytes, gin::signal_inc{4});
  net.iget(gin::block, right, a, 0, 16, b, 0, 8, 4, bytes);
  out[0] = net.read(0) + net.reset(0) + net.read_counter(1) + net.reset_counter(1) + status.ok() + uint64_t(scale) +
           uint64_t(net.peer_pointer(a, 0, right));
#if ATOMICS
  out[1] = net.atomic_fetch_add(right, a, 0, 1u) + net.atomic_compare_swap(right, a, 8, uint64_t(1), uint64_t(2)) +
           net.atomic_swap(right, a, 0, 3) + net.atomic_fetch_or(right, a, 0, 3u) +
           net.atomic_fetch_and(right, a, 0, 3u) + net.atomic_fetch_xor(right, a, 0, 3u);
#endif
}
"""

PASS_ON = r"""
#include <gin/gin.cuh>
__global__ void pass_on(gin::Comm comm, gin::Window a, gin::Window b, uint64_t bytes) {
  gin::Context net(comm);
  net.put(gin::thread, 1, a, 0, b, 0, bytes, gin::signal_inc{0});
  net.wait(gin::thread, 0, 1);
}
"""

SMALL = r"""
#include <gin/gin.cuh>
namespace mine { enum Colour : short { red }; struct Pair { double a; char b; }; }
__global__ void small(gin::Comm comm, gin::Window w, mine::Colour c, mine::Pair p, bool yes, double d, const char* s) {
  gin::Context net(comm);
  net.put_value(0, w, 0, d + c + p.a + yes + *s);
}
"""


def vendor(library: str) -> Path:
    """The folder of a vendor's package. Skips the test where it is nowhere."""
    roots = [Path(place, "nvidia") for place in os.environ.get("GIN_VENDOR_INCLUDE", "").split(":") if place]
    spec = importlib.util.find_spec("nvidia")
    roots += [Path(place) for place in (spec.submodule_search_locations or [] if spec else [])]
    for root in roots:
        if (root / library / "include").is_dir():
            return root / library
    pytest.skip(f"no headers of {library}: install nvidia-{library}-cu13, or set GIN_VENDOR_INCLUDE")


def device_code(backend: str, compiler: str) -> DeviceCode:
    why = "the test says so" if compiler == "nvcc" else ""
    if backend == "nvshmem":
        root = vendor("nvshmem")
        macros = ("NVSHMEM_ENABLE_ALL_DEVICE_INLINING", "ATOMICS=1")
        return DeviceCode(backend, (root / "include",), macros, (root / "lib" / "libnvshmem_device.a",), nvcc=why)
    if backend == "nccl_gin":
        switches = tuple(f"NCCL_GIN_{name}_ENABLE=0" for name in ("GDAKI", "GPI", "EFA_GDA"))
        return DeviceCode(backend, (vendor("nccl") / "include",), (*switches, "ATOMICS=0"), nvcc=why)
    return DeviceCode(backend, macros=("ATOMICS=1",), nvcc=why)


@pytest.fixture
def compile_(tmp_path):
    def run(
        source: str, entry: str, backend: str, compiler: str, arch: str, flags: int | None = None
    ) -> tuple[bytes, str]:
        if compiler == "nvcc" and not (shutil.which("nvcc") or Path("/usr/local/cuda/bin/nvcc").exists()):
            pytest.skip("nvcc is not installed")
        if compiler == "nvrtc" or backend == "nvshmem":
            pytest.importorskip("cuda.core", reason="cuda-core is not installed")
        config = Config.from_sources(cache_dir=tmp_path / "cache", check=False)
        return CudaCompiler(config, device_code(backend, compiler), arch).compile(source, entry, flags)

    return run


def code_bytes(image: bytes) -> int:
    """The size of an ELF image's machine code (sections named .text.*)."""
    table, size, count, names = struct.unpack_from("<Q", image, 0x28)[0], *struct.unpack_from("<HHH", image, 0x3A)
    rows = [struct.unpack_from("<IIQQQQ", image, table + size * i) for i in range(count)]
    strings = rows[names][4]
    return sum(row[5] for row in rows if image[strings + row[0] :].startswith(b".text."))


def entry_table(image: bytes) -> list[tuple[str, int, int]]:
    """What the module of SMALL says about its kernel's parameters, found by how that begins: 7 of them, Comm, Window."""
    begin = re.escape(struct.pack("<II", 7, 0)) + b"...." + re.escape(struct.pack("<IIII", 8, 1, 96, 8))
    found = re.search(begin, image, re.DOTALL)
    assert found is not None
    rows = struct.iter_unpack("<III", image[found.start() + 4 : found.start() + 4 + 12 * 7])
    return [(KINDS[kind], size, align) for kind, size, align in rows]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(("backend", "compiler"), [("ibrc_proxy", "nvrtc"), ("nvshmem", "nvrtc"), ("nccl_gin", "nvcc")])
def test_every_operation_compiles_with_the_vendors_headers(compile_, backend, compiler, arch):
    image, symbol = compile_(EVERYTHING, "everything<3>", backend, compiler, arch)
    assert image[:4] == b"\x7fELF"
    assert "10everythingILi3E" in symbol
    assert re.search(rb"gin_entry\0", image)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("backend", "compiler"), [("ibrc_proxy", "nvrtc"), ("nvshmem", "nvrtc"), ("nccl_gin", "nvcc")])
def test_kernels_hold_the_ways_of_their_communicator_only(compile_, backend, compiler):
    flags = [None, _core.all_direct, _core.native_only]
    code = [code_bytes(compile_(PASS_ON, "pass_on", backend, compiler, "sm_90", flag)[0]) for flag in flags]
    assert max(code[1:]) < 0.9 * code[0], code


def test_what_a_nic_reads_is_released_otherwise_than_for_the_gpus_own_engines(tmp_path):
    pytest.importorskip("cuda.core", reason="cuda-core is not installed")
    config = Config.from_sources(cache_dir=tmp_path / "cache", check=False)
    images = []
    for macros in ((), ("GIN_IBRC_SYSTEM_SOURCES=1",)):
        compiler = CudaCompiler(config, DeviceCode("ibrc_proxy", macros=macros), "sm_90")
        images.append(compiler.compile(PASS_ON, "pass_on", _core.native_only)[0])
    assert images[0] != images[1]


INCLUDING = '#include <gin/gin.cuh>\n#include "mine.h"\nextern "C" __global__ void k(int* out) { *out = MINE; }'


@pytest.mark.parametrize("why", ["", "the test says so"], ids=["nvrtc", "nvcc"])
def test_a_kernel_is_compiled_again_when_what_it_is_made_of_changes(tmp_path, monkeypatch, why):
    pytest.importorskip("cuda.core", reason="cuda-core is not installed")
    if why and not (shutil.which("nvcc") or Path("/usr/local/cuda/bin/nvcc").exists()):
        pytest.skip("nvcc is not installed")
    config = Config.from_sources(cache_dir=tmp_path / "cache", check=False)
    compiler = CudaCompiler(config, DeviceCode("ibrc_proxy", nvcc=why), "sm_90")
    for number, made in ((1, 1), (1, 1), (2, 2)):
        (tmp_path / "mine.h").write_text(f"#define MINE {number}\n")
        compiler.compile(INCLUDING, "k", beside=tmp_path)
        assert compiler.runs == made
    if why:
        monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DOTHER=1")
        compiler.compile(INCLUDING, "k", beside=tmp_path)
        assert compiler.runs == 3


def test_ahead_of_their_use_kernels_are_compiled_by_processes_that_end(tmp_path, monkeypatch):
    pytest.importorskip("cuda.core", reason="cuda-core is not installed")
    started, make = [], ahead._worker
    monkeypatch.setattr(ahead, "_worker", lambda: started.append(make()) or started[-1])
    config = Config.from_sources(cache_dir=tmp_path / "cache", check=False)
    job = config, DeviceCode("ibrc_proxy"), "sm_90"
    kernels = [(PASS_ON, "pass_on"), (PASS_ON, "absent"), ("not C++", "k"), (PASS_ON + "// again", "pass_on")]
    ahead.by_processes(job, _core.native_only, kernels, 2, lambda: False)
    assert len(started) == 2 and all(worker.poll() is not None for worker in started)
    compiler = CudaCompiler(*job)
    for source, name in (kernels[0], kernels[3]):
        compiler.compile(source, name, _core.native_only)
    assert compiler.runs == 0
    with pytest.raises(CompileError, match="absent"):
        compiler.compile(*kernels[1], _core.native_only)


@pytest.mark.parametrize("command", [["false"], ["sleep", "100"]])
@pytest.mark.parametrize("size", [0, 1 << 20], ids=["short", "longer than a pipe takes"])
def test_a_process_that_ends_or_does_not_answer_leaves_its_kernels_to_their_use(tmp_path, monkeypatch, command, size):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    monkeypatch.setattr(ahead, "_worker", lambda: subprocess.Popen(command, **pipes))
    monkeypatch.setattr(ahead, "COMPILE_SECONDS", 0)
    monkeypatch.setattr(ahead, "_AFTER", 0.2)
    config = Config.from_sources(cache_dir=tmp_path / "cache")
    ahead.by_processes(
        (config, DeviceCode("ibrc_proxy"), "sm_90"), 0, [(PASS_ON + " " * size, "pass_on")] * 3, 2, lambda: False
    )
    assert not (tmp_path / "cache").exists()


@pytest.mark.timeout(900)
def test_what_operations_return_is_no_constant_in_memory(compile_):
    image, _ = compile_(EVERYTHING, "everything<3>", "nvshmem", "nvrtc", "sm_90")  # linked, so that names are kept
    assert not re.findall(rb"_ZN?K?3gin\w*\$\d+", image)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scope", ["thread", "warp", "block"])
@pytest.mark.parametrize(("backend", "compiler"), [("nvshmem", "nvrtc"), ("nccl_gin", "nvcc")])
def test_the_libraries_own_calls_compile_for_the_baseline(compile_, backend, compiler, scope):
    for test, name in (("latency", "put_signal"), ("latency", "put_value"), ("rate", "put")):
        shape = Shape(operation(test, name), scope, 1, 32, None)
        image, symbol = compile_(kernel_source(shape, backend), kernel_name(test, name), backend, compiler, "sm_90")
        assert image[:4] == b"\x7fELF" and symbol == kernel_name(test, name)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("test", TESTS)
def test_every_kernel_of_the_benchmark_compiles(compile_, test):
    for made in TESTS[test].operations:
        shape = Shape(made, "warp", 1, 64, None)
        name = kernel_name(test, made.name)
        image, symbol = compile_(kernel_source(shape), name, "ibrc_proxy", "nvrtc", "sm_90")
        assert image[:4] == b"\x7fELF" and symbol == name


@pytest.mark.timeout(300)
@pytest.mark.parametrize("compiler", ["nvrtc", "nvcc"])
def test_both_compilers_describe_parameters_alike(compile_, compiler):
    image, symbol = compile_(SMALL, "small", "ibrc_proxy", compiler, "sm_90")
    assert "5small" in symbol
    rows = entry_table(image)
    assert [row[0] for row in rows] == ["comm", "window", "signed", "struct", "bool", "float", "pointer"]
    assert rows[1:] == [
        ("window", 96, 8),
        ("signed", 2, 2),
        ("struct", 16, 8),
        ("bool", 1, 1),
        ("float", 8, 8),
        ("pointer", 8, 8),
    ]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("compiler", ["nvrtc", "nvcc"])
def test_errors_name_the_sources_own_lines_and_missing_kernels(compile_, compiler):
    with pytest.raises(CompileError, match=r"(?s)does not compile.*kernel\.cu.?2.*nonsense"):
        compile_("\n__global__ void k() { nonsense; }\n", "k", "ibrc_proxy", compiler, "sm_90")
    with pytest.raises(CompileError, match="no kernel named 'other'"):
        compile_("__global__ void k() {}\n", "other", "ibrc_proxy", compiler, "sm_90")
    with pytest.raises(CompileError, match="no __global__ function"):
        compile_("int x;\n", "k", "ibrc_proxy", compiler, "sm_90")


@pytest.mark.parametrize("program", ["copies", "one_block"])
def test_the_benchmarks_without_gin_compile(program, tmp_path):
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(nvcc).exists():
        pytest.skip("nvcc is not installed")
    source = Path(__file__).parents[1] / f"benchmarks/{program}.cu"
    command = [nvcc, "-std=c++17", "-arch=sm_90", "-Werror=all-warnings", "-Xcompiler=-Wall,-Wextra,-Werror"]
    done = subprocess.run(
        [*command, "-c", str(source), "-o", str(tmp_path / "program.o")],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

"""The host platform below the communicator: compiled modules, streams, and what their failures look like in Python."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gin
from gin.platforms.host_compiler import find_compiler, include_folders
from gin.platforms.host_source import FLAGS, dynamic_shared_symbols, prepare

_core = pytest.importorskip("gin._core")

Compile = Callable[..., Any]
ONE = (1, 1, 1)


@pytest.fixture
def compile_kernel(tmp_path: Path) -> Compile:
    def compile_(source: str, entry: str = "k") -> Any:
        unit, target = tmp_path / "kernel.cpp", tmp_path / f"{time.monotonic_ns()}.so"
        unit.write_text(prepare(source, entry))
        includes = [f"-I{folder}" for folder in include_folders()]
        subprocess.run(
            [find_compiler(None)[0], *FLAGS, "-O1", *includes, str(unit), "-o", str(target)], check=True, timeout=60
        )
        return _core.Module(str(target))

    return compile_


def launch(stream: Any, module: Any, *args: bytes, grid: Any = ONE, block: Any = ONE, shared: int = 0) -> None:
    stream.launch(module, list(args), grid, block, shared, 0, "k")


def pointer(array: np.ndarray[Any, Any]) -> bytes:
    return struct.pack("P", array.ctypes.data)


@pytest.mark.parametrize(
    ("source", "symbols"),
    [
        ("__shared__ int a[4];", []),
        ("extern __shared__ int a[];", ["a"]),
        ("extern __shared__ __align__(16) unsigned char a[ ];\nextern __shared__ float b[], ;", ["a"]),
        ("// extern __shared__ int a[];\n/* extern __shared__ int b[]; */ #define X", []),
        ('const char* s = "extern __shared__ int a[];{";\nextern __shared__ int b[];', ["b"]),
        ("#define D extern __shared__ int a[];\nextern volatile __shared__ int b[];", ["b"]),
        ("namespace n { void f() { extern __shared__ int a[]; } }", ["a", "_ZN1n1aE"]),
        ("namespace n::inner { } extern __shared__ int a[];", ["a"]),
        ("inline namespace v2 { namespace { extern __shared__ int a[]; } }", ["a", "_ZN2v212_GLOBAL__N_11aE"]),
        ("extern \"C\" { __global__ void k() { if (1) { char c = '{'; } extern __shared__ int a[]; } }", ["a"]),
        ("void f() { extern __shared__ int a[]; } void g() { extern __shared__ int a[]; }", ["a"]),
        ("int x = 1'000; extern __shared__ T a[]; int y = 2'000;", ["a"]),
    ],
)
def test_dynamic_shared_arrays_are_found_in_the_source(source: str, symbols: list[str]) -> None:
    assert dynamic_shared_symbols(source) == symbols


def test_lines_of_the_source_are_kept() -> None:
    assert prepare("a\nb", "k").startswith('#line 1 "kernel.cu"\na\nb\n#line 1 "gin-entry"\n')


def test_parameters_are_described(compile_kernel: Compile) -> None:
    module = compile_kernel(
        "namespace gin { struct Comm { double a[3]; }; struct Window { float x; }; }\n"
        "enum E : unsigned char { e };\n"
        "template <class T> __global__ void k(gin::Comm, gin::Window, T, const int, E, bool*, bool, float4) {}",
        "k<double>",
    )
    assert module.params == [
        ("comm", 24, 8),
        ("window", 4, 4),
        ("float", 8, 8),
        ("signed", 4, 4),
        ("unsigned", 1, 1),
        ("pointer", 8, 8),
        ("bool", 1, 1),
        ("struct", 16, 16),
    ]
    assert module.name == "k<double>"


def test_a_kernel_with_warps_shared_memory_and_shuffles(compile_kernel: Compile) -> None:
    module = compile_kernel(
        """
        #include <cooperative_groups.h>
        namespace cg = cooperative_groups;
        template <int threads> __global__ void prefix(const int* in, int* out) {
          __shared__ int totals[threads / 32];
          extern __shared__ int copy[];
          int t = threadIdx.x, i = blockIdx.x * threads + t;
          auto warp = cg::tiled_partition<32>(cg::this_thread_block());
          int v = copy[t] = in[i];
          for (int d = 1; d < 32; d *= 2) {
            int other = warp.shfl_up(v, d);
            if (warp.thread_rank() >= d) v += other;
          }
          if (warp.thread_rank() == 31) totals[t / 32] = v;
          __syncthreads();
          for (int w = 0; w < t / 32; ++w) v += totals[w];
          out[i] = v - copy[t] + in[i];
        }
        """,
        "prefix<256>",
    )
    data = np.random.default_rng(1).integers(-100, 100, (7, 256)).astype(np.int32)
    out = np.zeros_like(data)
    stream = _core.Stream()
    launch(stream, module, pointer(data), pointer(out), grid=(7, 1, 1), block=(256, 1, 1), shared=1024)
    stream.synchronize(30.0)
    assert (out == np.cumsum(data, axis=1)).all()


def test_launches_run_in_order(compile_kernel: Compile) -> None:
    module = compile_kernel("__global__ void k(int* n, int expected) { if (*n == expected) ++*n; }")
    n = np.zeros(1, np.int32)
    stream = _core.Stream()
    for i in range(300):
        launch(stream, module, pointer(n), struct.pack("i", i))
    stream.synchronize()
    assert n[0] == 300
    assert stream.pending == 0


def test_a_barrier_that_is_not_reached_by_all_is_a_kernel_error(compile_kernel: Compile) -> None:
    module = compile_kernel("__global__ void k() {\n  if (threadIdx.x) __syncthreads();\n}")
    stream = _core.Stream()
    launch(stream, module, block=(48, 1, 1))
    with pytest.raises(gin.KernelError, match=r"threads 1-47 at __syncthreads \(kernel.cu:2\)"):
        stream.synchronize(30.0)
    launch(stream, module)
    stream.synchronize(30.0)


@pytest.mark.parametrize(
    ("shape", "what"),
    [
        ({"block": (1025, 1, 1)}, "block"),
        ({"block": (0, 1, 1)}, "block"),
        ({"grid": (1, 70000, 1)}, "grid"),
        ({"grid": (-1, 1, 1)}, "grid -1"),
        ({"grid": (1 << 40, 1, 1)}, "grid"),
        ({"shared": 232449}, "shared memory"),
        ({"shared": -4}, "shared -4"),
    ],
)
def test_shapes_beyond_the_limits(compile_kernel: Compile, shape: dict[str, Any], what: str) -> None:
    stream = _core.Stream()
    with pytest.raises(gin.ArgumentError, match=what):
        launch(stream, compile_kernel("__global__ void k() {}"), **shape)


def test_arguments_must_have_the_parameters_sizes(compile_kernel: Compile) -> None:
    module = compile_kernel("__global__ void k(int, double) {}")
    stream = _core.Stream()
    with pytest.raises(gin.ArgumentError, match="takes 2 arguments, not 1"):
        launch(stream, module, b"1234")
    with pytest.raises(gin.ArgumentError, match="argument 1 of kernel k has 8 bytes, not 4"):
        launch(stream, module, b"1234", b"1234")


def test_files_that_are_no_kernels(tmp_path: Path) -> None:
    with pytest.raises(gin.ConfigError, match="No such file"):
        _core.Module(str(tmp_path / "missing.so"))
    (tmp_path / "text.so").write_text("text")
    with pytest.raises(gin.CompileError, match="does not load"):
        _core.Module(str(tmp_path / "text.so"))


def test_waiting_has_a_deadline_and_lets_other_threads_run(compile_kernel: Compile) -> None:
    module = compile_kernel(
        '__global__ void k(int* stop) {\n  for (gin::host::Waiting w("signal {}", 3); !__ldcv(stop);) w.poll();\n}'
    )
    stop = np.zeros(1, np.int32)
    stream = _core.Stream()
    launch(stream, module, pointer(stop), block=(2, 1, 1))
    with pytest.raises(gin.TimeoutError, match=r"all 2 threads waiting in signal 3 \(kernel.cu:2\)"):
        stream.synchronize(0.05)
    timer = threading.Timer(0.1, lambda: stop.__setitem__(0, 1))
    timer.start()
    stream.synchronize(30.0)
    timer.join()


def test_closing_stops_what_runs(compile_kernel: Compile) -> None:
    module = compile_kernel("__global__ void k() { for (;;) gin::host::yield(); }")
    stream = _core.Stream()
    launch(stream, module)
    begin = time.monotonic()
    with pytest.raises(gin.TimeoutError):
        stream.close(0.1)
    assert time.monotonic() - begin < 5
    with pytest.raises(gin.ConfigError, match="closed"):
        launch(stream, module)
    stream.close(0.1)


def test_a_stream_that_is_dropped_stops_what_runs(compile_kernel: Compile) -> None:
    module = compile_kernel("__global__ void k(int* n) { for (;;) { atomicAdd(n, 1); __syncthreads(); } }")
    n = np.zeros(1, np.int32)
    stream = _core.Stream()
    launch(stream, module, pointer(n), block=(64, 1, 1))
    while not n[0]:
        time.sleep(0.001)
    threads = len(os.listdir("/proc/self/task"))
    begin = time.monotonic()
    del stream
    assert time.monotonic() - begin < 0.9  # a second is for kernels that cannot be stopped
    assert len(os.listdir("/proc/self/task")) == threads - 1


def test_an_interrupt_ends_the_wait(compile_kernel: Compile, tmp_path: Path) -> None:
    module = compile_kernel("__global__ void k() { for (;;) gin::host::yield(); }")
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "from gin import _core\n"
        "stream = _core.Stream()\n"
        "stream.launch(_core.Module(sys.argv[1]), [], (1, 1, 1), (1, 1, 1), 0, 0, 'k')\n"
        "try:\n"
        "    print('running', flush=True)\n"
        "    stream.synchronize()\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', stream.where().splitlines()[0])\n"
    )
    child = subprocess.Popen([sys.executable, str(program), module.path], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "running\n"
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=20)
        assert out == "interrupted kernel k, grid (1,1,1), block (1,1,1)\n"
        assert child.returncode == 0
    finally:
        child.kill()
        child.wait()


SPINS = r"""
#include <gin/gin.cuh>
extern "C" __global__ void spin(gin::Comm comm, gin::Window box, const char* array) {
  const void* reached[] = {box.local(), box.peers, comm.control.base, comm.epoch, comm.record, comm.backend, array};
  for (volatile int sum = 0;;)
    for (const void* p : reached)
      if (p) sum = sum + *static_cast<volatile const char*>(p);
}
"""
WAYS = {
    "closed": "with comm: catch(run)",
    "closed by the error": "catch(lambda: closing(run))",
    "interrupted": "signal.setitimer(signal.ITIMER_REAL, 0.5); catch(lambda: closing(comm.synchronize))",
    "dropped": "catch(run); del comm",
    "left": "catch(run)",
}


@pytest.mark.parametrize("backend", ["ibrc_proxy", "nvshmem", "nccl_gin"])
@pytest.mark.parametrize("way", WAYS)
def test_what_a_kernel_that_cannot_be_stopped_reaches_stays(way: str, backend: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import gc, signal, sys, time\n"
        "import numpy as np\n"
        "import gin, gin.comm\n"
        "gin.comm.CLOSE_SECONDS = 0.1\n"
        f"SPINS = {SPINS!r}\n"
        "signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
        "def catch(step):\n"
        "    try:\n"
        "        step()\n"
        "    except (gin.TimeoutError, KeyboardInterrupt) as error:\n"
        "        print(type(error).__name__)\n"
        "def run():\n"
        "    comm.synchronize(timeout=0.1)\n"
        "def closing(step):\n"
        "    with comm:\n"
        "        step()\n"
        f"comm = gin.init(backend={backend!r}, heap='64M')\n"
        "box, array = comm.window(1 << 20), np.zeros(1 << 20, np.uint8)\n"
        "comm.compile(SPINS, 'spin').launch(box, array)\n"
        "box.close()\n"
        "del box, array\n"
        f"{WAYS[way]}\n"
        "gc.collect()\n"
        "time.sleep(0.2)\n"
        "sys.exit(3)\n"
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3, done.stderr
    assert done.stdout.split() == ["KeyboardInterrupt" if way == "interrupted" else "TimeoutError"]
    assert done.stderr.splitlines() == [
        "gin: kernel spin does not poll and cannot be stopped; its thread is left behind"
    ]

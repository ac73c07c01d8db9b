"""Kernels that nobody has prepared: the CUDA language on every backend, arguments, compile errors, the cache."""

from __future__ import annotations

import os
import re
import stat
import time

import numpy as np
import pytest

import gin

WORK = r"""
#include <gin/gin.cuh>

__constant__ int weights[4] = {1, 2, 3, 4};

__device__ float warp_sum(float value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(0xffffffffu, value, step);
  return value;
}

// Each block takes a row; then the rows' sums go around the ring and are combined.
extern "C" __global__ void work(gin::Comm comm, gin::Window rows, gin::Window sums, gin::Window others, int columns) {
  extern __shared__ float row[];
  __shared__ float part[32];
  __shared__ unsigned positive, last;
  const int thread = threadIdx.y * blockDim.x + threadIdx.x, threads = blockDim.x * blockDim.y;
  const int lane = thread % 32, warp = thread / 32, block = blockIdx.y * gridDim.x + blockIdx.x;
  const float* input = static_cast<const float*>(rows.local()) + block * columns;
  float4* output = static_cast<float4*>(sums.local());
  if (thread == 0) positive = 0, last = 0;
  for (int i = thread; i < columns; i += threads) row[i] = input[i] * weights[i & 3];
  __syncthreads();

  float total = 0;
  for (int i = thread; i < columns; i += threads) {
    total += row[i];
    const unsigned above = __ballot_sync(__activemask(), row[i] > 0);
    if (lane == __ffs(__activemask()) - 1) atomicAdd(&positive, __popc(above));
    atomicMax(&last, unsigned(i));
  }
  total = warp_sum(total);
  if (lane == 0) part[warp] = total;
  __syncthreads();
  if (warp == 0) {
    total = warp_sum(lane < threads / 32 ? part[lane] : 0.0f);
    const float first = __shfl_sync(0xffffffffu, total, 0);
    const bool agree = __all_sync(0xffffffffu, first == __shfl_xor_sync(0xffffffffu, first, 1));
    if (lane == 0) output[block] = make_float4(total, float(positive), float(last), agree ? 1.0f : 0.0f);
  }
  __syncthreads();

  gin::Context net(comm, 0);
  const int right = (net.rank() + 1) % net.size();
  net.put(gin::block, right, others, 16 * block, sums, 16 * block, 16, gin::signal_inc{0});
  net.wait(gin::block, 0, gridDim.x * gridDim.y);
  net.flush(gin::block);
}
"""


def test_warps_shared_memory_and_shuffles_compute_what_numpy_does(world):
    def body(comm):
        grid, columns = (3, 2), 1000
        rows, sums, others = comm.window(6 * columns * 4), comm.window(96), comm.window(96)
        values = (np.arange(6 * columns).reshape(6, columns) * 37 + comm.rank * 11) % 17 - 8
        rows.array("f4", (6, columns))[:] = values
        kernel = comm.compile(WORK, "work")
        kernel.launch(rows, sums, others, columns, grid=grid, block=(32, 4), shared=4 * columns)
        comm.synchronize()
        weighted = values * (1 + np.arange(columns) % 4)
        wanted = np.stack([weighted.sum(1), (weighted > 0).sum(1), np.full(6, columns - 1), np.ones(6)], 1)
        assert (sums.array("f4", (6, 4)) == wanted).all()
        comm.barrier()
        return sums.array("f4").tolist(), others.array("f4").tolist()

    results = world.run(3, body)
    for rank in range(3):
        assert results[rank][1] == results[rank - 1][0]


STUCK = r"""#include <gin/gin.cuh>
extern "C" __global__ void stuck(gin::Comm comm, int kind) {
  if (kind == 0) {
    if (threadIdx.x < 40) {
      __syncthreads();  // line 5
    } else {
      __syncwarp();  // line 7
    }
  } else if (kind == 1) {
    if (threadIdx.x == 5) return;
    __syncthreads();  // line 11
  } else {
    if (threadIdx.x % 2) {
      __syncthreads();  // line 14
    } else {
      __shfl_sync(0xffffffffu, 1, 1);  // line 16
    }
  }
}
"""


def test_a_barrier_that_not_all_threads_reach_is_an_error_that_says_who_stands_where(world):
    backend, route = world.backend, world.route

    def rank_main():
        found = []
        for kind in range(3):
            with gin.init(backend=backend, route=route, timeout="20s") as comm:
                comm.compile(STUCK, "stuck").launch(kind, block=64)
                start = time.monotonic()
                with pytest.raises(gin.KernelError) as caught:
                    comm.synchronize()
                assert time.monotonic() - start < 10
                with pytest.raises(gin.KernelError, match=re.escape(str(caught.value)[:40])):
                    comm.barrier()
                found.append(str(caught.value))
        return found

    for first, second, third in gin.spawn(1, rank_main, timeout=60):
        assert "kernel stuck" in first and "threads 0-39 at __syncthreads (kernel.cu:5)" in first
        assert "threads 40-63 at __syncwarp for lanes 0xffffffff (kernel.cu:7)" in first
        assert "threads 0-4,6-63 at __syncthreads (kernel.cu:11); thread 5 has ended" in second
        assert "kernel.cu:14" in third and "at __shfl_sync for lanes 0xffffffff (kernel.cu:16)" in third


ARGUMENTS = r"""
#include <gin/gin.cuh>
struct Point { int x; float y; double z; };
enum class Color : short { red = 1, blue = 300 };
struct Wide { alignas(32) char bytes[64]; };
extern "C" __global__ void show(int8_t a, uint8_t b, int16_t c, uint16_t d, gin::Comm comm, int32_t e, uint32_t f,
                                int64_t g, uint64_t h, float i, double j, bool k, Point l, char* m, const void* n,
                                gin::Window o, Color p, Wide q, gin::Window out) {
  double* found = static_cast<double*>(out.local());
  double values[] = {double(a), double(b), double(c), double(d), double(e), double(f), i, j, double(k), double(l.x),
                     l.y, l.z, m ? double(*m) : -1.0, n ? 1.0 : 0.0, double(o.bytes), double(comm.rank),
                     double(short(p)), double(q.bytes[63]), double(reinterpret_cast<uint64_t>(&q) % 32)};
  for (double value : values) *found++ = value;
  uint64_t* exact = reinterpret_cast<uint64_t*>(found);
  exact[0] = g, exact[1] = h;
}
"""


def test_arguments_of_every_kind(world):
    def body(comm):
        kernel = comm.compile(ARGUMENTS, "show")
        window, out = comm.window(40 + comm.rank), comm.window(8 * 21)
        point = np.dtype([("x", "i4"), ("y", "f4"), ("z", "f8")], align=True)
        bytes_ = np.array([42, 43], np.int8)
        good = {
            "a": -128, "b": 255, "c": -(1 << 15), "d": (1 << 16) - 1, "e": -(1 << 31), "f": (1 << 32) - 1,
            "g": -(1 << 63), "h": (1 << 64) - 1, "i": 1.5, "j": -2.25, "k": True,
            "l": np.array((7, 0.5, 1e300), point), "m": bytes_, "n": None, "o": window, "p": 300,
            "q": bytes(63) + b"\x05", "out": out,
        }  # fmt: skip

        def launch(**changed):
            kernel.launch(*(good | changed).values())
            comm.synchronize()
            return out.array("f8")[:19].tolist(), out.array("u8")[19:].tolist()

        numbers, exact = launch()
        assert numbers == [
            -128, 255, -32768, 65535, -(1 << 31), (1 << 32) - 1, 1.5, -2.25, 1, 7, 0.5, 1e300, 42, 0, 40 + comm.rank,
            comm.rank, 300, 5, 0,
        ]  # fmt: skip
        assert exact == [1 << 63, (1 << 64) - 1]
        numbers, exact = launch(
            a=np.int8(127), b=np.uint8(0), c=np.int64(32767), d=0, e=np.int32(2**31 - 1), f=np.uint8(1), g=2**63 - 1,
            h=0, i=np.float64(0.25), j=np.float32(8), k=np.bool_(False), l=np.array((1, 2, 3), point).tobytes(),
            m=bytes_.ctypes.data + 1, n=window, p=np.int16(-1), q=bytearray(64),
        )  # fmt: skip
        assert numbers == [
            127, 0, 32767, 0, 2**31 - 1, 1, 0.25, 8, 0, 1, 2, 3, 43, 1, 40 + comm.rank, comm.rank, -1, 0, 0,
        ]  # fmt: skip
        assert exact == [2**63 - 1, 0]

        closed = comm.window(8)
        closed.close()
        wrong = [
            ("a", 128, "argument 0 .*-128 to 127"), ("a", -129, "-128 to 127"), ("b", 256, "argument 1 .*0 to 255"),
            ("b", -1, "0 to 255"), ("c", 1 << 15, "-32768 to 32767"), ("d", 1 << 16, "0 to 65535"),
            ("e", 1 << 31, "argument 4 .*2147483647"), ("f", -1, "4294967295"), ("g", 1 << 63, "9223372036854775807"),
            ("h", 1 << 64, "18446744073709551615"), ("h", -1, "0 to 18446744073709551615"), ("e", 1.0, "1.0 .float"),
            ("e", "1", "'1' .str"), ("e", None, "None"), ("e", True, "whole number"), ("e", np.float32(1), "float"),
            ("i", "1.5", "number"), ("i", None, "None"), ("i", 1j, "complex"), ("j", [1.0], "list"),
            ("i", 1e39, "argument 8"),
            ("k", 2, "True or False"), ("k", "yes", "True or False"), ("k", None, "True or False"),
            ("l", b"1234", "got 4 bytes"), ("l", 5, "argument 11"), ("l", np.zeros(2, point), "got 32 bytes"),
            ("m", -1, "argument 12"), ("m", 1 << 64, "argument 12"), ("m", "abc", "argument 12"),
            ("m", 1.5, "argument 12"),
            ("o", None, "argument 14 .*window"), ("o", 7, "comm.window"), ("o", bytes_, "comm.window"),
            ("o", closed, "closed"), ("m", closed, "closed"), ("q", bytes(63), "got 63 bytes"),
            ("p", 1 << 15, "argument 15"),
        ]  # fmt: skip
        for name, value, message in wrong:
            with pytest.raises(gin.Error, match=f"(?s){message}") as caught:
                launch(**{name: value})
            if value is not closed:
                assert isinstance(caught.value, TypeError) and isinstance(caught.value, ValueError)
                assert "show" in str(caught.value)
        for count in (0, 17, 19):
            with pytest.raises(gin.ArgumentError, match=f"takes 18 arguments .*got {count}"):
                kernel.launch(*(list(good.values()) * 2)[:count])
        assert launch()[1] == [1 << 63, (1 << 64) - 1]  # all that has hurt nothing

        for shape in (0, -1, (1, 0), (1, 1, 1, 1), (), 1.5, "2", None, 1 << 31, (1, 2**16 + 10**6)):
            with pytest.raises(gin.ArgumentError, match="grid"):
                kernel.launch(*good.values(), grid=shape)
        for shape in (0, -1, (1, 0), 1025, (32, 33), (1, 1, 65), 1.5, None):
            with pytest.raises(gin.ArgumentError, match="block"):
                kernel.launch(*good.values(), block=shape)
        for bytes_wrong in (-1, 1 << 31, 1 << 24, 1.5, None, "1K"):
            with pytest.raises(gin.ArgumentError, match="shared"):
                kernel.launch(*good.values(), shared=bytes_wrong)
        with pytest.raises(gin.ArgumentError, match="stream"):
            kernel.launch(*good.values(), stream=1)
        kernel.launch(*good.values(), grid=np.int64(2), block=[4, np.int32(2)], shared=0)
        comm.synchronize()

    world.run(2, body)


TEMPLATE = r"""#include <gin/gin.cuh>
namespace mine {
template <class T, int n>
__global__ void fill(gin::Window out, T value) {
  for (int i = 0; i < n; ++i) static_cast<T*>(out.local())[i] = value;
}
}  // namespace mine
"""


def test_templates_by_name_and_files(world, tmp_path):
    path = tmp_path / "fill.cu"
    path.write_text(TEMPLATE)

    def body(comm):
        out = comm.window(32)
        comm.compile(TEMPLATE, "mine::fill<double, 2>").launch(out, 1.5)
        comm.synchronize()
        assert out.array("f8").tolist() == [1.5, 1.5, 0, 0]
        comm.compile(path, "mine::fill<unsigned short, 3>").launch(out, 9)
        comm.synchronize()
        assert out.array("u2")[:4].tolist() == [9, 9, 9, 0x3FF8]
        # The names of C's library are names like others.
        puts = '#include <gin/gin.cuh>\nextern "C" __global__ void puts(gin::Window w, int x) { *(int*)w.local() = x; }'
        comm.compile(puts, "puts").launch(out, 4)
        comm.synchronize()
        assert out.array("i4")[0] == 4
        with pytest.raises(FileNotFoundError, match="nowhere"):
            comm.compile(path.with_name("nowhere.cu"), "fill")
        path.write_bytes(b"// caf\xe9, in Latin-1")
        with pytest.raises(gin.ArgumentError, match=r"fill.cu: .*UTF-8.*0xe9 in position 6"):
            comm.compile(path, "fill")
        for source, name in ((0, "fill"), (None, "fill"), (b"", "fill"), (TEMPLATE, None), (TEMPLATE, 3)):
            with pytest.raises(gin.ArgumentError, match="compile"):
                comm.compile(source, name)

    world.run(1, body)


def test_what_does_not_compile_is_told_with_the_users_own_line(world):
    broken = '#include <gin/gin.cuh>\n\nextern "C" __global__ void kernel(gin::Comm comm) {\n  int x = missing;\n}\n'

    def body(comm):
        def message(source, name="kernel"):
            with pytest.raises(gin.CompileError) as caught:
                comm.compile(source, name)
            return str(caught.value)

        text = message(broken)
        assert "kernel 'kernel' does not compile" in text and "kernel.cu:4" in text and "missing" in text
        text = message(broken.replace("missing", "1"), "kernal")
        assert "no kernel named 'kernal'" in text
        assert "no __global__ function" in message("int x;")
        assert "kernel.cu:1" in message('#include "nowhere.h"\n__global__ void kernel() {}')
        comm.compile(broken.replace("missing", "1"), "kernel").launch()
        comm.synchronize()

    world.run(1, body)


# -- the cache: once is enough, it does not depend on the backend -----------------------------------------------------


SMALL = 'extern "C" __global__ void small(int* out, int value) { *out = value; }\n'
WRAPPER = """#!/bin/sh
case "$*" in *--version*) ;; *) echo "$*" >> {log}; sleep 0.3;; esac
exec g++ "$@"
"""


@pytest.fixture
def counted(tmp_path):
    """(settings for a compiler that counts its runs and a cache of its own, the count)."""
    log, wrapper = tmp_path / "runs", tmp_path / "counting-g++"
    wrapper.write_text(WRAPPER.format(log=log))
    wrapper.chmod(0o755)
    log.write_text("")
    settings = {"cxx": str(wrapper), "cache_dir": str(tmp_path / "cache"), "backend": "ibrc_proxy"}
    return settings, lambda: len(log.read_text().splitlines())


def run_small(settings, ranks=1, **more):
    def rank_main():
        with gin.init(**settings, **more) as comm:
            out = np.zeros(1, np.int32)
            comm.compile(SMALL, "small").launch(out, 5)
            comm.synchronize()
            return int(out[0])

    return gin.spawn(ranks, rank_main, timeout=60)


def test_ranks_that_compile_at_once_run_one_compiler_and_later_ones_none(counted, tmp_path):
    settings, runs = counted
    assert run_small(settings, ranks=3) == [5, 5, 5] and runs() == 1
    assert run_small(settings, ranks=2) == [5, 5] and runs() == 1
    assert run_small(settings, check=True) == [5] and runs() == 2  # other flags, another kernel
    assert run_small(settings, cxxflags=["-DX=1"]) == [5] and runs() == 3
    kept = list((tmp_path / "cache").rglob("*"))
    assert len([path for path in kept if path.suffix == ".so"]) == 3
    assert not [path for path in kept if path.name.startswith(".compile-")]  # nothing half done stays
    assert all(not path.stat().st_mode & 0o077 for path in kept if path.is_dir())


def test_a_kernel_compiled_ahead_is_not_compiled_again(counted):
    settings, runs = counted
    with gin.init(**settings) as comm:
        comm.compile_ahead([(SMALL, "small"), (SMALL, "absent"), ("not C++", "small")], workers=2)
        assert runs() == 3
        out = np.zeros(1, np.int32)
        comm.compile(SMALL, "small").launch(out, 5)
        comm.synchronize()
        for broken in ((SMALL, "absent"), ("not C++", "small")):
            with pytest.raises(gin.CompileError):  # told by its use
                comm.compile(*broken)
    assert out[0] == 5 and runs() == 5


def test_what_is_to_stop_compiles_no_more_ahead(counted):
    settings, runs = counted
    kernels = [(SMALL + f"// {i}", "small") for i in range(4)]
    with gin.init(**settings) as comm:
        comm.compile_ahead(kernels, 2, lambda: runs() > 0)
        assert 1 <= runs() <= 2
        comm.compile_ahead([])
        for wrong in ([SMALL], [(SMALL,)], [(SMALL, 3)], (SMALL, "small")):
            with pytest.raises(gin.ArgumentError, match="no pair"):
                comm.compile_ahead(wrong)
        comm.compile_ahead(kernels, 1, lambda: True)
        assert 1 <= runs() <= 2


def test_a_simulated_communicator_compiles_nothing_ahead(counted):
    settings, runs = counted
    with gin.init(**settings, platform="sim") as comm:
        comm.compile_ahead([(SMALL, "small")])
        assert runs() == 0
        comm.compile(SMALL, "small").launch(np.zeros(1, np.int32), 5)
        comm.synchronize()
    assert runs() == 1


@pytest.mark.parametrize("route", ["direct", "native"])
def test_ahead_a_kernel_is_compiled_for_its_communicators_flags(counted, route, monkeypatch):
    asked = []
    with gin.init(**counted[0], route=route) as comm:
        platform, compile_now = type(comm._platform), type(comm._platform).compile
        monkeypatch.setattr(
            platform, "compile_ahead", lambda self, kernels, flags, *_: asked.append((*kernels[0], flags))
        )
        monkeypatch.setattr(platform, "compile", lambda self, *args: asked.append(args[:3]) or compile_now(self, *args))
        comm.compile_ahead([(SMALL, "small")])
        comm.compile(SMALL, "small")
    assert len(asked) == 2 and asked[0] == asked[1]


FROM_A_FILE = """#include <gin/gin.cuh>
#include "shared.h"
#ifdef NEVER
#include "absent.h"
#endif
extern "C" __global__ void answer(int* out) { *out = ANSWER; }
"""


@pytest.mark.parametrize("platform", ["host", "sim"])
def test_headers_beside_a_kernels_file_are_found_and_compiled_again_when_they_change(counted, tmp_path, platform):
    settings, runs = counted
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "kernel.cu").write_text(FROM_A_FILE)
        (folder / "shared.h").write_text('#include "deeper.h"\n')
        (folder / "deeper.h").write_text('#pragma once\n#include "shared.h"\n#define ANSWER 1\n')

    def answer(name: str) -> int:
        out = np.zeros(1, np.int32)
        with gin.init(**settings, platform=platform) as comm:
            comm.compile(tmp_path / name / "kernel.cu", "answer").launch(out)
            comm.synchronize()
        return int(out[0])

    assert answer("one") == 1 and runs() == 1
    assert answer("one") == 1 and runs() == 1
    if platform == "sim":
        return  # one process, one look
    (tmp_path / "one" / "deeper.h").write_text("#define ANSWER 2\n")
    assert answer("one") == 2 and runs() == 2
    assert answer("two") == 1 and runs() == 3  # the same text, other headers
    (tmp_path / "one" / "absent.h").write_text("")
    assert answer("one") == 2 and runs() == 4  # which branch is compiled is not known


def test_headers_of_the_users_go_by_any_name(counted, tmp_path):
    for name, value in (("device.cuh", 3), ("ring.h", 4), ("wait.cuh", 5)):
        (tmp_path / name).write_text(f"#define {name.split('.')[0].upper()} {value}\n")
    source = '#include <gin/gin.cuh>\n#include "device.cuh"\n#include "ring.h"\n#include "wait.cuh"\n'
    source += 'extern "C" __global__ void k(int* out) { *out = DEVICE * 100 + RING * 10 + WAIT; }'
    (tmp_path / "k.cu").write_text(source)
    out = np.zeros(1, np.int32)
    with gin.init(**counted[0] | {"backend": "ibrc_proxy"}) as comm:
        comm.compile(tmp_path / "k.cu", "k").launch(out)
        comm.synchronize()
    assert out[0] == 345


@pytest.mark.parametrize("name", ["x" * 300, "folder", "loop.h", "a\0b"])
def test_headers_that_cannot_be_read_are_the_compilers_to_tell(counted, tmp_path, name):
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop.h").symlink_to("loop.h")
    (tmp_path / "k.cu").write_text(f'#include "{name}"\n' + SMALL)
    with gin.init(**counted[0]) as comm, pytest.raises(gin.CompileError):
        comm.compile(tmp_path / "k.cu", "small")


def test_headers_of_the_users_flags_are_compiled_again_when_they_change(counted, tmp_path, monkeypatch):
    settings, runs = counted
    (tmp_path / "shared.h").write_text("#define ANSWER 5\n")
    out = np.zeros(1, np.int32)
    for answer, made in ((5, 1), (5, 1), (6, 2)):
        (tmp_path / "shared.h").write_text(f"#define ANSWER {answer}\n")
        with gin.init(**settings, cxxflags=[f"-I{tmp_path}"]) as comm:
            comm.compile(FROM_A_FILE, "answer").launch(out)
            comm.synchronize()
        assert out[0] == answer and runs() == made
    monkeypatch.setenv("CPATH", str(tmp_path))
    for answer, made in ((6, 3), (7, 4)):
        (tmp_path / "shared.h").write_text(f"#define ANSWER {answer}\n")
        with gin.init(**settings) as comm:
            comm.compile(FROM_A_FILE, "answer").launch(out)
            comm.synchronize()
        assert out[0] == answer and runs() == made
    for answer, made in ((8, 5), (8, 5), (9, 6)):
        (tmp_path / "forced.h").write_text(f"#undef ANSWER\n#define ANSWER {answer}\n")
        with gin.init(**settings, cxxflags=["-include", str(tmp_path / "forced.h")]) as comm:
            comm.compile(FROM_A_FILE.replace('#include "shared.h"', ""), "answer").launch(out)
            comm.synchronize()
        assert out[0] == answer and runs() == made


@pytest.mark.parametrize("damage", ["truncated", "altered", "empty", "no checksum", "other checksum", "a folder"])
def test_a_damaged_cache_file_is_compiled_again(counted, tmp_path, damage):
    settings, runs = counted
    assert run_small(settings) == [5]
    (file,) = (tmp_path / "cache").rglob("*.so")
    data, check = file.read_bytes(), file.with_suffix(".sha256")
    if damage == "a folder":
        file.unlink()
        file.mkdir()
        with pytest.raises(gin.Error, match=r"(?s)cache|folder|directory"):
            run_small(settings)
        return
    match damage:
        case "truncated":
            file.write_bytes(data[: len(data) // 2])
        case "altered":
            file.write_bytes(data[:5000] + b"\xff" + data[5001:])
        case "empty":
            file.write_bytes(b"")
        case "no checksum":
            check.unlink()
        case "other checksum":
            check.write_bytes(b"\xff\xfe" * 40)
    assert run_small(settings) == [5] and runs() == 2
    assert run_small(settings) == [5] and runs() == 2


def test_a_cache_that_others_can_write_to_is_refused(counted, tmp_path):
    settings, runs = counted
    for mode in (0o777, 0o770, 0o702):
        folder = tmp_path / f"open-{mode:o}"
        (folder / "host").mkdir(parents=True)
        (folder / "host").chmod(mode)
        with pytest.raises(gin.ConfigError, match=r"written to by others.*GIN_CACHE_DIR"):
            run_small(settings | {"cache_dir": str(folder)})
    assert runs() == 0
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(gin.ConfigError, match=r"cache folder .*GIN_CACHE_DIR"):
        run_small(settings | {"cache_dir": str(file)})


def test_a_missing_or_broken_compiler_is_named(tmp_path):
    cache = str(tmp_path / "cache")
    with pytest.raises(gin.ConfigError, match=r"C\+\+ compiler.*'/nonexistent'.*GIN_CXX"):
        run_small({"cxx": "/nonexistent", "cache_dir": cache})
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(gin.ConfigError, match=r"compiler"):  # not executable
        run_small({"cxx": str(broken), "cache_dir": cache})
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(gin.ConfigError, match=r"broken.* does not run.*GIN_CXX"):
        run_small({"cxx": str(broken), "cache_dir": cache})

    def rank_main():
        gin.init().compile(SMALL, "small")

    with pytest.raises(gin.ConfigError, match=r"'/nonexistent'.*GIN_CXX"):
        gin.spawn(1, rank_main, env={"GIN_CXX": "/nonexistent", "GIN_CACHE_DIR": cache}, timeout=30)
    with pytest.raises(gin.ConfigError, match=r"not on PATH"):
        gin.spawn(1, rank_main, env={"PATH": str(tmp_path), "GIN_CACHE_DIR": cache, "CXX": None}, timeout=30)


def test_a_compiler_killed_in_the_middle_leaves_nothing_in_the_cache(counted, tmp_path):
    settings, _ = counted
    killer = tmp_path / "killed-g++"
    killer.write_text('#!/bin/sh\ncase "$*" in *--version*) exec g++ "$@";; esac\nkill -KILL $$\n')
    killer.chmod(0o755)
    with pytest.raises(gin.CompileError, match="small"):
        run_small(settings | {"cxx": str(killer)})
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.suffix == ".so" or p.name.startswith(".compile-")]
    assert run_small(settings) == [5]


def test_a_first_compilation_of_a_small_kernel_takes_seconds(tmp_path):
    def rank_main():
        with gin.init(backend="ibrc_proxy", cache_dir=str(tmp_path / "cache")) as comm:
            start = time.monotonic()
            comm.compile('#include <gin/gin.cuh>\nextern "C" __global__ void k(gin::Comm c) {}', "k")
            return time.monotonic() - start

    assert min(gin.spawn(1, rank_main, timeout=60)[0] for _ in range(1)) < 5 * (1 + os.getloadavg()[0] / 2)

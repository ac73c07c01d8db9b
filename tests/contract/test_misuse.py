"""What a program can get wrong at the edge of the API ends with a name for it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from worlds import World

import gin

ONE = World("ibrc_proxy", "native")  # for what is the same everywhere
HEAD = '#include <gin/gin.cuh>\nextern "C" __global__ void k(gin::Comm comm, gin::Window w) { gin::Context net(comm); '


def run(world, line, ranks=2, **settings):
    source = HEAD + line + " }"

    def body(comm):
        window = comm.window(64)
        comm.compile(source, "k").launch(window)
        comm.synchronize()

    world.run(ranks, body, **settings)


def test_a_compile_error_quotes_the_users_own_line(world):
    def body(comm):
        comm.compile(f"{HEAD}\n  int first;\n  net.wiat(gin::thread, 0, 1); }}", "k")

    with pytest.raises(gin.CompileError, match=r"kernel\.cu:4:7.*\n +4 \| +net\.wiat"):
        world.run(1, body)


def test_a_missing_kernel_is_told_with_those_there_are(world):
    def body(comm):
        comm.compile(HEAD + "}", "mien")

    with pytest.raises(gin.CompileError, match=r"no kernel named .mien.; it has k$"):
        world.run(1, body)


def test_a_forked_child_cannot_use_its_parents_communicator(world):
    def body(comm):
        child = os.fork()
        if child == 0:
            try:
                comm.barrier()
                os._exit(1)
            except gin.Error as error:
                comm.close()
                os._exit(0 if "forked" in str(error) else 2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        comm.barrier()

    world.run(2, body)


def test_a_source_tree_without_its_extension_says_so(tmp_path):
    (tmp_path / "gin").mkdir()
    package = os.path.dirname(gin.__file__)
    for name in ("__init__.py", "_version.py", "errors.py"):
        with open(os.path.join(package, name)) as file:
            (tmp_path / "gin" / name).write_text(file.read())
    done = subprocess.run(
        [sys.executable, "-c", "import gin; gin.init()"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    assert done.returncode and "is gin's source tree" in done.stderr


GROUPS = (
    "put({}, 0, w, 0, w, 8, 8)", "get({}, 0, w, 0, w, 8, 8)", "iput({}, 0, w, 0, 8, w, 0, 8, 8, 1)",
    "iget({}, 0, w, 0, 8, w, 0, 8, 8, 1)", "wait({}, 0u, 1ull)", "wait({}, 0u, 1ull, 5ull)", "wait({}, gin::Ticket{})",
    "wait_any({}, nullptr, nullptr, 0)", "wait_all({}, nullptr, nullptr, 0)",
    "wait_some({}, nullptr, nullptr, 0, nullptr, nullptr)",
    "wait_counter({}, 0, 1)", "flush({})", "fence({})", "quiet({})", "barrier({})",
)  # fmt: skip


def test_what_is_no_group_is_refused_with_a_sentence_and_its_line():
    """In one compilation, with a type for each call: the compiler refuses a type once."""
    types = " ".join(f"struct No{i} {{}};" for i in range(len(GROUPS)))
    calls = "\n".join(f"net.{group.replace('{}', f'No{i}{{}}', 1)};" for i, group in enumerate(GROUPS))

    def body(comm):
        comm.compile(f"{HEAD} {types}\n{calls} }}", "k")

    sentence = "gin: the first argument is not gin::thread, gin::warp or gin::block, the threads that call together"
    with pytest.raises(gin.CompileError) as caught:
        ONE.run(1, body)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"kernel 'k' does not compile: kernel.cu:3: {sentence}"
    assert sum(sentence in line for line in lines[1:]) == len(GROUPS)


@pytest.mark.parametrize(
    ("actions", "sentence"),
    [
        (
            "gin::counter_inc{0}",
            "gin: the remote action is none, signal_inc, signal_add, or ordered(one of these); a counter is",
        ),
        ("gin::none, gin::signal_inc{0}", "gin: the local action is none or counter_inc; signals are remote actions"),
    ],
)
def test_an_action_in_the_other_ones_place_is_refused_with_a_sentence(actions, sentence):
    def body(comm):
        comm.compile(f"{HEAD} net.put(gin::thread, 0, w, 0, w, 8, 8, {actions}); }}", "k")

    with pytest.raises(gin.CompileError, match=re.escape(sentence)):
        ONE.run(1, body)


def test_a_group_of_the_users_own_says_that_it_is_one():
    own = "struct Lone : gin::Thread {};\ntemplate <> struct gin::is_coop<Lone> { static constexpr bool value = true; };\n"
    source = HEAD.replace("extern", own + "extern", 1) + "net.put(Lone{}, 0, w, 0, w, 8, 8); net.flush(Lone{}); }"

    def body(comm):
        window = comm.window(64)
        comm.compile(source, "k").launch(window)
        comm.synchronize()

    ONE.run(1, body)


def test_a_rank_is_named_once_to_the_others():
    with pytest.raises(gin.RangeError) as caught:
        run(ONE, "if (net.rank() == 1) net.put_value(5, w, 0, 7); net.wait(gin::thread, 3, 1);", 2, check=True)
    (note,) = [note for note in caught.value.__notes__ if "rank 0 of 2 also failed" in note]
    assert re.search(r"RemoteError: rank 1 failed \(process \d+[^)]*\): RangeError: put_value to rank 5 \(", note), note


def test_pointers_to_peers_are_checked_as_operations_are(world):
    run(world, "net.peer_pointer(w, 64, 1 - net.rank());", 2, check=True)  # one past the end is a pointer
    with pytest.raises(gin.RangeError, match=r"peer_pointer to rank 0 .* asked for 65, the limit is 64"):
        run(world, "if (net.rank() == 1) net.peer_pointer(w, 65, 0); net.wait(gin::thread, 3, 1);", 2, check=True)


def test_a_range_that_the_wire_finds_says_how_to_learn_more():
    words = r"put to rank 1 .* is out of range: it names no peer, or bytes outside of a window; GIN_CHECK=1"
    with pytest.raises(gin.RangeError, match=words):
        run(
            ONE,
            "if (net.rank() == 0) net.put(gin::thread, 1, w, 1 << 20, w, 0, 8); net.wait(gin::thread, 3, 1);",
            check=False,
        )


def test_shared_memory_of_other_kernels_is_no_part_of_a_block():
    body = "__shared__ unsigned char bytes[120 * 1024]; bytes[threadIdx.x] = {}; *(int*)w.local() = bytes[0]; }}\n\n"
    kernels = "".join(HEAD.replace(" k(", f" {name}(") + body.format(value) for name, value in (("a", 5), ("b", 6)))

    def main(comm):
        window = comm.window(64)
        for name, value in (("a", 5), ("b", 6)):
            comm.compile(kernels.replace("#include", "\n#include"), name).launch(window)
            comm.synchronize()
            assert window.array("i4")[0] == value

    ONE.run(1, main)


@pytest.mark.parametrize("wait", ["flush", "quiet"])
@pytest.mark.parametrize("backend", ["nvshmem", "nccl_gin", "ibrc_proxy"])
def test_waiting_for_a_wire_that_completes_nothing_ends_at_the_deadline(backend, wait):
    world = World(backend, "native", {"hold": 1})
    with pytest.raises(gin.TimeoutError, match=r"passed its deadline of 1s"):
        run(world, f"net.put(gin::thread, 0, w, 0, w, 8, 8); net.{wait}(gin::block);", 1, timeout="1s")

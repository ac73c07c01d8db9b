"""What a program can get wrong at the edge of the API ends with a name for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from worlds import World

import gin

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


@pytest.mark.parametrize("wait", ["flush", "quiet"])
@pytest.mark.parametrize("backend", ["nvshmem", "nccl_gin", "ibrc_proxy"])
def test_waiting_for_a_wire_that_completes_nothing_ends_at_the_deadline(backend, wait):
    world = World(backend, "native", {"hold": 1})
    with pytest.raises(gin.TimeoutError, match=r"passed its deadline of 1s"):
        run(world, f"net.put(gin::thread, 0, w, 0, w, 8, 8); net.{wait}(gin::block);", 1, timeout="1s")

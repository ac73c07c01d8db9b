"""on_peer_failure=peer: what the loss of one peer ends, and that the others go on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from worlds import World

import gin
from gin import backends

pytestmark = pytest.mark.timeout(120)

ROUNDS = r"""
#include <gin/gin.cuh>
// Rounds in which every rank sends to all that it takes for alive, and waits for them. seen: for each peer the last round
// that came of it, then the code that ended the wait for it, then when a loss ended the last such wait.
extern "C" __global__ void rounds(gin::Comm comm, gin::Window box, gin::Window out, uint64_t upto) {
  gin::Context net(comm);
  uint64_t* seen = static_cast<uint64_t*>(out.local());
  const uint32_t size = net.size();
  for (uint64_t round = net.epoch(net.rank()) + 1; round <= upto; ++round) {
    for (uint32_t p = 0; p < size && threadIdx.x == 0; ++p) {
      if (net.alive(p)) net.put_value(p, box, 8 * net.rank(), round, gin::signal_inc{net.rank()});
    }
    for (uint32_t p = 0; p < size; ++p) {
      if (seen[size + p]) continue;
      const gin::Status status = net.wait(gin::block, p, round, gin::from{p});
      __syncthreads();
      if (threadIdx.x == 0) {
        if (status.ok()) {
          seen[p] = round;
        } else {
          seen[size + p] = uint64_t(status.code);
          seen[2 * size] = gin::platform::clock_ns();
        }
      }
      __syncthreads();
    }
  }
}
"""

PROGRAM = """
import json, os, signal, time
import gin

SOURCE = {source!r}

with gin.init(backend="ibrc_proxy", on_peer_failure="peer", timeout="60s") as comm:
    box, out = comm.window(8 * comm.size), comm.window(8 * (2 * comm.size + 1))
    kernel = comm.compile(SOURCE, "rounds")
    comm.barrier()
    kernel.launch(box, out, 20, block=64)
    comm.synchronize()
    if comm.rank == int(os.environ["GIN_TEST_VICTIM"]):
        print(json.dumps({{"died": time.monotonic_ns()}}), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    for upto in (40, 60):
        kernel.launch(box, out, upto, block=64)
        comm.synchronize()
    said = {{"rank": comm.rank, "seen": out.read("uint64").tolist()}}
    said["lost"] = {{peer: [str(error), error.record["rank"]] for peer, error in comm.lost.items()}}
    for name, call in (("barrier", comm.barrier), ("window", lambda: comm.window(8))):
        try:
            call()
        except gin.RemoteError as error:
            said[name] = [str(error), error.record["ranks"]]
    began = time.monotonic()
    comm.close()
    said["closing"] = time.monotonic() - began
    print(json.dumps(said), flush=True)
"""


def gin_run(folder: Path, size: int, program: str, *options: str, **variables: str) -> tuple[int, list[dict], str]:
    """(exit code, what the ranks printed, standard error) of a program."""
    script = folder / "program.py"
    script.write_text(textwrap.dedent(program))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "gin", "run", "-n", str(size), *options, str(script)],
        env={**os.environ, "GIN_TIMEOUT": "60s", **variables},
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.mark.parametrize(
    ("size", "victim", "route"),
    [(2, 1, "native"), (3, 1, "native"), (3, 0, "native"), (3, 1, "direct"), (3, 0, "direct"), (5, 2, "auto")],
)
def test_others_go_on_without_a_rank_that_is_killed(tmp_path, size, victim, route):
    code, said, err = gin_run(
        tmp_path, size, PROGRAM.format(source=ROUNDS), "--keep-going", GIN_ROUTE=route, GIN_TEST_VICTIM=str(victim)
    )
    assert code == 137 and f"rank {victim} of {size} was killed by SIGKILL" in err, err
    (died,) = [line["died"] for line in said if "died" in line]
    ranks = {line["rank"]: line for line in said if "rank" in line}
    assert sorted(ranks) == [rank for rank in range(size) if rank != victim], err
    for line in ranks.values():
        came, codes, ended = line["seen"][:size], line["seen"][size:-1], line["seen"][-1]
        assert came == [20 if peer == victim else 60 for peer in range(size)]
        assert codes == [2 * (peer == victim) for peer in range(size)]
        assert (ended - died) / 1e9 < 5, "by the notice, not by the deadline of 60 s"
        ((peer, (text, named)),) = line["lost"].items()
        assert (int(peer), named) == (victim, victim)
        assert re.search(rf"rank {line['rank']} lost rank {victim}: .*without saying goodbye", text)
        for name in ("barrier", "window"):
            assert line[name][1] == [victim] and f"rank {victim}" in line[name][0]
        assert line["closing"] < 5


def test_two_may_be_lost_and_a_rank_that_raises_is_lost(tmp_path):
    program = PROGRAM.replace("os.kill(os.getpid(), signal.SIGKILL)", "raise ValueError('of its own')").replace(
        'int(os.environ["GIN_TEST_VICTIM"])', "1 or comm.rank == 3"
    )
    code, said, _ = gin_run(tmp_path, 4, program.format(source=ROUNDS), GIN_ON_PEER_FAILURE="peer")
    assert code == 1
    ranks = {line["rank"]: line for line in said if "rank" in line}
    assert sorted(ranks) == [0, 2]
    for line in ranks.values():
        assert line["seen"][:4] == [60, 20, 60, 20] and line["seen"][4:8] == [0, 2, 0, 2]
        assert sorted(line["lost"]) == ["1", "3"] and all("of its own" in text for text, _ in line["lost"].values())
        assert line["barrier"][1] in ([1, 3], [3, 1])


EVERYTHING = r"""
#include <gin/gin.cuh>
extern "C" __global__ void everything(gin::Comm comm, gin::Window box, gin::Window out) {
  gin::Context net(comm);
  uint64_t* seen = static_cast<uint64_t*>(out.local());
  const bool leads = threadIdx.x == 0;
  if (leads) {
    net.put_value(1, box, 0, uint64_t(7));
    net.put(gin::thread, 1, box, 0, box, 8, 8, gin::signal_inc{0}, gin::counter_inc{3});
    net.put(gin::thread, 2, box, 0, box, 8, 8, gin::signal_inc{0}, gin::counter_inc{4});
    gin::Ticket ticket = net.flush_async(1);
    seen[0] = uint64_t(net.wait(gin::thread, ticket).code);
    seen[1] = net.alive(1), seen[2] = net.alive(2);
    seen[3] = net.atomic_fetch_add(1, box, 16, uint64_t(1));
    seen[4] = net.atomic_fetch_add(2, box, 16, uint64_t(1));
    ticket = net.flush_async(2);
    seen[5] = uint64_t(net.wait(gin::thread, ticket).code);
  }
  __syncthreads();
  gin::Status all[7];
  all[0] = net.wait_counter(gin::block, 3, 1);
  all[1] = net.wait_counter(gin::block, 4, 1);
  all[2] = net.flush(gin::warp);
  all[3] = net.fence(gin::block);
  all[4] = net.quiet(gin::block);
  all[5] = net.wait(gin::block, 5, 1, gin::from{1});
  all[6] = net.barrier(gin::block, gin::Team{0, 1, 2}, 1);
  // To the last thread of the block as to the first.
  if (leads || threadIdx.x == blockDim.x - 1) {
    for (int i = 0; i < 7; ++i) seen[6 + (leads ? 0 : 7) + i] = uint64_t(all[i].code);
  }
  const gin::Status live = net.barrier(gin::block, gin::Team{0, 2, 2}, 2);  // without the lost one
  if (leads) seen[20] = uint64_t(live.code), seen[21] = net.alive(net.rank());
}
"""
PARTNER = r"""
#include <gin/gin.cuh>
extern "C" __global__ void meet(gin::Comm comm) {
  gin::Context(comm).barrier(gin::block, gin::Team{0, 2, 2}, 2);
}
"""


def test_what_the_wire_loses_ends_and_nothing_else():
    def body(comm):
        box, out = comm.window(32), comm.window(8 * 32)
        box.write(bytes(8) + b"abcdefgh" + (100 + comm.rank).to_bytes(8, "little") + bytes(8))
        kernel = comm.compile(*(PARTNER, "meet") if comm.rank else (EVERYTHING, "everything"))
        comm.barrier()
        if comm.rank == 0:
            kernel.launch(box, out, block=64)
        elif comm.rank == 2:
            kernel.launch(block=64)
        comm.synchronize()
        try:
            comm.barrier()
        except gin.RemoteError as error:
            barrier = str(error), error.record
        lost = {peer: (str(error), error.record) for peer, error in comm.lost.items()}
        return out.read("uint64").tolist(), bytes(box.read()), lost, barrier

    def rank_main():
        from gin.conformance.wire import faulty

        mine = {"fail_peer": 1, "fail_detail": 12} if os.environ["GIN_RANK"] == "0" else {"hold": 0}
        with (
            faulty(mine),
            gin.init(backend="ibrc_proxy", route="native", timeout="20s", on_peer_failure="peer") as comm,
        ):
            return body(comm)

    first, second, third = gin.spawn(3, rank_main, timeout=80)
    seen, remote = first[0], 2
    assert seen[:6] == [remote, 0, 1, 0, 102, 0]
    assert seen[6:13] == seen[13:20] == [0, 0, 0, 0, 0, remote, remote]
    assert seen[20:22] == [0, 1]
    assert second[1][:8] == bytes(8) and third[1][:8] == b"abcdefgh"
    ((peer, (text, record)),) = first[2].items()
    assert peer == 1 and record["rank"] == 1 and record["operation"] == "put_value" and record["detail"] == 12
    assert "rank 0 lost rank 1: put_value to rank 1" in text and "detail 12" in text
    assert not second[2] and not third[2]  # it was the way from rank 0 that failed
    # A collective call needs everybody: those who have lost nobody are told by the one who has.
    assert first[3][1]["ranks"] == [1]
    for told in (second[3], third[3]):
        assert told[1]["rank"] == 0 and "rank 0 lost rank 1" in told[0]


FROM = r"""
#include <gin/gin.cuh>
extern "C" __global__ void wait_from(gin::Comm comm, gin::Window out, uint64_t timeout_ns) {
  gin::Context net(comm, 1);
  uint64_t* seen = static_cast<uint64_t*>(out.local());
  const uint32_t left = (net.rank() + net.size() - 1) % net.size(), right = (net.rank() + 1) % net.size();
  if (threadIdx.x == 0) seen[0] = net.alive(left), net.signal(right, gin::signal_inc{3});
  net.wait(gin::block, 3, 1, gin::from{left});
  net.wait(gin::block, 3, 2, gin::from{left}, timeout_ns);
  if (threadIdx.x == 0) seen[1] = net.alive(left);
}
"""


def test_a_wait_may_say_whom_it_is_for_on_every_backend(world: World):
    def body(comm):
        out = comm.window(16)
        kernel = comm.compile(FROM, "wait_from")
        comm.barrier()
        kernel.launch(out, int(0.4e9) if comm.rank == 1 else int(20e9), block=64)
        try:
            comm.synchronize()
        except gin.Error as error:
            return type(error).__name__, str(error), out.read("uint64").tolist(), comm.lost
        raise AssertionError("the wait for a second signal has ended well")

    name, text, seen, lost = world.run(3, body)[1]
    assert name == "TimeoutError" and "wait on signal 3 from rank 0" in text
    assert seen == [1, 0] and lost == {}  # the job has failed, and with it every peer


@pytest.mark.parametrize(("sender", "asked"), [("comm.size", 1), ("~0u", 2**32 - 1)])
def test_a_sender_that_is_no_peer_is_refused(sender, asked):
    def body(comm):
        source = FROM.replace("gin::from{left});", f"gin::from{{{sender}}});")
        comm.compile(source, "wait_from").launch(comm.window(16), 1000)
        with pytest.raises(gin.RangeError, match=f"asked for {asked}, the limit is 1"):
            comm.synchronize()

    World("ibrc_proxy", "native").run(1, body)


@pytest.mark.parametrize("backend", [name for name in backends.NAMES if name != "ibrc_proxy"])
@pytest.mark.parametrize("platform", ["host", "cuda", "sim"])
def test_backends_without_it_refuse_by_name(backend, platform):
    words = rf"backend {backend} cannot do 'peer_failure'; ibrc_proxy can"
    with pytest.raises(gin.UnsupportedError, match=words):
        gin.init(backend=backend, platform=platform, on_peer_failure="peer", rank=0, size=1)


def test_ranks_agree_on_it():
    def rank_main():
        how = "peer" if os.environ["GIN_RANK"] == "0" else "job"
        with pytest.raises(gin.ConfigError, match=r"on_peer_failure: rank 0: 'peer'.*rank 1: 'job'"):
            gin.init(backend="ibrc_proxy", on_peer_failure=how)

    gin.spawn(2, rank_main, timeout=60)


MEET = r"""
#include <gin/gin.cuh>
extern "C" __global__ void meet(gin::Comm comm, gin::Window out, bool drain) {
  gin::Context net(comm);
  gin::Status status;
  uint64_t met = 0;
  while (met < 60 && status.ok()) {
    status = net.barrier(gin::block, {}, 0, drain);
    met += status.ok();
  }
  if (threadIdx.x == 0) static_cast<uint64_t*>(out.local())[0] = met << 8 | uint64_t(status.code);
}
"""


@pytest.mark.parametrize(("size", "drain"), [(3, True), (10, True), (10, False)])  # by exchange, and by dissemination
@pytest.mark.parametrize("seed", range(3))
def test_a_barrier_ends_for_everybody_when_a_member_is_lost(tmp_path, size, drain, seed):
    program = f"""
        import json, gin
        with gin.init(backend="ibrc_proxy", on_peer_failure="peer", timeout="1s") as comm:
            out = comm.window(8)
            comm.compile({MEET!r}, "meet").launch(out, {drain}, block=32)
            comm.synchronize()
            met, code = divmod(int(out.read("uint64")[0]), 256)
            print(json.dumps([comm.rank, met, code, sorted(comm.lost)]))
    """
    code, said, err = gin_run(
        tmp_path, size, program, GIN_PLATFORM="sim", GIN_SEED=str(seed), GIN_FAULTS=f"dead=1@{20 * size}"
    )
    assert code == 1 and "the simulation has killed this rank" in err
    assert sorted(line[0] for line in said) == [rank for rank in range(size) if rank != 1], err
    met = [line[1] for line in said]
    assert max(met) < 60 and max(met) - min(met) <= 1, said  # who was a barrier ahead may have got out of it
    assert all(line[2:] == [2, [1]] for line in said), said

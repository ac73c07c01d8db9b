"""Puts, values, gets, atomics and signals of random sizes at random places, on all contexts, between all ranks, for a while.

soak.py SECONDS [SEED]: what every rank has received is compared in each round, on the device as soon as the signals have
come and on the host; the last line says how much it was and how many open files, threads and bytes the process grew by.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import numpy as np

import gin

SOURCE = r"""
#include <gin/gin.cuh>
enum { PUT, PUT_SIGNAL, VALUE, GET, ADD8, ADD4, SWAP, SIGNAL };
struct Op { uint64_t kind, peer, there, here, bytes, value; };

// A block is a context: its operations, by several threads; then one signal to everybody that covers them. What came is
// summed up before anything else is waited for.
extern "C" __global__ void soak(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window got, gin::Window words,
                                gin::Window table, gin::Window found, uint64_t room, uint64_t most, uint64_t last) {
  gin::Context net(comm, blockIdx.x);
  const uint32_t n = net.size(), me = net.rank(), c = blockIdx.x;
  const uint64_t* heads = static_cast<const uint64_t*>(table.local()) + c * (1 + n);  // operations, signals by sender
  const Op* ops = static_cast<const Op*>(table.local(gridDim.x * (1 + n) * 8)) + c * most;
  uint64_t* sums = static_cast<uint64_t*>(found.local());
  auto* strange = reinterpret_cast<unsigned long long*>(sums + gridDim.x * n);  // old values that were not the last ones
  for (uint64_t i = threadIdx.x; i < heads[0]; i += blockDim.x) {
    const Op op = ops[i];
    const uint32_t peer = uint32_t(op.peer);
    switch (op.kind) {
      case PUT: net.put(gin::thread, peer, dst, op.there, src, op.here, op.bytes); break;
      case PUT_SIGNAL: net.put(gin::thread, peer, dst, op.there, src, op.here, op.bytes, gin::signal_inc{me}); break;
      case VALUE: net.put_value(peer, dst, op.there, op.value, gin::signal_inc{me}); break;
      case GET: net.get(gin::thread, peer, src, op.there, got, op.here, op.bytes); break;
      case ADD8: net.atomic_fetch_add(peer, words, op.there, op.value); break;
      case ADD4: net.atomic_fetch_add(peer, words, op.there, uint32_t(op.value)); break;
      case SWAP:
        if (net.atomic_swap(peer, words, op.there, op.value) != op.here) atomicAdd(strange, 1ull);
        break;
      case SIGNAL: net.signal(peer, gin::signal_add{me, op.value}); break;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0 && c == 0 && me == 0)
    for (uint32_t peer = 0; peer < n; ++peer) net.put_value(peer, words, 0, last);
  if (threadIdx.x < n) net.signal(threadIdx.x, gin::ordered(gin::signal_inc{me}));
  for (uint32_t from = threadIdx.x; from < n; from += blockDim.x) {
    net.wait(gin::thread, from, net.epoch(from) + heads[1 + from]);
    const uint64_t* data = static_cast<const uint64_t*>(dst.local((c * n + from) * room));
    uint64_t sum = 0;
    for (uint64_t i = 0; i < room / 8; ++i) sum += data[i] * (2 * i + 1);
    sums[c * n + from] = sum;
  }
  net.flush(gin::block);
}
"""
PUT, PUT_SIGNAL, VALUE, GET, ADD8, ADD4, SWAP, SIGNAL = range(8)
ROOM = 48 << 10  # where one context of one rank puts on one other
SOURCE_BYTES = 96 << 10
MOST = 24  # operations of one context to one peer in a round
FLAG, SHARED, SHARED_WORDS = 0, 8, 16  # the words: whether it is the last round; those that everybody adds to
OWN = SHARED + 8 * SHARED_WORDS  # then one for each (rank, context), which alone swaps it
WARM_ROUNDS = 5
MOST_TOLD = 20

Op = tuple[int, int, int, int, int, int]


def base(rank: int) -> np.ndarray:
    return np.random.default_rng(rank).integers(0, 256, SOURCE_BYTES, np.uint8)


class Plan:
    """What one context of one rank does to one other in one round; every rank can say what any other does."""

    def __init__(self, seed: int, turn: int, sender: int, context: int, peer: int, size: int, contexts: int) -> None:
        chance = random.Random(f"{seed} {turn} {sender} {context} {peer}")
        region = (context * size + sender) * ROOM
        gets = (context * size + peer) * ROOM
        self.ops: list[Op] = []
        self.signals = 1
        at = chance.randrange(100)
        while len(self.ops) < MOST // 3:
            length = 0 if chance.random() < 0.05 else int(2 ** chance.uniform(0, 14.5))
            if at + length > ROOM:
                break
            kind = chance.choice((PUT, PUT_SIGNAL))
            self.ops.append((kind, peer, region + at, chance.randrange(SOURCE_BYTES - length), length, 0))
            self.signals += kind == PUT_SIGNAL
            at += length + chance.randrange(3000)
        for _ in range(chance.randrange(4)):
            if at + 8 > ROOM:
                break
            self.ops.append((VALUE, peer, region + at, 0, 8, chance.getrandbits(64)))
            self.signals += 1
            at += 8 + chance.randrange(64)
        at = 0
        for _ in range(chance.randrange(4)):
            length = int(2 ** chance.uniform(0, 13))
            if at + length > ROOM:
                break
            self.ops.append((GET, peer, chance.randrange(SOURCE_BYTES - length), gets + at, length, 0))
            at += length + chance.randrange(500)
        for _ in range(chance.randrange(3)):
            number = chance.randrange(SHARED_WORDS // 2)
            self.ops.append((ADD8, peer, SHARED + 8 * number, 0, 8, chance.getrandbits(64)))
        for _ in range(chance.randrange(3)):
            half = chance.randrange(SHARED_WORDS)
            self.ops.append((ADD4, peer, SHARED + 4 * SHARED_WORDS + 4 * half, 0, 4, chance.getrandbits(32)))
        for _ in range(chance.randrange(2)):
            more = chance.randrange(1, 5)
            self.ops.append((SIGNAL, peer, 0, 0, 0, more))
            self.signals += more
        own = OWN + 8 * (context * size + sender)
        before = random.Random(f"swap {seed} {turn - 1} {sender} {context} {peer}").getrandbits(64) if turn else 0
        after = random.Random(f"swap {seed} {turn} {sender} {context} {peer}").getrandbits(64)
        self.ops.append((SWAP, peer, own, before, 8, after))
        chance.shuffle(self.ops)


class Soak:
    def __init__(self, comm: gin.Comm, seed: int) -> None:
        self.comm, self.seed = comm, seed
        self.rank, self.size, self.contexts = comm.rank, comm.size, comm.config.contexts
        n, c = self.size, self.contexts
        self.dst, self.src, self.got = (comm.window(b) for b in (c * n * ROOM, SOURCE_BYTES, c * n * ROOM))
        self.words = comm.window(OWN + 8 * c * n)
        self.table = comm.window(8 * c * (1 + n) + c * n * MOST * 48)
        self.found = comm.window(8 * (c * n + 1))
        self.kernel = comm.compile(SOURCE, "soak")
        self.bases = [base(rank) for rank in range(n)]
        self.want = np.zeros((c * n, ROOM), np.uint8)
        self.shared = np.zeros(SHARED_WORDS // 2, np.uint64), np.zeros(SHARED_WORDS, np.uint32)
        self.weights = np.arange(ROOM // 8, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        self.wrong = self.told = self.turn = self.operations = self.bytes = 0

    def plan(self, turn: int, sender: int, context: int, peer: int) -> Plan:
        return Plan(self.seed, turn, sender, context, peer, self.size, self.contexts)

    def sources(self, turn: int) -> list[np.ndarray]:
        return [array ^ np.uint8(turn & 0xFF) for array in self.bases]

    def round(self, turn: int, last: bool) -> bool:
        """Whether there is another."""
        n, me = self.size, self.rank
        self.turn = turn
        sources = self.sources(turn)
        self.src.write(sources[me])
        self.got.write(np.zeros(self.got.nbytes, np.uint8))
        self.found.write(np.zeros(self.found.nbytes, np.uint8))
        got = np.zeros(self.got.nbytes, np.uint8)
        heads = np.zeros((self.contexts, 1 + n), np.uint64)
        ops = np.zeros((self.contexts, n * MOST, 6), np.uint64)
        for context in range(self.contexts):
            mine: list[Op] = []
            for peer in range(n):
                mine += self.plan(turn, me, context, peer).ops
                theirs = self.plan(turn, peer, context, me)
                heads[context, 1 + peer] = theirs.signals
                self.expect(theirs, context, peer, sources[peer])
            heads[context, 0] = len(mine)
            ops[context, : len(mine)] = mine
            self.operations += len(mine) + n
            for kind, peer, there, here, length, _ in mine:
                self.bytes += length
                if kind == GET:
                    got[here : here + length] = sources[peer][there : there + length]
        self.table.write(np.concatenate([heads.reshape(-1), ops.reshape(-1)]))
        self.comm.barrier()
        arguments = self.dst, self.src, self.got, self.words, self.table, self.found, ROOM, n * MOST, int(last)
        self.kernel.launch(*arguments, grid=self.contexts, block=8)
        self.comm.synchronize()
        self.comm.barrier()
        self.compare(got)
        self.comm.barrier()
        return not int(self.words.read(np.uint64, 1)[0])

    def expect(self, plan: Plan, context: int, sender: int, source: np.ndarray) -> None:
        into = self.want[context * self.size + sender]
        region = (context * self.size + sender) * ROOM
        for kind, _, there, here, length, value in plan.ops:
            if kind in (PUT, PUT_SIGNAL):
                into[there - region : there - region + length] = source[here : here + length]
            elif kind == VALUE:
                into[there - region : there - region + 8] = np.array([value], np.uint64).view(np.uint8)
            elif kind == ADD8:
                self.shared[0][(there - SHARED) // 8] += np.uint64(value)
            elif kind == ADD4:
                self.shared[1][(there - SHARED) // 4 - SHARED_WORDS] += np.uint32(value)

    def compare(self, got: np.ndarray) -> None:
        sums = self.found.read(np.uint64)
        wanted = (self.want.view(np.uint64) * self.weights).sum(axis=1, dtype=np.uint64)
        self.equal("sums on the device", sums[:-1], wanted)
        self.equal("old values of swaps", sums[-1:], np.zeros(1, np.uint64))
        self.equal("what was put", self.dst.read(np.uint8), self.want.reshape(-1))
        self.equal("what was got", self.got.read(np.uint8), got)
        self.equal("words of 8 bytes", self.words.read(np.uint64, SHARED_WORDS // 2, SHARED), self.shared[0])
        fours = self.words.read(np.uint32, SHARED_WORDS, SHARED + 4 * SHARED_WORDS)
        self.equal("words of 4 bytes", fours, self.shared[1])

    def equal(self, what: str, found: np.ndarray, wanted: np.ndarray) -> None:
        """Counts what is wrong, and tells of the first."""
        at = np.flatnonzero(found != wanted)
        self.wrong += len(at)
        if len(at) and self.told < MOST_TOLD:
            self.told += 1
            shown = f"at {at[0]} to {at[-1]}: {found[at[:4]]}, not {wanted[at[:4]]}"
            print(f"rank {self.rank}, round {self.turn}: {what}: {len(at)} wrong {shown}", flush=True)


def held() -> tuple[int, int, int]:
    """Open files, threads and KiB of memory of this process."""
    status = Path("/proc/self/status").read_text()
    number = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if len(line.split()) > 1}
    return len(os.listdir("/proc/self/fd")), int(number["Threads"]), int(number["VmRSS"])


def main() -> None:
    np.seterr(over="ignore")
    with gin.init(route="native") as comm:
        soak = Soak(comm, int(sys.argv[2]) if len(sys.argv) > 2 else 1)
        start, turn, before = time.monotonic(), 0, held()
        end = start + float(sys.argv[1])
        while soak.round(turn, last=turn > WARM_ROUNDS and time.monotonic() > end):
            turn += 1
            if turn == WARM_ROUNDS:
                before = held()
        seconds, after = time.monotonic() - start, held()
    files, threads, memory = (f"{a} to {b}" for a, b in zip(before, after, strict=True))
    print(
        f"rank {comm.rank} of {comm.size}: {turn + 1} rounds in {seconds:.0f} s, {soak.operations} operations, "
        f"{soak.bytes} bytes, {soak.wrong} wrong; files {files}, threads {threads}, resident KiB {memory}",
        flush=True,
    )
    sys.exit(soak.wrong != 0)


main()

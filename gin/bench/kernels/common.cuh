// What the benchmark's kernels share. Python puts this text in front of each kernel, after lines that define BENCH_SCOPE, 0, 1
// or 2 when a thread, a warp or a block calls each operation, BENCH_THREADS, the most threads of a block, and BENCH_SHARED,
// whether one time is taken over all blocks.
#include <gin/gin.cuh>

namespace bench {

#if BENCH_SCOPE == 0
using Coop = gin::Thread;
GIN_DEVICE uint32_t group() { return threadIdx.x; }
GIN_DEVICE uint32_t groups() { return blockDim.x; }
#elif BENCH_SCOPE == 1
using Coop = gin::Warp;
GIN_DEVICE uint32_t group() { return threadIdx.x / 32; }
GIN_DEVICE uint32_t groups() { return (blockDim.x + 31) / 32; }
#else
using Coop = gin::Block;
GIN_DEVICE uint32_t group() { return 0; }
GIN_DEVICE uint32_t groups() { return 1; }
#endif

// What one launch does. Python packs it: gin/bench/measure.py.
struct Plan {
  uint64_t bytes;       // of one message
  uint64_t stride;      // from one message's place to the next one's, at least bytes
  uint64_t serial;      // of the launch's first message; no two messages of a job share one
  uint64_t work;        // of the computation that a transfer may overlap with, steps
  uint32_t messages;    // of one iteration, per block
  uint32_t warmup;      // iterations before those that are kept
  uint32_t iterations;  // kept
  uint32_t contexts;    // that blocks share out among them
  uint32_t leader;      // the rank, 0 or 1, that begins and takes the times, where one rank does
  uint32_t verify;      // whether payloads are filled and checked
  uint32_t place[2];    // where in the windows the first message is, bytes: on even ranks and on odd ones
  uint32_t signal[2];   // the first of the signals that blocks share out, likewise

  GIN_DEVICE uint32_t rounds() const { return warmup + iterations; }

  // Not by index: the compiler would keep the plan in memory for it, and look there after each wait.
  GIN_DEVICE uint32_t place_of(uint32_t rank) const { return rank % 2 ? place[1] : place[0]; }
  GIN_DEVICE uint32_t signal_of(uint32_t rank) const { return rank % 2 ? signal[1] : signal[0]; }
};

// The block's own channel at one of the ends: contexts are shared out first, then signals of one context.
struct Channel {
  uint32_t context, data, ready, done;

  GIN_DEVICE explicit Channel(const Plan& plan, uint32_t rank = 0) {
    context = blockIdx.x % plan.contexts;
    data = plan.signal_of(rank) + 3 * (blockIdx.x / plan.contexts);
    ready = data + 1;
    done = data + 2;
  }
};

// Word 0 of `out` counts the elements that were wrong, word 1 the blocks that began an iteration; from word 8 on there is a
// start and an end in nanoseconds for each block, kept iteration and part of the iteration.
GIN_DEVICE void keep(const gin::Window& out, const Plan& plan, uint32_t round, uint64_t start, uint64_t end,
                     uint32_t part = 0, uint32_t parts = 1) {
  if (round < plan.warmup) return;
  uint64_t* sample = static_cast<uint64_t*>(out.local(64));
  sample += 2 * ((uint64_t(blockIdx.x) * plan.iterations + (round - plan.warmup)) * parts + part);
  sample[0] = start, sample[1] = end;
}

GIN_DEVICE uint64_t now() { return gin::platform::clock_ns(); }

// Blocks that share what is measured (BENCH_SHARED) begin each iteration together: apart, the time from the first one's start to
// the last one's end would hold other iterations too. By one thread of each; false once the job has failed.
GIN_DEVICE bool together(const gin::Comm& comm, const gin::Window& out, uint32_t round) {
  if (!BENCH_SHARED || gridDim.x == 1) return true;
  unsigned long long* begun = static_cast<unsigned long long*>(out.local(8));
  const unsigned long long all = (round + 1ull) * gridDim.x;
  atomicAdd(begun, 1ull);
  const uint64_t patience = 2 * comm.timeout_ns;  // so that what a block waits for elsewhere is told first
#if defined(__CUDA_ARCH__)
  // Waits sleep between looks, which would set the blocks apart.
  const uint64_t start = now();
  for (uint32_t looks = 1; gin::impl::load_relaxed(begun) < all; ++looks) {
    if (looks % 256 == 0 && (gin::impl::failed(comm) || (patience && now() - start > patience))) break;
  }
#endif
  const gin::impl::Subject subject{gin::Operation::barrier, 0, -1, 0};
  const auto came = [&]() -> uint64_t { return gin::impl::load_relaxed(begun) >= all ? 1 : 0; };
  return gin::impl::wait_until(comm, subject, 1, patience, came).ok();
}

// Message `serial` of `sender` holds bytes of its own, so that what an earlier one left behind counts as wrong.
struct Pattern {
  uint64_t base;

  GIN_DEVICE Pattern(uint32_t sender, uint64_t serial) {
    uint64_t x = serial * 0x9e3779b97f4a7c15ull + sender + 1;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    base = x ^ (x >> 31);
  }
  GIN_DEVICE uint64_t word(uint64_t k) const { return (base + k) * 0x9e3779b97f4a7c15ull; }
  GIN_DEVICE uint8_t byte(uint64_t i) const { return uint8_t(word(i / 8) >> (8 * (i % 8))); }
};

// The block writes one message. Places are aligned to 8 bytes.
GIN_DEVICE void fill(void* to, const Pattern& pattern, uint64_t bytes) {
  uint64_t* words = static_cast<uint64_t*>(to);
  for (uint64_t k = threadIdx.x; k < bytes / 8; k += blockDim.x) words[k] = pattern.word(k);
  if (threadIdx.x == 0) {
    for (uint64_t i = bytes & ~7ull; i < bytes; ++i) static_cast<uint8_t*>(to)[i] = pattern.byte(i);
  }
}

// The block counts the words of one message that are wrong; each thread returns its share. A last partial word is one.
GIN_DEVICE uint64_t wrong_words(const void* from, const Pattern& pattern, uint64_t bytes) {
  const uint64_t* words = static_cast<const uint64_t*>(from);
  uint64_t wrong = 0;
  for (uint64_t k = threadIdx.x; k < bytes / 8; k += blockDim.x) wrong += words[k] != pattern.word(k);
  if (threadIdx.x == 0) {
    bool bad = false;
    for (uint64_t i = bytes & ~7ull; i < bytes; ++i) bad |= static_cast<const uint8_t*>(from)[i] != pattern.byte(i);
    wrong += bad;
  }
  return wrong;
}

GIN_DEVICE void report_wrong(const gin::Window& out, uint64_t wrong) {
  if (wrong) atomicAdd(static_cast<unsigned long long*>(out.local()), static_cast<unsigned long long>(wrong));
}

}  // namespace bench

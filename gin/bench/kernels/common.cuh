// What the benchmark's kernels share. Python puts this text in front of each kernel, after a line that defines
// BENCH_SCOPE: 0, 1 or 2 when a thread, a warp or a block calls each operation.
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

// What one launch does.
struct Plan {
  uint64_t bytes;       // of one message
  uint64_t stride;      // from one message's place to the next one's, at least bytes
  uint64_t serial;      // of the launch's first message; no two messages of a job share one
  uint32_t messages;    // of one iteration, per block
  uint32_t warmup;      // iterations before those that are kept
  uint32_t iterations;  // kept
  bool verify;

  GIN_DEVICE uint32_t rounds() const { return warmup + iterations; }
};

// The block's own channel: contexts are shared out first, then signals of one context.
struct Channel {
  uint32_t context, data, ready, done;

  GIN_DEVICE explicit Channel(const gin::Comm& comm) {
    context = blockIdx.x % comm.contexts;
    data = 3 * (blockIdx.x / comm.contexts);
    ready = data + 1;
    done = data + 2;
  }
};

// Word 0 of `out` counts the elements that were wrong; from word 8 on there is a start and an end in nanoseconds for each
// block and kept iteration.
GIN_DEVICE void keep(const gin::Window& out, const Plan& plan, uint32_t round, uint64_t start, uint64_t end) {
  if (round < plan.warmup) return;
  uint64_t* sample = static_cast<uint64_t*>(out.local(64));
  sample += 2 * (uint64_t(blockIdx.x) * plan.iterations + (round - plan.warmup));
  sample[0] = start, sample[1] = end;
}

GIN_DEVICE uint64_t now() { return gin::platform::clock_ns(); }

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

// One way from rank 0 to rank 1: each iteration puts `messages` messages and ends when rank 1 has said that all of them
// arrived. Ranks above 1 have nothing to do. With signal_each every message carries a signal; otherwise one ordered
// signal follows the last.
template <bool signal_each>
GIN_DEVICE void stream(const gin::Comm& comm, const gin::Window& source, const gin::Window& target,
                       const gin::Window& out, const Plan& plan) {
  const Channel channel(comm);
  gin::Context net(comm, channel.context);
  if (net.rank() > 1) return;
  const bool sender = net.rank() == 0;
  const uint64_t first = uint64_t(blockIdx.x) * plan.messages * plan.stride;
  const uint64_t data_before = net.epoch(channel.data), ready_before = net.epoch(channel.ready),
                 done_before = net.epoch(channel.done);
  const uint64_t arrivals = signal_each ? plan.messages : 1;
  const uint64_t serial = plan.serial + uint64_t(blockIdx.x) * plan.rounds() * plan.messages;
  uint64_t wrong = 0;
  bool failed = false;
  __syncthreads();

  for (uint32_t round = 0; round < plan.rounds(); ++round) {
    if (sender && plan.verify) {
      for (uint32_t m = 0; m < plan.messages; ++m) {
        fill(source.local(first + m * plan.stride), Pattern(0, serial + uint64_t(round) * plan.messages + m),
             plan.bytes);
      }
      __syncthreads();
    }
    uint64_t start = 0;
    if (threadIdx.x == 0) {
      if (sender) {
        failed = !net.wait(gin::thread, channel.ready, ready_before + round + 1).ok();
      } else {
        net.signal(0, gin::signal_inc{channel.ready});
      }
      start = now();
    }
    if (__syncthreads_or(failed)) break;
    if (sender) {
      for (uint32_t m = group(); m < plan.messages; m += groups()) {
        const uint64_t offset = first + m * plan.stride;
        if constexpr (signal_each) {
          net.put(Coop{}, 1, target, offset, source, offset, plan.bytes, gin::signal_inc{channel.data});
        } else {
          net.put(Coop{}, 1, target, offset, source, offset, plan.bytes);
        }
      }
      if constexpr (!signal_each) {
        __syncthreads();
        if (threadIdx.x == 0) net.signal(1, gin::ordered(gin::signal_inc{channel.data}));
      }
    }
    if (threadIdx.x == 0) {
      if (sender) {
        failed = !net.wait(gin::thread, channel.done, done_before + round + 1).ok();
        keep(out, plan, round, start, now());
        failed = failed || !net.flush(gin::thread).ok();
      } else {
        failed = !net.wait(gin::thread, channel.data, data_before + (round + 1) * arrivals).ok();
        net.signal(0, gin::signal_inc{channel.done});
      }
    }
    if (__syncthreads_or(failed)) break;
    if (!sender && plan.verify) {
      for (uint32_t m = 0; m < plan.messages; ++m) {
        wrong += wrong_words(target.local(first + m * plan.stride),
                             Pattern(0, serial + uint64_t(round) * plan.messages + m), plan.bytes);
      }
      __syncthreads();
    }
  }
  report_wrong(out, wrong);
}

}  // namespace bench

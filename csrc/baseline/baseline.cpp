#include "baseline/baseline.h"

#include <atomic>
#include <memory>
#include <thread>

#include "baseline/processes.h"

namespace gin::baseline {
namespace {

struct alignas(128) Flag {
  std::atomic<uint64_t> value{0};
};

Clock::time_point after(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

uint64_t sum_of(const char* from, size_t bytes) {
  uint64_t sum = 0, word;
  for (size_t i = 0; i + sizeof(word) <= bytes; i += sizeof(word)) {
    std::memcpy(&word, from + i, sizeof(word));
    sum += word;
  }
  return sum;
}

}  // namespace

std::vector<double> flag_pingpong(size_t iterations, size_t warmup, double deadline_s) {
  SharedMemory memory(2 * sizeof(Flag));
  Flag* ping = new (memory.at(0)) Flag;
  Flag* pong = new (memory.at(sizeof(Flag))) Flag;
  const size_t rounds = warmup + iterations;
  const auto deadline = after(deadline_s);

  Child child([&] {
    for (size_t i = 1; i <= rounds; ++i) {
      if (!spin([&] { return ping->value.load(std::memory_order_acquire) == i; }, deadline)) return;
      pong->value.store(i, std::memory_order_release);
    }
  });
  std::vector<double> samples;
  samples.reserve(iterations);
  for (size_t i = 1; i <= rounds; ++i) {
    const auto start = Clock::now();
    ping->value.store(i, std::memory_order_release);
    if (!spin([&] { return pong->value.load(std::memory_order_acquire) == i; }, deadline)) {
      timed_out("flag ping-pong", deadline_s);
    }
    const auto end = Clock::now();
    if (i > warmup) samples.push_back(nanoseconds(end - start) / 2);
  }
  return samples;
}

std::vector<double> memcpy_between(size_t bytes, size_t slots, bool touched, size_t iterations, size_t warmup,
                                   double deadline_s) {
  if (slots == 0) throw Error(Error::Kind::config, "baseline memcpy: slots must be at least 1");
  const size_t rounds = warmup + iterations, all = bytes * slots;
  SharedMemory source(all + 1), target(all + 1), flags(2 * sizeof(Flag));
  Flag* ready = new (flags.at(0)) Flag;
  Flag* copied = new (flags.at(sizeof(Flag))) Flag;
  const auto deadline = after(deadline_s);
  std::memset(source.at(0), 0x5a, all);

  Child child([&] {
    volatile uint64_t sum = 0;
    std::memset(target.at(0), 0, all);
    for (size_t i = 1; i <= rounds; ++i) {
      ready->value.store(i, std::memory_order_release);
      if (!spin([&] { return copied->value.load(std::memory_order_acquire) == i; }, deadline)) return;
      if (touched) sum = sum + sum_of(target.at(0), all);
    }
  });

  std::vector<double> samples;
  samples.reserve(iterations);
  for (size_t i = 1; i <= rounds; ++i) {
    if (touched) std::memset(source.at(0), int(i), all);
    if (!spin([&] { return ready->value.load(std::memory_order_acquire) == i; }, deadline)) {
      timed_out("memcpy", deadline_s);
    }
    const auto start = Clock::now();
    for (size_t slot = 0; slot < slots; ++slot) std::memcpy(target.at(slot * bytes), source.at(slot * bytes), bytes);
    copied->value.store(i, std::memory_order_seq_cst);
    const auto end = Clock::now();
    if (i > warmup) samples.push_back(nanoseconds(end - start) / double(slots));
  }
  return samples;
}

double ring_rate(size_t count, size_t depth, double deadline_s) {
  if (depth == 0 || (depth & (depth - 1)) != 0) {
    throw Error(Error::Kind::config, "baseline ring: depth " + std::to_string(depth) + " is not a power of two");
  }
  struct alignas(32) Descriptor {
    uint64_t word[4];
  };
  auto ring = std::make_unique<Descriptor[]>(depth);
  Flag head, tail;  // next to write, next to read
  std::atomic<bool> failed{false};
  const auto deadline = after(deadline_s);
  uint64_t sum = 0;

  std::thread consumer([&] {
    uint64_t read = 0, known = 0;
    while (read < count) {
      if (read == known &&
          !spin([&] { return (known = head.value.load(std::memory_order_acquire)) != read || failed.load(); },
                deadline)) {
        failed = true;
      }
      if (failed) return;
      for (; read < known; ++read) {
        const Descriptor& d = ring[read & (depth - 1)];
        sum += d.word[0] ^ d.word[1] ^ d.word[2] ^ d.word[3];
      }
      tail.value.store(read, std::memory_order_release);
    }
  });
  const auto start = Clock::now();
  uint64_t known = 0;
  for (uint64_t i = 0; i < count && !failed; ++i) {
    if (i - known == depth &&
        !spin([&] { return i - (known = tail.value.load(std::memory_order_acquire)) < depth || failed.load(); },
              deadline)) {
      failed = true;
    }
    ring[i & (depth - 1)] = {{i, i + 1, i + 2, i + 4}};
    head.value.store(i + 1, std::memory_order_release);
  }
  consumer.join();
  const auto end = Clock::now();
  uint64_t expected = 0;
  for (uint64_t i = 0; i < count; ++i) expected += i ^ (i + 1) ^ (i + 2) ^ (i + 4);
  if (failed) timed_out("ring", deadline_s);
  if (sum != expected) throw Error(Error::Kind::internal, "baseline ring: descriptors arrived changed");
  return double(count) / (nanoseconds(end - start) * 1e-9);
}

}  // namespace gin::baseline

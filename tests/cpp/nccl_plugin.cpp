// The RMA plugin between threads, in host memory: what arrives, in which order, and what is refused.
#include <fcntl.h>
#include <sys/mman.h>

#include <cstring>
#include <numeric>

#include "error.h"
#include "nccl_plugin/region.h"
#include "plugin_ranks.h"

using namespace plugin;

namespace {

uint8_t pattern(size_t index, int seed) { return uint8_t(index * 7 + index / 251 + size_t(seed) * 31 + 1); }

struct Buffer {
  explicit Buffer(size_t size) : bytes(size) {}
  void fill(int seed) {
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = pattern(i, seed);
  }
  size_t wrong(size_t at, size_t count, size_t from, int seed) const {
    size_t bad = 0;
    for (size_t i = 0; i < count; ++i) bad += bytes[at + i] != pattern(from + i, seed);
    return bad;
  }
  std::vector<uint8_t> bytes;
};

constexpr size_t sizes[] = {
    0, 1, 3, 8, 47, 48, 49, 257, 4096, (512 << 10) - 1, 512 << 10, (512 << 10) + 1, (5 << 20) + 7};
constexpr size_t largest = (5 << 20) + 7;

size_t open_descriptors() {
  size_t count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += fcntl(fd, F_GETFD) >= 0;
  return count;
}

}  // namespace

CASE(the_tables_are_found) {
  CHECK_EQ(std::string(table14().name), "gin");
  CHECK_EQ(std::string(table<abi::Table13>("ncclRmaPlugin_v13").name), "gin");
  int count = 0;
  CHECK_EQ(table14().devices(&count), 0);
  CHECK_EQ(count, 1);
  abi::Properties properties{};
  CHECK_EQ(table14().properties(0, &properties), 0);
  CHECK_EQ(properties.device_type, 2);
  CHECK_EQ(properties.pointer_support, 3);
  CHECK_EQ(sizeof(abi::Properties), 128u);
}

// Everybody puts every size to everybody, its own rank included; the signal that comes with it says that it is there.
static void put_everything(int size) {
  with_ranks(size, [](Rank& r) {
    const size_t slot = largest + 64;
    Buffer source(slot), target(slot * size_t(r.size()));
    std::vector<uint64_t> signals(size_t(r.size()));
    source.fill(r.rank());
    void* from = r.add(source.bytes.data(), source.bytes.size());
    void* to = r.add(target.bytes.data(), target.bytes.size());
    void* signal = r.add(signals.data(), signals.size() * 8);
    CHECK(from && to && signal);
    uint64_t expected = 0;
    for (size_t bytes : sizes) {
      std::memset(target.bytes.data(), 0, target.bytes.size());
      CHECK(r.barrier());
      std::vector<void*> requests(size_t(r.size()));
      for (int peer = 0; peer < r.size(); ++peer)
        CHECK_EQ(r.put_signal(from, 3, bytes, to, slot * size_t(r.rank()) + 5, peer, signal, size_t(r.rank()) * 8, 3,
                              &requests[size_t(peer)]),
                 0);
      for (void* request : requests) CHECK_EQ(r.wait(request), 0);
      expected += 3;
      for (int peer = 0; peer < r.size(); ++peer) {
        CHECK(r.wait_word(signals[size_t(peer)], expected));
        CHECK_EQ(target.wrong(slot * size_t(peer) + 5, bytes, 3, peer), 0u);
        CHECK_EQ(target.bytes[slot * size_t(peer) + 5 + bytes], 0);
      }
      CHECK(r.barrier());
    }
  });
}

CASE(puts_of_two) { put_everything(2); }
CASE(puts_of_three) { put_everything(3); }
CASE(puts_of_five) { put_everything(5); }
CASE(puts_of_one) { put_everything(1); }

CASE(gets) {
  with_ranks(3, [](Rank& r) {
    Buffer source(largest + 16), target(largest + 16);
    source.fill(r.rank());
    void* from = r.add(source.bytes.data(), source.bytes.size());
    void* to = r.add(target.bytes.data(), target.bytes.size());
    CHECK(r.barrier());
    for (size_t bytes : sizes)
      for (int peer = 0; peer < r.size(); ++peer) {
        std::memset(target.bytes.data(), 0, target.bytes.size());
        void* request = nullptr;
        CHECK_EQ(r.get(from, 7, bytes, to, 2, peer, &request), 0);
        CHECK_EQ(r.wait(request), 0);
        CHECK_EQ(target.wrong(2, bytes, 7, peer), 0u);
        CHECK_EQ(target.bytes[2 + bytes], 0);
        void* flush = &request;
        CHECK_EQ(table14().flush(r.context(), 0, to, uint32_t(peer), &flush), 0);
        CHECK(flush == nullptr);
      }
    CHECK(r.barrier());
  });
}

// Puts of every size, then one strong signal that covers them all.
CASE(a_strong_signal_covers_earlier_puts) {
  with_ranks(2, [](Rank& r) {
    constexpr int rounds = 20;
    constexpr size_t piece = 100000;
    Buffer source(piece * 13), target(piece * 13);
    uint64_t word = 0;
    void* from = r.add(source.bytes.data(), source.bytes.size());
    void* to = r.add(target.bytes.data(), target.bytes.size());
    void* signal = r.add(&word, 8);
    const int peer = 1 - r.rank();
    for (int round = 0; round < rounds; ++round) {
      source.fill(round * 2 + r.rank());
      CHECK(r.barrier());
      std::vector<void*> requests(14);
      for (size_t i = 0; i < 13; ++i)
        CHECK_EQ(r.put(from, i * piece, i % 2 ? 40 : piece, to, i * piece, peer, &requests[i]), 0);
      CHECK_EQ(r.put_signal(nullptr, 0, 0, nullptr, 0, peer, signal, 0, 1, &requests[13]), 0);
      CHECK(r.wait_word(word, uint64_t(round) + 1));
      for (size_t i = 0; i < 13; ++i)
        CHECK_EQ(target.wrong(i * piece, i % 2 ? 40 : piece, i * piece, round * 2 + peer), 0u);
      for (void* request : requests) CHECK_EQ(r.wait(request), 0);
      CHECK(r.barrier());
    }
  });
}

CASE(no_addition_is_lost) {
  constexpr int each = 3000, contexts = 3;
  with_ranks(
      4,
      [](Rank& r) {
        uint64_t words[2] = {};
        void* signal = r.add(words, sizeof(words));
        std::vector<void*> requests;
        for (int i = 0; i < each; ++i) {
          void* request = nullptr;
          CHECK_EQ(r.put_signal(nullptr, 0, 0, nullptr, 0, i % r.size(), signal, 8, 5, &request, i % 2, i % contexts),
                   0);
          requests.push_back(request);
        }
        for (void* request : requests) CHECK_EQ(r.wait(request), 0);
        CHECK(r.wait_word(words[1], 5 * each));
        CHECK(r.barrier());
        CHECK_EQ(words[1], uint64_t(5 * each));
        CHECK_EQ(words[0], 0u);
      },
      contexts);
}

// More than the ring and the chunks hold, while the peer does not look.
CASE(more_than_fits) {
  with_ranks(2, [](Rank& r) {
    constexpr size_t count = 5000, bytes = 64;
    Buffer source(count * bytes), target(count * bytes);
    uint64_t word = 0;
    source.fill(5);
    void* from = r.add(source.bytes.data(), source.bytes.size());
    void* to = r.add(target.bytes.data(), target.bytes.size());
    void* signal = r.add(&word, 8);
    if (r.rank() == 0) {
      std::vector<void*> requests(count);
      for (size_t i = 0; i < count; ++i)
        CHECK_EQ(r.put_signal(from, i * bytes, i % 3 ? bytes : 8, to, i * bytes, 1, signal, 0, 1, &requests[i]), 0);
      for (void* request : requests) CHECK_EQ(r.wait(request), 0);
    } else {
      usleep(50000);
      CHECK(r.wait_word(word, count));
      for (size_t i = 0; i < count; ++i) CHECK_EQ(target.wrong(i * bytes, i % 3 ? bytes : 8, i * bytes, 5), 0u);
    }
    CHECK(r.barrier());
  });
}

CASE(uneven_windows_and_ranges) {
  with_ranks(3, [](Rank& r) {
    Buffer mine(r.rank() == 1 ? 0 : 1000 * size_t(r.rank() + 1));
    uint64_t words[4] = {};
    void* window = r.add(mine.bytes.data(), mine.bytes.size());
    void* signal = r.add(words, r.rank() == 0 ? 32 : 8);
    CHECK(window && signal);
    CHECK(r.barrier());
    void* request = nullptr;
    const auto bad = int(abi::invalid_argument);
    if (r.rank() == 2) {
      CHECK_EQ(r.put(window, 0, 1000, window, 0, 0, &request), 0);
      CHECK_EQ(r.wait(request), 0);
      CHECK_EQ(r.put(window, 0, 1000, window, 1, 0, &request), bad);
      CHECK_EQ(r.put(window, 0, 1, window, 0, 1, &request), bad);
      CHECK_EQ(r.put(window, 2900, 200, window, 0, 0, &request), bad);
      CHECK_EQ(r.put(window, 0, 8, window, ~0ull - 3, 0, &request), bad);
      CHECK_EQ(r.put(window, 0, ~0ull, window, 8, 0, &request), bad);
      CHECK_EQ(r.get(window, 900, 101, window, 0, 0, &request), bad);
      CHECK_EQ(r.put(window, 0, 8, window, 0, 3, &request), bad);
      CHECK_EQ(r.put(window, 0, 8, window, 0, 0, &request, 1), bad);
      CHECK_EQ(r.put(nullptr, 0, 8, window, 0, 0, &request), bad);
      CHECK_EQ(r.put_signal(nullptr, 0, 0, nullptr, 0, 1, signal, 8, 1, &request), bad);
      CHECK_EQ(r.put_signal(nullptr, 0, 0, nullptr, 0, 0, signal, 24, 9, &request), 0);
      CHECK_EQ(r.wait(request), 0);
    }
    if (r.rank() == 0) CHECK(r.wait_word(words[3], 9));
    CHECK(r.barrier());
  });
}

CASE(offsets_past_four_gibibytes) {
  with_ranks(2, [](Rank& r) {
    constexpr size_t size = (5ull << 30) + 4096, at = (4ull << 30) + 12345, bytes = 1 << 20;
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(memory != MAP_FAILED);
    auto* window = static_cast<uint8_t*>(memory);
    void* region = r.add(window, size);
    uint64_t word = 0;
    void* signal = r.add(&word, 8);
    for (size_t i = 0; i < bytes; ++i) window[at + i] = pattern(i, r.rank());
    CHECK(r.barrier());
    void* request = nullptr;
    CHECK_EQ(r.put_signal(region, at, bytes, region, at + bytes, 1 - r.rank(), signal, 0, 1, &request), 0);
    CHECK_EQ(r.wait(request), 0);
    CHECK(r.wait_word(word, 1));
    size_t wrong = 0;
    for (size_t i = 0; i < bytes; ++i) wrong += window[at + bytes + i] != pattern(i, 1 - r.rank());
    CHECK_EQ(wrong, 0u);
    CHECK(r.barrier());
    munmap(memory, size);
  });
}

CASE(version_13) {
  const auto& old = table<abi::Table13>("ncclRmaPlugin_v13");
  with_ranks(2, [&](Rank& r) {
    uint64_t words[2] = {}, value = 77 + uint64_t(r.rank());
    void *window = nullptr, *device = nullptr, *source = nullptr, *context = nullptr;
    CHECK_EQ(old.reg(r.comm(), words, sizeof(words), abi::pointer_host, 0, &window, &device), 0);
    CHECK(window == device);
    CHECK_EQ(old.reg(r.comm(), &value, 8, abi::pointer_host, 0, &source, &device), 0);
    abi::Config13 config{8, 8, 2, 64, -1};
    CHECK_EQ(old.create_context(r.comm(), &config, &context, &device), 0);
    CHECK(device == nullptr);
    void* request = nullptr;
    CHECK_EQ(old.put_signal(context, 1, 0, source, 8, 0, window, uint32_t(1 - r.rank()), 8, window, 0,
                            abi::signal_increment, &request),
             0);
    const Deadline deadline(10);
    while (__atomic_load_n(&words[1], __ATOMIC_ACQUIRE) < 1 && !deadline.passed()) old.progress(context);
    CHECK_EQ(words[0], 78u - uint64_t(r.rank()));
    CHECK_EQ(words[1], 1u);
    int done = 0;
    CHECK_EQ(old.test(r.comm(), request, &done), 0);
    CHECK_EQ(done, 1);
    CHECK(r.barrier());
    CHECK_EQ(old.destroy_context(context), 0);
    CHECK_EQ(old.dereg(r.comm(), window), 0);
  });
}

CASE(memory_of_a_gpu_is_refused_without_one) {
  log().clear();
  with_ranks(2, [](Rank& r) {
    uint64_t word = 0;
    CHECK(!r.add(&word, 8, r.rank() == 0 ? abi::pointer_cuda : abi::pointer_host));
    CHECK_EQ(r.result(), int(r.rank() == 0 ? abi::invalid_usage : abi::remote_error));
    CHECK(r.barrier());
    void* again = r.add(&word, 8);  // the next step is in step
    CHECK(again != nullptr);
    CHECK(r.barrier());
  });
  CHECK_CONTAINS(logged(), "rank 0: memory of a GPU");
}

// One rank's part could not be registered: what is registered next has one number on all ranks nevertheless.
CASE(a_failed_registration_shifts_no_region) {
  for (int failing : {0, 1})
    with_ranks(2, [=](Rank& r) {
      std::vector<uint64_t> windows[3] = {std::vector<uint64_t>(8), std::vector<uint64_t>(8), std::vector<uint64_t>(8)};
      CHECK(!r.add(windows[0].data(), 64, r.rank() == failing ? abi::pointer_cuda : abi::pointer_host));
      CHECK(r.barrier());
      void* regions[3];
      for (int i = 0; i < 3; ++i) CHECK((regions[i] = r.add(windows[i].data(), 64)) != nullptr);
      const int peer = 1 - r.rank();
      for (int i = 0; i < 3; ++i) {
        void* request = nullptr;
        CHECK_EQ(r.put_signal(nullptr, 0, 0, nullptr, 0, peer, regions[i], 8, 10 + uint64_t(i), &request), 0);
        CHECK_EQ(r.wait(request), 0);
      }
      for (uint64_t i = 0; i < 3; ++i) {
        CHECK(r.wait_word(windows[i][1], 10 + i, 5));
        CHECK_EQ(windows[i][1], 10 + i);
      }
      CHECK(r.barrier());
    });
}

CASE(ranks_that_number_a_region_differently_are_named) {
  std::string note;
  Letter letter{"4 64 0 - 0", {}};
  CHECK_EQ(understand(letter, 1, 4, nullptr, note).bytes, 64u);
  letter.text = "3 64 0 - 0";
  CHECK_THROWS(gin::Error, "region 4 is number 3 at rank 1", understand(letter, 1, 4, nullptr, note));
}

CASE(a_region_that_is_gone_fails_the_sender) {
  with_ranks(2, [](Rank& r) {
    std::vector<uint64_t> words(1000);
    void* window = r.add(words.data(), words.size() * 8);
    CHECK(r.barrier());
    if (r.rank() == 1) CHECK_EQ(table14().dereg(r.comm(), window), 0);
    CHECK(r.barrier());
    void* request = nullptr;
    if (r.rank() == 0) CHECK_EQ(r.put_signal(window, 0, 8, window, 0, 1, window, 8, 1, &request), 0);
    const Deadline deadline(10);
    while (!r.failed() && !deadline.passed()) r.progress();
    CHECK(r.failed());
    if (r.rank() == 0) CHECK_EQ(r.put(window, 0, 8, window, 0, 1, &request), int(abi::remote_error));
    r.barrier();
    table14().destroy_context(r.context());
    abi::Config14 config{1, -1};
    CHECK_EQ(table14().create_context(r.comm(), &config, r.context_slot()), 0);  // others are not concerned
  });
}

CASE(nothing_stays_open) {
  const size_t before = open_descriptors();
  for (int i = 0; i < 5; ++i)
    with_ranks(3, [](Rank& r) {
      uint64_t word = 0;
      CHECK(r.add(&word, 8));
    });
  CHECK_EQ(open_descriptors(), before);
}

CHECK_MAIN

// The RMA plugin's ways between GPUs, on a driver that is not there (fake/cuda.cpp): memory that is mapped by others and
// memory that is not, signal words that only grow and those that are reset, all kinds mixed.
#include <climits>
#include <cstring>
#include <deque>

#include "plugin_ranks.h"

using namespace plugin;

namespace {

template <class F>
F fake(const char* name) {
  static void* driver = dlopen(GIN_FAKE_CUDA, RTLD_NOW | RTLD_GLOBAL);  // the plugin finds it by its name
  return reinterpret_cast<F>(dlsym(driver, name));
}

const auto allocate = fake<void* (*)(uint64_t, int)>("fake_allocate");
const auto release = fake<void (*)(void*)>("fake_free");
const auto live = fake<int (*)()>("fake_live");
const auto enter = fake<int (*)(void*)>("cuCtxSetCurrent");
const auto run_kernels = fake<void (*)(int)>("fake_run");
const auto refuse_copy = fake<void (*)(int)>("fake_refuse_copy");
const auto copies = fake<int (*)()>("fake_copies");
const auto streams = fake<int (*)()>("fake_streams");

enum class Memory { mapped, own, host };  // of a GPU, exported or not
constexpr Memory kinds[] = {Memory::mapped, Memory::own, Memory::host};

// Memory of one kind, registered.
class Window {
 public:
  Window(Rank& rank, Memory kind, size_t bytes, uint64_t flags = 0) : kind_(kind), bytes_(bytes) {
    const size_t skip = 256;  // the window is not the whole allocation
    whole_ = kind == Memory::host ? ::operator new(bytes + skip) : allocate(bytes + skip, kind == Memory::mapped);
    data_ = static_cast<uint8_t*>(whole_) + skip;
    std::memset(data_, 0, bytes);
    region = rank.add(data_, bytes, kind == Memory::host ? abi::pointer_host : abi::pointer_cuda, flags);
    CHECK(region != nullptr);
  }
  ~Window() { kind_ == Memory::host ? ::operator delete(whole_) : release(whole_); }
  uint8_t& operator[](size_t i) { return data_[i]; }
  uint64_t& word(size_t i) { return reinterpret_cast<uint64_t*>(data_)[i]; }
  void fill(int seed) {
    for (size_t i = 0; i < bytes_; ++i) data_[i] = value(i, seed);
  }
  static uint8_t value(size_t i, int seed) { return uint8_t(i * 13 + i / 255 + size_t(seed) * 101 + 7); }
  size_t wrong(size_t at, size_t count, size_t from, int seed) const {
    size_t bad = 0;
    for (size_t i = 0; i < count; ++i) bad += data_[at + i] != value(from + i, seed);
    return bad;
  }
  void* region;

 private:
  Memory kind_;
  size_t bytes_;
  void* whole_;
  uint8_t* data_;
};

constexpr size_t sizes[] = {0, 1, 2, 4, 8, 12, 48, 49, 4096, 65536, 65537, (1 << 20) + 3};
constexpr size_t largest = (1 << 20) + 3, piece = 600000;

void set_gpu(int rank) { enter(reinterpret_cast<void*>(intptr_t(1 + rank % 2))); }

template <class Body>
void with_gpus(int size, Body body, int contexts = 1) {
  before_connect = set_gpu;
  with_ranks(size, body, contexts);
  CHECK_EQ(live(), 0);
}

// The owner stands for a kernel: it reads what the signal covers at once.
void put_between(Memory from, Memory to, Memory signal_kind, uint64_t flags) {
  with_gpus(2, [=](Rank& r) {
    Window source(r, from, largest + 64), target(r, to, 2 * (largest + 64)), signal(r, signal_kind, 64, flags);
    source.fill(r.rank());
    uint64_t expected = 0;
    for (int repeat = 0; repeat < 2; ++repeat)
      for (size_t bytes : sizes) {
        const size_t mine = size_t(r.rank()) * (largest + 64) + (bytes % 2 ? 3 : 8);
        const size_t shift = bytes % 2 ? 1 : 16;
        std::memset(&target[0], 0, 2 * (largest + 64));
        CHECK(r.barrier());
        void* requests[2];
        for (int peer = 0; peer < 2; ++peer)
          CHECK_EQ(r.put_signal(source.region, shift, bytes, target.region, mine, peer, signal.region,
                                size_t(r.rank()) * 8, 2, &requests[peer], repeat != 1),
                   0);
        expected += 2;
        for (int peer = 0; peer < 2; ++peer) {
          CHECK(r.wait_word(signal.word(size_t(peer)), expected));
          const size_t theirs = size_t(peer) * (largest + 64) + (bytes % 2 ? 3 : 8);
          CHECK_EQ(target.wrong(theirs, bytes, shift, peer), 0u);
          CHECK_EQ(target[theirs + bytes], 0);
        }
        for (void* request : requests) CHECK_EQ(r.wait(request), 0);
        CHECK(r.barrier());
      }
  });
}

}  // namespace

CASE(puts_between_all_kinds_of_memory) {
  for (Memory from : kinds)
    for (Memory to : kinds) put_between(from, to, Memory::own, abi::region_signal_never_reset);
}

CASE(signals_in_all_kinds_of_memory) {
  for (Memory signal : kinds) put_between(Memory::mapped, Memory::mapped, signal, 0);
}

CASE(gpus_that_do_not_reach_one_another) {
  setenv("FAKE_NO_IMPORT", "1", 1);
  put_between(Memory::mapped, Memory::mapped, Memory::own, abi::region_signal_never_reset);
  unsetenv("FAKE_NO_IMPORT");
}

CASE(puts_that_are_never_pulled) {
  setenv("NCCL_RMA_GIN_PULL", "0", 1);
  put_between(Memory::mapped, Memory::mapped, Memory::own, abi::region_signal_never_reset);
  unsetenv("NCCL_RMA_GIN_PULL");
}

CASE(gets_between_all_kinds_of_memory) {
  with_gpus(3, [](Rank& r) {
    for (Memory from : kinds)
      for (Memory to : kinds) {
        Window source(r, from, largest + 64), target(r, to, largest + 64);
        source.fill(r.rank());
        CHECK(r.barrier());
        for (size_t bytes : sizes)
          for (int peer = 0; peer < r.size(); ++peer) {
            std::memset(&target[0], 0, largest + 64);
            void* request = nullptr;
            CHECK_EQ(r.get(source.region, 5, bytes, target.region, 3, peer, &request), 0);
            CHECK_EQ(r.wait(request), 0);
            CHECK_EQ(target.wrong(3, bytes, 5, peer), 0u);
            CHECK_EQ(target[3 + bytes], 0);
          }
        CHECK(r.barrier());
        CHECK_EQ(table14().dereg(r.comm(), source.region), 0);
        CHECK_EQ(table14().dereg(r.comm(), target.region), 0);
      }
  });
}

// Puts of every way, unsignalled and on their way at once, then a strong signal.
CASE(a_strong_signal_covers_every_way) {
  with_gpus(
      2,
      [](Rank& r) {
        Window source(r, Memory::mapped, 8 * piece), other(r, Memory::own, 8 * piece),
            target(r, Memory::mapped, 8 * piece), signal(r, Memory::own, 64, abi::region_signal_never_reset);
        const int peer = 1 - r.rank();
        uint64_t expected = 0;
        for (int round = 0; round < 9; ++round) {
          source.fill(round * 2 + r.rank());
          other.fill(round * 2 + r.rank());
          CHECK(r.barrier());
          const int index = round % 3;
          std::vector<void*> requests(9);
          for (size_t i = 0; i < 8; ++i) {
            const size_t bytes = i % 4 == 0 ? piece : i % 4 == 1 ? 8 : i % 4 == 2 ? 300000 : 4096;
            CHECK_EQ(r.put(i == 5 || i == 6 ? other.region : source.region, i * piece, bytes, target.region, i * piece,
                           peer, &requests[i], index),
                     0);
          }
          CHECK_EQ(r.put_signal(nullptr, 0, 0, nullptr, 0, peer, signal.region, 16, 1, &requests[8], true, index), 0);
          CHECK(r.wait_word(signal.word(2), ++expected));
          for (size_t i = 0; i < 8; ++i) {
            const size_t bytes = i % 4 == 0 ? piece : i % 4 == 1 ? 8 : i % 4 == 2 ? 300000 : 4096;
            CHECK_EQ(target.wrong(i * piece, bytes, i * piece, round * 2 + peer), 0u);
          }
          for (void* request : requests) CHECK_EQ(r.wait(request), 0);
          CHECK(r.barrier());
        }
      },
      3);
}

// Words that only grow and words that are read first, from all ranks and contexts at once.
CASE(no_addition_is_lost) {
  with_gpus(
      3,
      [](Rank& r) {
        constexpr int each = 300;
        Window grows(r, Memory::own, 64, abi::region_signal_never_reset), any(r, Memory::mapped, 64);
        std::vector<void*> requests;
        for (int i = 0; i < each; ++i)
          for (Window* window : {&grows, &any}) {
            void* request = nullptr;
            CHECK_EQ(r.put_signal(nullptr, 0, 0, nullptr, 0, i % 3, window->region, size_t(i / 3 % 2) * 8, 7, &request,
                                  i % 2, i % 2),
                     0);
            requests.push_back(request);
          }
        for (void* request : requests) CHECK_EQ(r.wait(request), 0);
        for (Window* window : {&grows, &any})
          for (size_t i = 0; i < 2; ++i) CHECK(r.wait_word(window->word(i), 7 * each / 2));
        CHECK(r.barrier());
        CHECK_EQ(grows.word(0) + grows.word(1) + any.word(0) + any.word(1), uint64_t(2 * 7 * each));
        any.word(1) = 0;  // its owner resets it
        CHECK(r.barrier());
        void* request = nullptr;
        CHECK_EQ(r.put_signal(nullptr, 0, 0, nullptr, 0, (r.rank() + 1) % 3, any.region, 8, 5, &request), 0);
        CHECK_EQ(r.wait(request), 0);
        CHECK(r.wait_word(any.word(1), 5));
        CHECK(r.barrier());
        CHECK_EQ(any.word(1), 5u);
      },
      2);
}

CASE(more_than_fits) {
  with_gpus(2, [](Rank& r) {
    constexpr size_t count = 1500, bytes = 256;
    Window source(r, Memory::mapped, count * bytes), target(r, Memory::mapped, count * bytes),
        signal(r, Memory::own, 8, abi::region_signal_never_reset);
    source.fill(r.rank());
    std::vector<void*> requests(count);
    for (size_t i = 0; i < count; ++i)
      CHECK_EQ(r.put_signal(source.region, i * bytes, bytes, target.region, i * bytes, 1 - r.rank(), signal.region, 0,
                            1, &requests[i], i % 2),
               0);
    for (void* request : requests) CHECK_EQ(r.wait(request), 0);
    CHECK(r.wait_word(signal.word(0), count));
    CHECK_EQ(target.wrong(0, count * bytes, 0, 1 - r.rank()), 0u);
    CHECK(r.barrier());
  });
}

namespace {

// NCCL's proxy: queues of one rank's kernels, by context and peer. Each turn takes one operation of each queue, after what it
// took before has been tested; then the plugin's turn.
class Proxy {
 public:
  enum class Kind { signal, get, flush };
  struct Operation {
    Kind kind;
    size_t remote, local;
    void* request = nullptr;
  };

  Proxy(Rank& rank, void* window, int contexts)
      : rank_(rank), window_(window), contexts_(contexts), queues_(size_t(contexts * rank.size())) {}

  void turn() {
    for (int context = 0; context < contexts_; ++context) {
      for (int peer = 0; peer < rank_.size(); ++peer) test(queue(context, peer));
      for (int peer = 0; peer < rank_.size(); ++peer) take(queue(context, peer), context, peer);
    }
    rank_.progress();
  }

  // By the kernel: how many are posted, and whether as many are done.
  uint64_t post(int context, int peer, Operation operation) {
    Queue& q = queue(context, peer);
    std::lock_guard<std::mutex> held(q.guard);
    q.posted.push_back(operation);
    return ++q.count;
  }
  bool done(int context, int peer, uint64_t count) { return queue(context, peer).consumed.load() >= count; }
  int wrong() const { return wrong_; }

 private:
  struct Queue {
    std::mutex guard;
    std::deque<Operation> posted;
    uint64_t count = 0;
    std::deque<Operation> under_way;
    std::atomic<uint64_t> consumed{0};
  };
  Queue& queue(int context, int peer) { return queues_[size_t(context * rank_.size() + peer)]; }

  void test(Queue& q) {
    while (!q.under_way.empty()) {
      int done = 1;
      void* request = q.under_way.front().request;
      if (request) wrong_ += table14().test(rank_.comm(), request, &done) != 0;
      if (!done) return;
      q.under_way.pop_front();
      ++q.consumed;
    }
  }

  void take(Queue& q, int context, int peer) {
    Operation o;
    {
      std::lock_guard<std::mutex> held(q.guard);
      if (q.posted.empty()) return;
      o = q.posted.front();
      q.posted.pop_front();
    }
    int result = 0;
    if (o.kind == Kind::signal)
      result = rank_.put_signal(nullptr, 0, 0, nullptr, 0, peer, window_, o.remote, 1, &o.request, true, context);
    else if (o.kind == Kind::get)
      result = rank_.get(window_, o.remote, 8, window_, o.local, peer, &o.request, context);
    else
      result = table14().flush(rank_.context(), context, window_, uint32_t(peer), &o.request);
    wrong_ += result != 0;
    q.under_way.push_back(o);
  }

  Rank& rank_;
  void* window_;
  int contexts_;
  std::deque<Queue> queues_;
  std::atomic<int> wrong_{0};
};

// gin's quiet: a signal to a word of the peer's window, and gets of that word until it is there. As NCCL waits for a get, its
// own operations are consumed first, then a flush in this rank's own queue.
bool quiet(Proxy& proxy, Rank& r, Window& window, int context, uint64_t turn) {
  const Deadline deadline(5);
  const size_t words = 2 * size_t(r.size());
  const auto consumed = [&](int peer, uint64_t count) {
    while (!proxy.done(context, peer, count)) {
      if (deadline.passed()) return false;
      sched_yield();
    }
    return true;
  };
  for (int peer = 0; peer < r.size(); ++peer) {
    const size_t settle = 8 * (size_t(context) * words + size_t(r.rank()));
    const size_t answer = 8 * (size_t(context) * words + size_t(r.size() + peer));
    proxy.post(context, peer, {Proxy::Kind::signal, settle, 0});
    do {
      if (deadline.passed()) return false;
      const uint64_t count = proxy.post(context, peer, {Proxy::Kind::get, settle, answer});
      if (!consumed(peer, count)) return false;
      if (!consumed(r.rank(), proxy.post(context, r.rank(), {Proxy::Kind::flush, 0, 0}))) return false;
    } while (__atomic_load_n(&window.word(answer / 8), __ATOMIC_ACQUIRE) < turn);
  }
  return true;
}

}  // namespace

// Kernels of all ranks that run until all contexts are quiet: what the plugin needs of the driver, it has before.
CASE(all_contexts_are_quiet_at_once) {
  for (int size : {2, 3}) {
    constexpr int contexts = 4, rounds = 5;
    with_gpus(
        size,
        [&](Rank& r) {
          Window window(r, Memory::mapped, size_t(contexts * 2 * size) * 8);
          CHECK(r.barrier());
          run_kernels(1);
          Proxy proxy(r, window.region, contexts);
          std::atomic<bool> ended{false};
          bool good = true;
          std::thread kernel([&] {
            for (uint64_t turn = 1; turn <= rounds; ++turn)
              for (int context = 0; context < contexts && good; ++context)
                good = quiet(proxy, r, window, context, turn);
            ended = true;
          });
          while (!ended) {
            proxy.turn();
            sched_yield();
          }
          kernel.join();
          CHECK(good);
          CHECK_EQ(proxy.wrong(), 0);
          CHECK(streams() <= 5 * size);  // they fit the GPU's eight queues with a kernel's beside them
          run_kernels(-1);
          CHECK(r.barrier());
        },
        contexts);
  }
}

// Every way between kinds of memory, on the same GPU and on others, while kernels run that have all of them.
CASE(nothing_that_kernels_wait_for_needs_room_beside_them) {
  for (const int size : {1, 2, 3})
    with_gpus(size, [](Rank& r) {
      std::vector<std::unique_ptr<Window>> windows;
      for (Memory kind : kinds) windows.push_back(std::make_unique<Window>(r, kind, 3 * largest));
      Window signal(r, Memory::own, 8, abi::region_signal_never_reset);
      uint64_t expected = 0;
      for (auto& window : windows) window->fill(r.rank());
      CHECK(r.barrier());
      run_kernels(1);
      for (int away = 0; away < r.size(); ++away) {
        const int to = (r.rank() + away) % r.size(), from = (r.rank() + r.size() - away) % r.size();
        for (auto& source : windows)
          for (auto& target : windows)
            for (size_t bytes : sizes) {
              void* requests[2];
              CHECK_EQ(r.put_signal(source->region, 0, bytes, target->region, largest, to, signal.region, 0, 1,
                                    &requests[0]),
                       0);
              CHECK_EQ(r.get(source->region, 0, bytes, target->region, 2 * largest, to, &requests[1]), 0);
              for (void* request : requests) CHECK_EQ(r.wait(request), 0);
              CHECK(r.wait_word(signal.word(0), ++expected));
              CHECK_EQ(target->wrong(largest, bytes, 0, from), 0u);
              CHECK_EQ(target->wrong(2 * largest, bytes, 0, to), 0u);
              CHECK(r.barrier());
            }
      }
      run_kernels(-1);
      CHECK(r.barrier());
    });
}

// Large ones, which the sender copies, and small ones, which the target does.
CASE(copies_between_gpus_go_straight) {
  with_gpus(3, [](Rank& r) {
    Window source(r, Memory::mapped, largest), target(r, Memory::mapped, largest),
        signal(r, Memory::own, 8, abi::region_signal_never_reset);
    const auto send = [&](int peer, size_t bytes) {
      void* request = nullptr;
      CHECK_EQ(r.put_signal(source.region, 0, bytes, target.region, 0, peer, signal.region, 0, 1, &request), 0);
      CHECK_EQ(r.wait(request), 0);
    };
    uint64_t expected = 0;
    for (const size_t bytes : {size_t(4096), largest})
      for (int turn = 0; turn < 3; ++turn) {
        const int peers[] = {1, 2, 0},
                  taken[] = {1, int(2 * (1 + bytes / (1 << 20))), int(2 * (1 + bytes / (1 << 20)))};
        CHECK(r.barrier());
        const int before = copies();
        CHECK(r.barrier());
        if (r.rank() == 0) send(peers[turn], bytes);
        if (r.rank() == peers[turn]) CHECK(r.wait_word(signal.word(0), ++expected));
        CHECK(r.barrier());
        CHECK_EQ(copies() - before, taken[turn]);
      }
  });
}

// By each half of the way within the GPU: of small ones, which the target's side copies, and of large ones.
CASE(a_copy_to_oneself_that_is_refused_is_an_error) {
  fails = true;
  for (const size_t bytes : {size_t(4096), largest})
    for (const int after : {0, 1})
      with_gpus(1, [=](Rank& r) {
        Window window(r, Memory::mapped, 2 * largest), signal(r, Memory::own, 8, abi::region_signal_never_reset);
        void* request = nullptr;
        refuse_copy(after);
        const int result =
            r.put_signal(window.region, 0, bytes, window.region, largest, 0, signal.region, 0, 1, &request);
        CHECK(result != 0 || r.wait(request) != 0);
        refuse_copy(INT_MAX);
        CHECK_EQ(signal.word(0), 0u);
      });
  fails = false;
}

CHECK_MAIN

// The cuda wire on a driver that is not there (fake/cuda.cpp), one rank sending to itself and to what would be peers' memory.
#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <climits>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "check.h"
#include "wire/cuda_driver.h"
#include "wire/registry.h"

using namespace gin;
using namespace gin::wire;

namespace {

template <class F>
F fake(const char* name) {
  static void* driver = dlopen(GIN_FAKE_CUDA, RTLD_NOW | RTLD_GLOBAL);  // the wire finds it by its name
  return reinterpret_cast<F>(dlsym(driver, name));
}

const auto allocate = fake<void* (*)(uint64_t, int)>("fake_allocate");
const auto place = fake<void (*)(void*, int)>("fake_place");
const auto release = fake<void (*)(void*)>("fake_free");
const auto enter = fake<int (*)(void*)>("cuCtxSetCurrent");
const auto entered = fake<int (*)(void**)>("cuCtxGetCurrent");
const auto word_writes = fake<int (*)()>("fake_word_writes");
const auto batches = fake<int (*)()>("fake_batches");
const auto cut_batches = fake<void (*)(int)>("fake_cut_batches");
const auto refuse_copy = fake<void (*)(int)>("fake_refuse_copy");
const auto copies = fake<int (*)()>("fake_copies");
const auto run_kernels = fake<void (*)(int)>("fake_run");
const auto hold = fake<void (*)(void*)>("fake_hold");
const auto break_device = fake<void (*)(int)>("fake_break");
const auto fail_words = fake<void (*)(int)>("fake_fail_words");
const auto streams = fake<int (*)()>("fake_streams");

constexpr uint32_t control = 0, data = 1;
constexpr uint64_t bytes = 8 << 20;
constexpr uint32_t most_ranks = 9;

// Rank 0; all ranks' memory is this process's, on a GPU each, or on so many.
struct Job {
  explicit Job(const Options& options = {}, uint32_t size = 2, uint32_t gpus = most_ranks) : memory(size) {
    enter(reinterpret_cast<void*>(1));
    for (char*& one : memory) one = static_cast<char*>(allocate(bytes, 1));
    for (uint32_t rank = 0; rank < size; ++rank) place(memory[rank], int(rank % gpus));
    mine = memory[0], theirs = memory[1];
    std::iota(mine, mine + bytes, 1);
    fabric = make_fabric("cuda", 0, size, options);
    const std::string exported[] = {fabric->add_region(control, words[0], sizeof(words[0])),
                                    fabric->add_region(data, mine, bytes)};
    for (uint32_t peer = 0; peer < size; ++peer) {
      std::string told = exported[1];
      told.back() = char('0' + peer % gpus);  // the GPU's UUID comes last
      fabric->import_region(control, peer, exported[0], words[peer]);
      fabric->import_region(data, peer, told, memory[peer]);
    }
    endpoint = fabric->endpoint();
  }
  ~Job() {
    endpoint.reset();
    fabric.reset();
    for (char* one : memory) release(one);
  }

  Request put(uint64_t token, uint64_t at, uint64_t size, bool signal, uint32_t peer = 1) const {
    Request r{};
    r.verb = Verb::put;
    r.peer = peer;
    r.local_region = r.remote_region = data;
    r.local_offset = r.remote_offset = at;
    r.bytes = size;
    r.has_signal = signal;
    r.signal_region = control;
    r.signal_add = 1;
    r.token = token;
    return r;
  }

  Request value(uint64_t token, uint64_t at, uint64_t size, uint64_t value, uint32_t peer) const {
    Request r = put(token, at, size, false, peer);
    r.verb = Verb::value;
    r.value = value;
    return r;
  }

  std::vector<Completion> await(size_t count) { return await(*endpoint, count); }

  // Polls until `count` have completed, or for five seconds.
  static std::vector<Completion> await(Endpoint& from, size_t count) {
    std::vector<Completion> all(count);
    size_t got = 0;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (got < count && std::chrono::steady_clock::now() < end) got += from.poll(&all[got], count - got);
    all.resize(got);
    return all;
  }

  std::vector<char*> memory;
  char *mine, *theirs;
  uint64_t words[most_ranks][8] = {};
  std::unique_ptr<Fabric> fabric;
  std::unique_ptr<Endpoint> endpoint;
};

// What happens to the device until `end`, or until this goes.
struct Kernel {
  Kernel() { run_kernels(1); }
  ~Kernel() { run_kernels(-1); }
};
struct Hold {
  explicit Hold(char* target) { hold(target); }
  ~Hold() { end(); }
  void end() { hold(nullptr); }
};
struct Broken {
  explicit Broken(int error) { break_device(error); }
  ~Broken() { break_device(0); }
};

// There are fewer streams than contexts: one that has the first context's streams.
std::unique_ptr<Endpoint> sharing(const Job& job) {
  for (int i = 0; i < 3; ++i) job.fabric->endpoint();
  return job.fabric->endpoint();
}

CASE(copies_follow_one_another_with_few_marks_between_them) {
  Job job;
  constexpr int puts = 500;
  const int before = word_writes();
  for (int i = 0; i < puts; ++i) {
    const Request r = job.put(uint64_t(i), uint64_t(i) * 2000, 1999, true);
    CHECK_EQ(job.endpoint->post(&r, 1), 1u);
  }
  const std::vector<Completion> ended = job.await(puts);
  CHECK_EQ(ended.size(), size_t(puts));
  for (size_t i = 0; i < ended.size(); ++i) CHECK(ended[i].token == i && ended[i].code == Code::ok);
  CHECK_EQ(job.words[1][0], uint64_t(puts));
  for (int i = 0; i < puts; ++i) CHECK_EQ(std::memcmp(job.theirs + i * 2000, job.mine + i * 2000, 1999), 0);
  CHECK(word_writes() - before < puts / 2);
}

// What is posted at once goes to the driver at once, up to 32 copies and 8 MiB.
CASE(copies_that_are_posted_together_go_together) {
  Job job;
  for (const auto& [puts, size, expected] : {std::array{1, 100, 0},
                                             {2, 100, 1},
                                             {31, 100, 1},
                                             {32, 100, 1},
                                             {33, 100, 1},
                                             {34, 100, 2},
                                             {200, 999, 7},
                                             {8, 1 << 20, 1},
                                             {9, 1 << 20, 1},
                                             {10, 1 << 20, 2}}) {
    std::memset(job.theirs, 0, bytes);
    const int before = batches();
    const uint64_t signals = job.words[1][0];
    std::vector<Request> all;
    for (int i = 0; i < puts; ++i)
      all.push_back(job.put(uint64_t(i), uint64_t(i) * 2000 * (size < 2000), uint64_t(size), true));
    CHECK_EQ(job.endpoint->post(all.data(), all.size()), all.size());
    const std::vector<Completion> ended = job.await(all.size());
    CHECK_EQ(ended.size(), all.size());
    for (size_t i = 0; i < ended.size(); ++i) CHECK(ended[i].token == i && ended[i].code == Code::ok);
    CHECK_EQ(batches() - before, expected);
    CHECK_EQ(job.words[1][0] - signals, uint64_t(puts));
    for (const Request& r : all)
      CHECK_EQ(std::memcmp(job.theirs + r.remote_offset, job.mine + r.remote_offset, r.bytes), 0);
  }
}

// The first one's signal does not wait for the large one's bytes.
CASE(what_comes_before_much_is_marked_before_it) {
  for (const uint32_t gpus : {2, 1}) {
    Job job({}, 2, gpus);
    const Request both[2] = {job.put(1, 0, 8, true), job.put(2, 0, bytes, true)};
    const int before = word_writes();
    CHECK_EQ(job.endpoint->post(both, 2), 2u);
    CHECK_EQ(job.await(2).size(), 2u);
    CHECK_EQ(job.words[1][0], 2u);
    CHECK_EQ(word_writes() - before, 2);
  }
}

// A driver without batches, and one that ends them half-way.
CASE(batches_that_are_refused_are_done_one_by_one) {
  Job job({}, 3);
  for (const int after : {-1, 0, 1, 7, 30}) {
    cut_batches(after);
    std::memset(job.memory[1], 0, bytes);
    std::memset(job.memory[2], 0, bytes);
    std::vector<Request> all;
    for (uint64_t i = 0; i < 90; ++i) all.push_back(job.put(i, i * 2000, 1999, true, 1 + i % 2));
    const uint64_t signals = job.words[1][0] + job.words[2][0];
    CHECK_EQ(job.endpoint->post(all.data(), all.size()), all.size());
    const std::vector<Completion> ended = job.await(all.size());
    CHECK_EQ(ended.size(), all.size());
    for (const Completion& c : ended) CHECK(c.code == Code::ok);
    CHECK_EQ(job.words[1][0] + job.words[2][0] - signals, 90u);
    for (const Request& r : all)
      CHECK_EQ(std::memcmp(job.memory[r.peer] + r.remote_offset, job.mine + r.remote_offset, 1999), 0);
  }
  cut_batches(INT_MAX);
}

// By the stream itself where the place is even, and copied elsewhere.
CASE(a_single_value_is_written) {
  Job job;
  for (const auto& [at, size, expected] : {std::array{8, 8, 0}, {4, 4, 0}, {4, 8, 1}, {2, 4, 1}, {8, 3, 1}}) {
    const int copies_before = copies(), words_before = word_writes();
    const Request r = job.value(1, uint64_t(at), uint64_t(size), 0x0807060504030201, 1);
    CHECK_EQ(job.endpoint->post(&r, 1), 1u);
    CHECK_EQ(job.await(1).size(), 1u);
    CHECK_EQ(std::memcmp(job.theirs + at, &r.value, size_t(size)), 0);
    CHECK_EQ(copies() - copies_before, expected);
    CHECK_EQ(word_writes() - words_before, 2 - expected);  // one is the mark
  }
}

// The copies of a batch are done in any order, as the contract has it, but for fences between them.
CASE(a_fence_stands_between_copies_that_are_posted_together) {
  Job job({}, 7);
  for (uint64_t turn = 0; turn < 50; ++turn) {
    std::vector<Request> all;
    for (uint64_t i = 0; i < 5; ++i) {
      for (uint32_t peer = 1; peer < 7; ++peer) {
        all.push_back(job.put(0, bytes / 2, 100, true, peer));
        all.back().local_offset = turn * 1000 + i * 100;
        all.push_back(job.value(0, bytes / 4, 8, i, peer));
        all.push_back(job.value(0, bytes / 4 + 9, 3, i, peer));
      }
      if (i < 4) all.push_back(job.put(0, 0, 0, false)), all.back().verb = Verb::fence;
    }
    CHECK_EQ(job.endpoint->post(all.data(), all.size()), all.size());
    CHECK_EQ(job.await(all.size()).size(), all.size());
    for (uint32_t peer = 1; peer < 7; ++peer) {
      CHECK_EQ(std::memcmp(job.memory[peer] + bytes / 2, job.mine + turn * 1000 + 400, 100), 0);
      CHECK(job.memory[peer][bytes / 4] == 4 && job.memory[peer][bytes / 4 + 9] == 4);
    }
  }
}

CASE(values_and_copies_of_all_sizes_go_together) {
  Job job({}, 3);
  std::vector<Request> all;
  for (uint64_t i = 0; i < 20; ++i) {
    all.push_back(job.value(i, 64 * i + i % 3, 1 + i % 8, 0x0102030405060708 + i, 1 + i % 2));
    all.push_back(job.put(100 + i, bytes / 2 + 64 * i, i, true, 1 + i % 2));
    all.push_back(job.put(200 + i, bytes / 4 + 64 * i, 1 + i, false, 1 + i % 2));
    all.back().verb = Verb::get;
    all.back().local_offset += 32;
    job.memory[1 + i % 2][bytes / 4 + 64 * i] = char(i);
  }
  CHECK_EQ(job.endpoint->post(all.data(), all.size()), all.size());
  const std::vector<Completion> ended = job.await(all.size());
  CHECK_EQ(ended.size(), all.size());
  for (const Completion& c : ended) CHECK(c.code == Code::ok);
  for (uint64_t i = 0; i < 20; ++i) {
    const char* there = job.memory[1 + i % 2];
    const uint64_t value = 0x0102030405060708 + i;
    CHECK_EQ(std::memcmp(there + 64 * i + i % 3, &value, 1 + i % 8), 0);
    CHECK_EQ(std::memcmp(there + bytes / 2 + 64 * i, job.mine + bytes / 2 + 64 * i, i), 0);
    CHECK_EQ(job.mine[bytes / 4 + 64 * i + 32], char(i));
  }
}

// Within a GPU the driver would copy by a kernel, and the one that waits for the copy may have the whole GPU.
CASE(copies_within_a_gpu_need_no_kernel_to_end) {
  constexpr uint32_t ranks = 5;
  Job job({}, ranks, 2);
  const std::unique_ptr<Endpoint> other = job.fabric->endpoint();
  for (uint32_t peer = 1; peer < ranks; ++peer) std::iota(job.memory[peer], job.memory[peer] + bytes / 2, char(peer));
  const auto send = [&](Endpoint& endpoint, uint64_t turn) {
    std::vector<Request> all;
    for (uint32_t peer = 0; peer < ranks; ++peer) {
      uint64_t at = bytes / 2 + 1;
      for (const uint64_t size : {1, 8, 3001, (1 << 20) + 7}) {
        all.push_back(job.put(0, at, size, true, peer));
        all.back().local_offset = turn * 7;
        all.push_back(job.put(0, turn * 7, size, false, peer));
        all.back().verb = Verb::get;
        all.back().local_offset = at + bytes / 4;
        all.push_back(job.value(0, bytes - 16 - size % 11 * 16, 1 + size % 8, turn, peer));
        at += size;
      }
    }
    // A get's place is one peer's at a time.
    for (uint32_t peer = 0; peer < ranks; ++peer) {
      const Request* theirs = &all[peer * 12];
      CHECK_EQ(endpoint.post(theirs, 12), 12u);
      const std::vector<Completion> ended = Job::await(endpoint, 12);
      CHECK_EQ(ended.size(), 12u);
      for (const Completion& c : ended) CHECK(c.code == Code::ok);
      for (int i = 0; i < 12; ++i) {
        const char *here = job.mine + theirs[i].local_offset, *there = job.memory[peer] + theirs[i].remote_offset;
        CHECK_EQ(
            std::memcmp(i % 3 < 2 ? here : reinterpret_cast<const char*>(&theirs[i].value), there, theirs[i].bytes), 0);
      }
    }
  };
  {
    const Kernel kernel;
    for (uint64_t turn = 0; turn < 3; ++turn) send(*job.endpoint, turn);
    std::thread thread([&] {
      for (uint64_t turn = 3; turn < 6; ++turn) send(*other, turn);
    });
    thread.join();
  }
  for (uint32_t peer = 0; peer < ranks; ++peer) CHECK_EQ(job.words[peer][0], 6u * 4u);
}

CASE(copies_between_gpus_go_straight) {
  Job job({}, 3, 2);
  static char host[4096] = "memory of the host";
  job.fabric->import_region(7, 0, job.fabric->add_region(7, host, sizeof(host)), host);
  const auto took = [&](uint32_t peer, uint64_t size, uint32_t from = data) {
    const int before = copies();
    Request r = job.put(0, 0, size, true, peer);
    r.remote_offset = bytes / 2;
    r.local_region = from;
    CHECK_EQ(job.endpoint->post(&r, 1), 1u);
    CHECK_EQ(job.await(1).size(), 1u);
    CHECK_EQ(std::memcmp(job.memory[peer] + bytes / 2, from == data ? job.mine : host, size), 0);
    return copies() - before;
  };
  CHECK_EQ(took(1, bytes / 2), 1);
  CHECK_EQ(took(0, 1000), 2);
  CHECK_EQ(took(2, (1 << 20) + 1), 4);
  CHECK_EQ(took(0, 1000, 7), 1);
  CHECK_EQ(took(2, 1000, 7), 1);
}

// Each half of a way within a GPU can be refused: that request fails alone.
CASE(a_copy_within_a_gpu_that_is_refused_fails_alone) {
  Job job({}, 2, 1);
  for (const int after : {0, 1, 2, 3}) {
    const uint64_t signals = job.words[1][0];
    Request all[3] = {job.put(1, 0, 100, true), job.put(2, 1000, 100, true), job.put(3, 2000, 100, true)};
    for (Request& r : all) r.remote_offset += bytes / 2;
    refuse_copy(after);
    CHECK_EQ(job.endpoint->post(all, 3), 3u);
    const std::vector<Completion> ended = job.await(3);
    CHECK_EQ(ended.size(), 3u);
    for (const Completion& c : ended) {
      const bool refused = c.token == 1u + uint32_t(after) / 2;
      CHECK(c.code == (refused ? Code::remote : Code::ok) && c.detail == (refused ? 1u : 0u));
    }
    CHECK_EQ(job.words[1][0] - signals, 2u);
  }
}

// A kernel that does not end may still have a copy wait when the wire is closed: what the copy needs stays.
CASE(what_is_under_way_outlives_the_wire) {
  Job job({}, 2, 1);
  std::memset(job.theirs, 0, bytes);
  Hold held(job.theirs);
  const Request within = job.put(1, 0, 3000, false), value = job.value(2, 4000, 5, 0x0504030201, 1),
                last = job.put(3, 4008, 8, false);
  for (const Request& r : {within, value, last}) CHECK_EQ(job.endpoint->post(&r, 1), 1u);
  usleep(20000);  // the first half has been done
  job.endpoint.reset();
  job.fabric.reset();
  held.end();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  const auto* word = reinterpret_cast<const uint64_t*>(job.theirs + 4008);
  while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == 0 && std::chrono::steady_clock::now() < end) usleep(100);
  CHECK_EQ(std::memcmp(job.theirs + 4008, job.mine + 4008, 8), 0);
  CHECK_EQ(std::memcmp(job.theirs, job.mine, 3000), 0);
  CHECK_EQ(job.theirs[4000], 1);
}

// Two threads have copies within the GPU in one stream, and so by one way.
CASE(copies_within_a_gpu_of_two_threads_stay_apart) {
  Job job({}, 2, 1);
  const std::unique_ptr<Endpoint> other = sharing(job);
  constexpr uint64_t part = bytes / 8;
  const auto drive = [&](Endpoint& endpoint, uint64_t at, uint8_t mine) {
    std::memset(job.mine + at, mine, part);
    for (int turn = 0; turn < 200; ++turn) {
      Request r = job.put(1, at, part, false, 0);
      r.remote_offset += bytes / 2;
      if (endpoint.post(&r, 1) != 1 || Job::await(endpoint, 1).size() != 1) return false;
      for (uint64_t i = 0; i < part; ++i)
        if (uint8_t(job.mine[bytes / 2 + at + i]) != mine) return false;
      std::memset(job.mine + bytes / 2 + at, 0, part);
    }
    return true;
  };
  bool right = false;
  std::thread thread([&] { right = drive(*other, part, 2); });
  CHECK(drive(*job.endpoint, 0, 1));
  thread.join();
  CHECK(right);
}

// The first of them has long arrived: its signal does not come before its mark, nor its source back.
CASE(what_went_together_ends_together) {
  Job job;
  Hold held(job.theirs);
  const Request all[3] = {job.put(1, 200, 100, true), job.put(2, 0, 100, true), job.put(3, 400, 100, true)};
  CHECK_EQ(job.endpoint->post(all, 3), 3u);
  Completion none;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
  while (std::chrono::steady_clock::now() < end) CHECK_EQ(job.endpoint->poll(&none, 1), 0u);
  CHECK_EQ(job.words[1][0], 0u);
  held.end();
  CHECK_EQ(job.await(3).size(), 3u);
  CHECK_EQ(job.words[1][0], 3u);
}

CASE(a_single_put_needs_no_other_to_end) {
  Job job;
  for (int turn = 0; turn < 50; ++turn) {
    const Request r = job.put(7, 0, uint64_t(turn), turn % 2 == 0);
    job.endpoint->post(&r, 1);
    CHECK_EQ(job.await(1).size(), 1u);
  }
  CHECK_EQ(job.words[1][0], 25u);
}

CASE(a_signal_behind_copies_waits_for_them_though_their_mark_comes_late) {
  Job job;
  for (uint64_t turn = 1; turn <= 40; ++turn) {
    Request chain[3] = {job.put(1, 0, bytes / 2, false), job.put(2, bytes / 2, bytes / 2, false),
                        job.put(3, 0, 0, true)};
    chain[2].verb = Verb::signal;
    for (const Request& r : chain) job.endpoint->post(&r, 1);
    std::memset(job.mine, int(turn), 16);  // the first may or may not have been read
    while (job.words[1][0] < turn) {
      Completion completion;
      job.endpoint->poll(&completion, 1);
    }
    CHECK_EQ(std::memcmp(job.theirs + 16, job.mine + 16, bytes - 16), 0);
    std::memset(job.theirs, 0, bytes);
    Completion rest[3];
    while (job.endpoint->poll(rest, 3)) {
    }
  }
}

CASE(what_cannot_be_is_told_and_nothing_moves) {
  Job job;
  Request wrong[3] = {job.put(1, bytes, 1, true), job.put(2, 0, 8, true), job.put(3, 0, 8, false)};
  wrong[1].signal_offset = sizeof(job.words[1]);
  wrong[2].verb = Verb::atomic;
  CHECK_EQ(job.endpoint->post(wrong, 3), 3u);
  const std::vector<Completion> ended = job.await(3);
  CHECK_EQ(ended.size(), 3u);
  CHECK(ended.size() == 3 && ended[0].code == Code::range && ended[1].code == Code::range);
  CHECK(ended.size() == 3 && ended[2].code == Code::unsupported);
  CHECK_EQ(job.words[1][0], 0u);
}

CASE(a_queue_of_four_takes_four_at_a_time) {
  Job job(Options{{"queue", "4"}});
  std::vector<Request> many(10, job.put(0, 0, 100, true));
  size_t posted = 0, ended = 0;
  Completion completions[4];
  while (ended < many.size()) {
    posted += job.endpoint->post(&many[posted], many.size() - posted);
    CHECK(posted - ended <= 4);
    ended += job.endpoint->poll(completions, 4);
  }
  CHECK_EQ(job.words[1][0], 10u);
}

// Destructors run between any two lines of a thread that may be about to use another GPU.
CASE(what_ends_leaves_the_thread_its_context) {
  void* other = reinterpret_cast<void*>(2);
  void* now = nullptr;
  {
    Job job;
    const Request r = job.put(1, 0, 100, true);
    job.endpoint->post(&r, 1);
    CHECK_EQ(job.await(1).size(), 1u);
    enter(other);
    job.endpoint.reset();
    entered(&now);
    CHECK(now == other);
    enter(reinterpret_cast<void*>(1));
    cuda::WordWriter writer;
    enter(other);
    uint32_t word = 0;
    writer.write(&word, 1);
    entered(&now);
    CHECK(now == other);
  }
  entered(&now);
  CHECK(now == other);
}

// The engine's thread may have been given another context since it last posted.
CASE(a_post_finds_the_thread_in_another_context) {
  Job job;
  for (uint64_t turn = 1; turn <= 3; ++turn) {
    const Request r = job.put(turn, 0, 100, true);
    enter(reinterpret_cast<void*>(2));
    job.endpoint->post(&r, 1);
    void* now = nullptr;
    entered(&now);
    CHECK(now == reinterpret_cast<void*>(1));
    CHECK_EQ(job.await(1).size(), 1u);
  }
}

// What the driver would make for a peer could wait for the kernel.
CASE(every_peer_is_reached_while_a_kernel_runs) {
  Job job({}, most_ranks);
  constexpr int contexts = 6;
  std::vector<std::unique_ptr<Endpoint>> others;
  for (int i = 1; i < contexts; ++i) others.push_back(job.fabric->endpoint());
  const Kernel kernel;
  for (int context = 0; context < contexts; ++context) {
    if (context > 0) job.endpoint.swap(others[size_t(context) - 1]);
    for (uint32_t peer = 0; peer < most_ranks; ++peer) {
      Request r = job.put(peer, 0, 1000, true, peer);
      r.remote_offset = bytes / 2;  // not onto its source, where the peer is this rank
      CHECK_EQ(job.endpoint->post(&r, 1), 1u);
    }
    const std::vector<Completion> ended = job.await(most_ranks);
    CHECK_EQ(ended.size(), size_t(most_ranks));
    for (const Completion& c : ended) CHECK(c.code == Code::ok && c.token == c.peer);
  }
  for (uint32_t peer = 0; peer < most_ranks; ++peer) {
    CHECK_EQ(job.words[peer][0], uint64_t(contexts));
    CHECK_EQ(std::memcmp(job.memory[peer] + bytes / 2, job.mine, 1000), 0);
  }
  CHECK(streams() <= 6);  // they fit the GPU's eight queues with a kernel's and the platform's beside them
}

// Endpoints of two threads share streams as well.
CASE(threads_do_not_disturb_one_another) {
  Job job({}, most_ranks);
  const std::unique_ptr<Endpoint> other = job.fabric->endpoint();
  constexpr uint64_t turns = 1000;
  const auto drive = [&](Endpoint& endpoint, uint64_t at) {
    size_t wrong = 0;
    for (uint64_t turn = 0; turn < turns; ++turn) {
      const uint32_t peer = 1 + uint32_t(turn % (most_ranks - 1));
      const Request requests[2] = {job.put(2 * turn, at + turn * 100, 100, true, peer),
                                   job.value(2 * turn + 1, at + bytes / 4 + 8 * turn, 5, turn, peer)};
      wrong += endpoint.post(requests, 2) != 2;
      Completion ended[2];
      for (size_t got = 0; got < 2;) got += endpoint.poll(&ended[got], 2 - got);
      uint64_t value = 0;
      std::memcpy(&value, job.memory[peer] + at + bytes / 4 + 8 * turn, 5);
      wrong += ended[0].token != 2 * turn || ended[1].token != 2 * turn + 1 || value != turn;
      wrong += std::memcmp(job.memory[peer] + at + turn * 100, job.mine + at + turn * 100, 100) != 0;
    }
    return wrong;
  };
  size_t wrong_there = 0;
  std::thread thread([&] { wrong_there = drive(*other, bytes / 2); });
  CHECK_EQ(drive(*job.endpoint, 0), 0u);
  thread.join();
  CHECK_EQ(wrong_there, 0u);
  uint64_t signals = 0;
  for (auto& word : job.words) signals += word[0];
  CHECK_EQ(signals, 2 * turns);
}

// To one peer by two contexts: what one sends holds up nothing of the other's.
CASE(contexts_to_one_peer_do_not_wait_for_one_another) {
  Job job;
  const std::unique_ptr<Endpoint> other = job.fabric->endpoint();
  constexpr uint64_t puts = 200;
  Hold held(job.theirs);
  for (uint64_t i = 0; i < puts; ++i) {
    const Request one = job.put(i, i * 2000, 999, true), two = job.put(1000 + i, i * 2000 + 1000, 999, true);
    CHECK(job.endpoint->post(&one, 1) == 1 && other->post(&two, 1) == 1);
  }
  const std::vector<Completion> first = Job::await(*other, puts);
  Completion none;
  CHECK_EQ(job.endpoint->poll(&none, 1), 0u);
  held.end();
  const std::vector<Completion> second = job.await(puts);
  CHECK(first.size() == puts && second.size() == puts);
  for (uint64_t i = 0; i < first.size(); ++i) CHECK(first[i].token == 1000 + i && first[i].code == Code::ok);
  for (uint64_t i = 0; i < second.size(); ++i) CHECK(second[i].token == i && second[i].code == Code::ok);
  CHECK_EQ(job.words[1][0], 2 * puts);
  for (uint64_t i = 0; i < 2 * puts; ++i) CHECK_EQ(std::memcmp(job.theirs + i * 1000, job.mine + i * 1000, 999), 0);
}

CASE(a_context_that_goes_leaves_the_others_what_is_under_way) {
  Job job;
  std::unique_ptr<Endpoint> other = sharing(job);
  Hold held(job.theirs);
  const Request first = job.value(1, bytes / 2, 3, 0x030201, 1), second = job.put(2, 0, 100, true);
  CHECK(other->post(&first, 1) == 1 && job.endpoint->post(&second, 1) == 1);
  other.reset();
  held.end();
  const std::vector<Completion> ended = job.await(1);
  CHECK(ended.size() == 1 && ended[0].token == 2 && ended[0].code == Code::ok);
  const char expected[] = {1, 2, 3};
  CHECK_EQ(std::memcmp(job.theirs + bytes / 2, expected, 3), 0);
}

CASE(a_poll_finds_the_thread_in_another_context) {
  Job job;
  Hold held(job.theirs);
  const Request first = job.put(1, 0, 100, true), second = job.put(2, 200, 100, true);
  CHECK_EQ(job.endpoint->post(&first, 1), 1u);
  CHECK_EQ(job.endpoint->post(&second, 1), 1u);  // its mark comes with a poll
  enter(reinterpret_cast<void*>(2));
  held.end();
  const std::vector<Completion> ended = job.await(2);
  CHECK_EQ(ended.size(), 2u);
  for (const Completion& c : ended) CHECK(c.code == Code::ok);
}

CASE(what_copies_nothing_waits_for_no_other_context) {
  Job job;
  const std::unique_ptr<Endpoint> other = job.fabric->endpoint();
  const Hold held(job.theirs);
  const Request copy = job.put(1, 0, 100, true);
  CHECK_EQ(job.endpoint->post(&copy, 1), 1u);
  Request all[4] = {job.put(1, 0, 0, true), job.put(2, 0, 0, true), job.put(3, bytes, 100, true),
                    job.put(4, 0, 0, false)};
  all[0].verb = Verb::signal, all[3].verb = Verb::fence;
  CHECK_EQ(other->post(all, 4), 4u);
  const std::vector<Completion> ended = Job::await(*other, 4);
  CHECK_EQ(ended.size(), 4u);
  for (const Completion& c : ended) CHECK(c.code == (c.token == 3 ? Code::range : Code::ok));
  CHECK_EQ(job.words[1][0], 2u);
}

CASE(a_copy_that_is_refused_fails_alone) {
  Job job;
  static char foreign[4096];
  job.fabric->import_region(7, 1, job.fabric->add_region(7, foreign, sizeof(foreign)), foreign);
  Request requests[3] = {job.put(1, 0, 100, true), job.put(2, 0, 100, true), job.put(3, 200, 100, true)};
  requests[1].local_region = requests[1].remote_region = 7;
  CHECK_EQ(job.endpoint->post(requests, 3), 3u);
  const std::vector<Completion> ended = job.await(3);
  CHECK_EQ(ended.size(), 3u);
  for (const Completion& c : ended) CHECK(c.code == (c.token == 2 ? Code::remote : Code::ok));
  CHECK_EQ(job.words[1][0], 2u);
}

// A mark that cannot be put: its context is told, the other one not, and both go on.
CASE(a_mark_that_fails_is_told) {
  Job job;
  const std::unique_ptr<Endpoint> other = job.fabric->endpoint();
  for (const bool fails : {true, false}) {
    const Request one = job.put(1, 0, 100, true), two = job.put(2, 200, 100, true);
    fail_words(fails);
    CHECK(job.endpoint->post(&one, 1) == 1 && other->post(&two, 1) == 1);
    const std::vector<Completion> first = job.await(1), second = Job::await(*other, 1);
    CHECK(first.size() == 1 && first[0].code == (fails ? Code::remote : Code::ok) &&
          first[0].detail == (fails ? 801u : 0u));
    CHECK(second.size() == 1 && second[0].code == Code::ok);
  }
  CHECK_EQ(job.words[1][0], 3u);
}

CASE(a_lost_device_is_told_to_every_context) {
  Job job;
  const std::unique_ptr<Endpoint> other = sharing(job);
  const Hold held(job.theirs);
  for (uint64_t i = 0; i < 3; ++i) {
    const Request one = job.put(i, 0, 100, true), two = job.put(10 + i, 200, 100, true);
    CHECK(job.endpoint->post(&one, 1) == 1 && other->post(&two, 1) == 1);
  }
  const Broken broken(700);
  std::vector<Completion> ended = job.await(3);
  for (const Completion& c : Job::await(*other, 3)) ended.push_back(c);
  CHECK_EQ(ended.size(), 6u);
  for (const Completion& c : ended) CHECK(c.code == Code::remote && c.detail == 700);
  CHECK_EQ(job.words[1][0], 0u);
}

// There are fewer streams than peers: each peer's requests end in order all the same, and no error is another's.
CASE(peers_that_share_a_stream_stay_apart) {
  Job job(Options{{"queue", "37"}}, most_ranks);
  constexpr uint64_t turns = 300;
  std::vector<Request> all;
  for (uint64_t turn = 0; turn < turns; ++turn)
    for (uint32_t peer = 1; peer < most_ranks; ++peer) {
      const bool wrong = peer == 5 && turn % 3 == 0;
      all.push_back(job.put(turn, wrong ? bytes : turn * 1000, turn % 4 == 3 ? 0 : 999, true, peer));
      if (turn % 4 == 3) all.back().verb = Verb::signal;
    }
  std::vector<uint64_t> next(most_ranks);
  size_t posted = 0, ended = 0;
  Completion completions[16];
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (ended < all.size() && std::chrono::steady_clock::now() < end) {
    posted += job.endpoint->post(&all[posted], std::min<size_t>(11, all.size() - posted));
    const size_t got = job.endpoint->poll(completions, 16);
    for (size_t i = 0; i < got; ++i) {
      const Completion& c = completions[i];
      CHECK_EQ(c.token, next[c.peer]++);
      const bool wrong = c.peer == 5 && c.token % 3 == 0 && c.token % 4 != 3;
      CHECK(c.code == (wrong ? Code::range : Code::ok));
      if (c.code == Code::ok && c.token % 4 != 3)
        CHECK_EQ(std::memcmp(job.memory[c.peer] + c.token * 1000, job.mine + c.token * 1000, 999), 0);
    }
    ended += got;
  }
  CHECK_EQ(ended, all.size());
  for (uint32_t peer = 1; peer < most_ranks; ++peer) CHECK_EQ(job.words[peer][0], peer == 5 ? turns - 75 : turns);
}

// Values of odd sizes are copied from a slot each, which is the next one's only when that copy has ended.
CASE(a_value_that_waits_keeps_its_bytes) {
  Job job(Options{{"queue", "64"}}, 3);
  Hold held(job.memory[1]);
  const Request first[2] = {job.put(0, 0, bytes / 2, false, 1), job.value(1, bytes / 2, 3, 0x030201, 1)};
  CHECK_EQ(job.endpoint->post(first, 2), 2u);
  for (uint64_t i = 2; i < 300; ++i) {
    const Request r = job.value(i, 8 * i + 1, 3, 0xe0000 + i, 2);
    CHECK_EQ(job.endpoint->post(&r, 1), 1u);
    const std::vector<Completion> ended = job.await(1);
    CHECK(ended.size() == 1 && ended[0].token == i && ended[0].code == Code::ok);
  }
  held.end();
  CHECK_EQ(job.await(2).size(), 2u);
  const char expected[] = {1, 2, 3};
  CHECK_EQ(std::memcmp(job.memory[1] + bytes / 2, expected, 3), 0);
  for (uint64_t i = 2; i < 300; ++i) {
    const uint64_t value = 0xe0000 + i;
    CHECK_EQ(std::memcmp(job.memory[2] + 8 * i + 1, &value, 3), 0);
  }
}

// Nothing that posts or polls could take an exception: what cannot be done ends as a request that failed.
CASE(a_lost_device_fails_what_is_under_way_and_what_comes) {
  Job job({}, 3);
  const Hold held(job.memory[1]);
  const Request early[2] = {job.put(1, 0, 100, true, 1), job.put(2, 200, 100, true, 1)};
  CHECK_EQ(job.endpoint->post(early, 2), 2u);
  enter(reinterpret_cast<void*>(2));  // so that the endpoint has to enter its own again
  const Broken broken(700);
  std::vector<Completion> ended = job.await(2);
  CHECK_EQ(ended.size(), 2u);
  const Request late[2] = {job.put(3, 0, 100, true, 1), job.put(4, 0, 100, true, 2)};
  CHECK_EQ(job.endpoint->post(late, 2), 2u);
  for (const Completion& c : job.await(2)) ended.push_back(c);
  CHECK_EQ(ended.size(), 4u);
  for (const Completion& c : ended) CHECK(c.code == Code::remote && c.detail == 700);
  CHECK_EQ(job.words[1][0] + job.words[2][0], 0u);
}

}  // namespace

CHECK_MAIN

// The cuda wire on a driver that is not there (fake/cuda.cpp), one rank sending to itself and to what would be a peer's memory.
#include <dlfcn.h>

#include <chrono>
#include <numeric>
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
const auto release = fake<void (*)(void*)>("fake_free");
const auto enter = fake<int (*)(void*)>("cuCtxSetCurrent");
const auto entered = fake<int (*)(void**)>("cuCtxGetCurrent");
const auto word_writes = fake<int (*)()>("fake_word_writes");

constexpr uint32_t control = 0, data = 1;
constexpr uint64_t bytes = 1 << 20;

// Rank 0 of two; both ranks' memory is this process's.
struct Job {
  explicit Job(const Options& options = {}) {
    enter(reinterpret_cast<void*>(1));
    mine = static_cast<char*>(allocate(bytes, 1));
    theirs = static_cast<char*>(allocate(bytes, 1));
    std::iota(mine, mine + bytes, 1);
    fabric = make_fabric("cuda", 0, 2, options);
    const std::string exported[] = {fabric->add_region(control, words[0], sizeof(words[0])),
                                    fabric->add_region(data, mine, bytes)};
    for (uint32_t peer : {0u, 1u}) {
      fabric->import_region(control, peer, exported[0], words[peer]);
      fabric->import_region(data, peer, exported[1], peer ? theirs : mine);
    }
    endpoint = fabric->endpoint();
  }
  ~Job() {
    endpoint.reset();
    release(mine);
    release(theirs);
  }

  Request put(uint64_t token, uint64_t at, uint64_t size, bool signal) const {
    Request r{};
    r.verb = Verb::put;
    r.peer = 1;
    r.local_region = r.remote_region = data;
    r.local_offset = r.remote_offset = at;
    r.bytes = size;
    r.has_signal = signal;
    r.signal_region = control;
    r.signal_add = 1;
    r.token = token;
    return r;
  }

  // Polls until `count` have completed, or for five seconds.
  std::vector<Completion> await(size_t count) {
    std::vector<Completion> all(count);
    size_t got = 0;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (got < count && std::chrono::steady_clock::now() < end) got += endpoint->poll(&all[got], count - got);
    all.resize(got);
    return all;
  }

  char *mine, *theirs;
  uint64_t words[2][8] = {};
  std::unique_ptr<Fabric> fabric;
  std::unique_ptr<Endpoint> endpoint;
};

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

}  // namespace

CHECK_MAIN

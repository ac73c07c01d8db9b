// The verbs wire with memory of GPUs, on a library and a driver that are not the real ones: to a GPU's memory bytes go another way
// than to the host's, and a CPU that reads it fails.
#if !__has_include(<infiniband/verbs.h>)
#include <cstdio>
int main() { std::puts("skip: built without infiniband/verbs.h"); }
#else
#include <dlfcn.h>

#include <cstring>
#include <set>
#include <thread>

#include "check.h"
#include "fake/verbs_control.h"
#include "verbs_job.h"

using namespace verbs_job;

namespace {

template <class F>
F* find(const char* file, const char* name) {
  return reinterpret_cast<F*>(dlsym(dlopen(file, RTLD_NOW | RTLD_GLOBAL), name));  // the wire finds both by their names
}

const auto reset = find<decltype(::fake_reset)>(GIN_FAKE_VERBS, "fake_reset");
const auto set = find<decltype(::fake_set)>(GIN_FAKE_VERBS, "fake_set");
const auto count = find<decltype(::fake_count)>(GIN_FAKE_VERBS, "fake_count");
const auto own = find<void(void*, size_t)>(GIN_FAKE_CUDA, "fake_own");

std::set<uint32_t> with_gpu;  // ranks
std::set<void*> owned;

void declare_gpu(uint32_t rank, void* memory, uint64_t bytes) {
  if (!with_gpu.count(rank)) return;
  owned.insert(memory);
  own(memory, bytes);
}

// These ranks have their windows and signals on GPUs.
struct Gpus {
  explicit Gpus(std::set<uint32_t> ranks) {
    reset(1);
    with_gpu = std::move(ranks);
    declare = declare_gpu;
  }
  ~Gpus() {
    CHECK_EQ(count("all"), int64_t(0));
    for (void* memory : owned) own(memory, 0);
    owned.clear();
    declare = nullptr;
  }
};

const std::set<uint32_t> both[] = {{0, 1}, {0}, {1}, {}};

}  // namespace

CASE(puts_of_every_size_arrive_and_none_is_read_by_the_cpu) {
  for (const auto& ranks : both) {
    const Gpus gpus(ranks);
    Job job(2);
    uint64_t at = 0, signals = 0;
    for (uint64_t bytes : {1, 8, 63, 64, 65, 4096, 100000}) {
      for (uint64_t i = 0; i < bytes; ++i) job[0].bytes[at + i] = char(at + 3 * i + 1);
      const Completion done = job[0].run(with_signal(request(Verb::put, 1, at, at, bytes), 2, 5));
      CHECK_EQ(uint32_t(done.code), uint32_t(Code::ok));
      CHECK(job[0].settle());
      CHECK_EQ(job[1].words[2], 5 * ++signals);
      CHECK(!std::memcmp(job[0].bytes.data() + at, job[1].bytes.data() + at, bytes));
      at += bytes;
    }
  }
}

CASE(values_and_gets_do_too) {
  for (const auto& ranks : both) {
    const Gpus gpus(ranks);
    Job job(2);
    Request value = request(Verb::value, 1, 24, 0, 4);
    value.value = 0x12345678;
    CHECK_EQ(uint32_t(job[0].run(value).code), uint32_t(Code::ok));
    CHECK(job[0].settle());
    CHECK_EQ(uint32_t(word_at(job[1], 24)), 0x12345678u);
    std::memset(job[1].bytes.data() + 512, 7, 40);
    CHECK_EQ(uint32_t(job[0].run(request(Verb::get, 1, 512, 1024, 40)).code), uint32_t(Code::ok));
    CHECK(!std::memcmp(job[0].bytes.data() + 1024, job[1].bytes.data() + 512, 40));
  }
}

CASE(what_has_settled_is_in_the_gpus_memory) {
  for (const auto& ranks : both) {
    const Gpus gpus(ranks);
    Job job(2);
    set("landing", 1);  // nothing arrives but before what is read by the same way
    for (uint64_t number = 1; number <= 20; ++number) {
      std::memcpy(job[0].bytes.data() + 8 * number, &number, 8);
      CHECK_EQ(uint32_t(job[0].run(request(Verb::put, 1, 8 * number, 8 * number, 8)).code), uint32_t(Code::ok));
      CHECK(job[0].settle());
      CHECK_EQ(word_at(job[1], 8 * number), number);
    }
  }
}

CASE(after_a_fence_relaxed_writes_keep_order_in_the_gpus_memory) {
  for (const auto& ranks : both) {
    const Gpus gpus(ranks);
    Job job(2, {{"ib_relaxed_ordering", "1"}});
    set("landing", 1);
    const uint64_t one = 1, two = 2;
    std::memcpy(job[0].bytes.data() + 8, &one, 8);
    std::memcpy(job[0].bytes.data() + 16, &two, 8);
    Request batch[3] = {request(Verb::put, 1, 8, 8, 8), {}, request(Verb::put, 1, 16, 16, 8)};
    batch[1].verb = Verb::fence;
    CHECK_EQ(job[0].endpoint->post(batch, 3), size_t(3));
    CHECK_EQ(job[0].wait(3).size(), size_t(3));
    set("landing", 2);  // the newest first, where writes are relaxed
    const auto deadline = Clock::now() + std::chrono::duration<double>(patience);
    while (word_at(job[1], 16) != two && Clock::now() < deadline) std::this_thread::yield();
    CHECK_EQ(word_at(job[1], 16), two);
    CHECK_EQ(word_at(job[1], 8), one);
  }
}

CHECK_MAIN
#endif

// How the cuda wire copies: what goes to the driver together, and what takes which way.
#include "wire_cuda_job.h"

using namespace cuda_wire;

namespace {

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

}  // namespace

CHECK_MAIN

// How requests of the cuda wire end, and what contexts, threads and failures do to one another.
#include "wire_cuda_job.h"

using namespace cuda_wire;

namespace {

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

CASE(what_ends_gives_everything_back) {
  const int pinned_before = pinned(), streams_before = streams();
  for (int turn = 0; turn < 20; ++turn) {
    Job job({}, 3, 2);
    const Request r[2] = {job.put(1, 0, 1000, true, 1), job.put(2, 0, 1000, true, 2)};
    CHECK_EQ(job.endpoint->post(r, 2), 2u);
    CHECK_EQ(job.await(2).size(), 2u);
  }
  CHECK_EQ(pinned(), pinned_before);
  CHECK_EQ(streams(), streams_before);
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

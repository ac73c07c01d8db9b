// The verbs wire where devices, peers and calls fail: on devices of a library that is not the real one, which fails as it is told
// and brings writes to memory as late as it may.
#if !__has_include(<infiniband/verbs.h>)
#include <cstdio>
int main() { std::puts("skip: built without infiniband/verbs.h"); }
#else
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <set>

#include "check.h"
#include "error.h"
#include "fake/verbs_control.h"
#include "verbs_job.h"
#include "wire/verbs/endpoint.h"

using namespace verbs_job;

namespace {

template <class F>
F* find(const char* name) {
  static void* library = dlopen(GIN_FAKE_VERBS, RTLD_NOW | RTLD_LOCAL);  // the wire finds it by its name
  return reinterpret_cast<F*>(dlsym(library, name));
}

#define FAKE(name) const auto name = find<decltype(::fake_##name)>("fake_" #name)
FAKE(set);
FAKE(reset);
FAKE(fail);
FAKE(failed);
FAKE(end);
FAKE(silence);
FAKE(count);

// Devices without faults; nothing may be left of a case.
struct Fresh {
  explicit Fresh(uint32_t seed = 1) { reset(seed); }
  ~Fresh() {
    CHECK_EQ(count("all"), int64_t(0));
    const VerbsLive left = verbs_live();
    CHECK_EQ(left.devices + left.regions + left.completion_queues + left.queue_pairs, int64_t(0));
  }
  const int64_t overruns = count("overruns");
};

uint32_t queue_pair(Rank& rank, uint32_t peer) {
  const std::string address = rank.fabric->address(peer);
  return uint32_t(std::stoul(address.substr(address.rfind(' ') + 1)));
}

verbs::Queue& queue(Rank& rank, uint32_t peer) {
  return static_cast<verbs::VerbsEndpoint&>(*rank.endpoint).queue(peer);
}

bool eventually(auto condition) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(patience);
  while (!condition()) {
    if (Clock::now() >= deadline) return false;
    usleep(50);
  }
  return true;
}

// A put of 8 bytes that says which it is.
Request numbered(Rank& from, uint32_t peer, uint64_t number) {
  const uint64_t at = 8 * (1 + number);
  std::memcpy(from.bytes.data() + at, &number, 8);
  Request r = request(Verb::put, peer, at, at, 8);
  r.token = number;
  return r;
}

bool has_come(const Rank& at, uint64_t number) { return word_at(at, 8 * (1 + number)) == number; }

size_t post(Rank& rank, const Request& r) { return rank.endpoint->post(&r, 1); }

std::string thrown(auto action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

// -- settled ----------------------------------------------------------------------------------------------------------

CASE(what_poll_had_no_room_for_does_not_hide_what_it_handed_out) {
  const Fresh fresh;
  Job job(2);
  set("landing", 1);
  std::vector<Request> batch;
  for (uint64_t i = 1; i <= 8; ++i) batch.push_back(numbered(job[0], 1, i));
  CHECK_EQ(job[0].endpoint->post(batch.data(), 8), size_t(8));
  Completion first{};
  REQUIRE(eventually([&] { return job[0].endpoint->poll(&first, 1) == 1; }));  // one completion has ended all eight
  CHECK_EQ(first.token, 1ull);
  CHECK(!has_come(job[1], 1));
  size_t more = 0;
  CHECK(eventually([&] {
    if (job[0].endpoint->settled()) return true;
    Completion c[1];
    more += job[0].endpoint->poll(c, 1);
    return false;
  }));
  CHECK(has_come(job[1], 1));
  CHECK_EQ(job[0].wait(7 - more).size(), 7 - more);
}

// Whenever it says so, what was handed out has come, unless its peer's loss was told.
CASE(settled_is_never_true_too_early) {
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    const Fresh fresh(seed);
    std::mt19937 random(seed);
    Job job(3, {{"ib_timeout", "8"}, {"ib_retry", "1"}});
    set("landing", seed % 3 != 0);
    set("poll_most", 1 + seed % 3);
    const uint64_t lost_at = seed % 2 ? 100 + random() % 100 : 1000;
    uint64_t posted = 0, asked = 0;
    size_t ended = 0;
    std::vector<Completion> handed;
    std::set<uint32_t> lost;
    bool asking = false;
    const auto deadline = Clock::now() + std::chrono::duration<double>(patience);
    while ((ended < 300 || asking) && Clock::now() < deadline) {
      if (posted == lost_at) silence(queue_pair(job[0], 1));
      if (posted < 300 && random() % 2) posted += post(job[0], numbered(job[0], 1 + uint32_t(random() % 2), posted));
      Completion c[3];
      const size_t got = random() % 2 ? job[0].endpoint->poll(c, 1 + random() % 3) : 0;
      for (size_t i = 0; i < got; ++i) {
        if (c[i].code == Code::ok)
          handed.push_back(c[i]);
        else
          lost.insert(c[i].peer);
        ended += c[i].token != no_request;
      }
      if (!asking && random() % 8 == 0) asking = true, asked = handed.size();
      if (!asking || !job[0].endpoint->settled()) continue;
      asking = false;
      for (size_t i = 0; i < asked; ++i)
        CHECK(lost.count(handed[i].peer) || has_come(job[handed[i].peer], handed[i].token));
    }
    CHECK_EQ(ended, size_t(300));
    CHECK(!asking);
    CHECK(!lost.count(2));
    CHECK_EQ(count("overruns"), fresh.overruns);
  }
}

CASE(a_loss_that_comes_with_an_end_is_told_before_anything_is_settled) {
  const Fresh fresh;
  Job job(3);
  set("landing", 1);
  CHECK_EQ(post(job[0], numbered(job[0], 1, 1)), size_t(1));
  REQUIRE(eventually([&] { return count("completions") == 1; }));
  end(queue_pair(job[0], 1), IBV_WC_RETRY_EXC_ERR, 0x81);
  CHECK_EQ(post(job[0], numbered(job[0], 1, 2)), size_t(1));
  REQUIRE(eventually([&] { return count("completions") == 2; }));
  Completion c{};
  CHECK_EQ(job[0].endpoint->poll(&c, 1), size_t(1));
  CHECK(c.code == Code::ok);
  for (int i = 0; i < 100; ++i) CHECK(!job[0].endpoint->settled());
  const std::vector<Completion> news = job[0].wait(1);
  CHECK_EQ(news.at(0).token, 2ull);
  CHECK(news.at(0).code == Code::remote);
  CHECK_EQ(news.at(0).peer, 1u);
  CHECK(job[0].endpoint->settled());
  CHECK(job[0].run(numbered(job[0], 2, 3)).code == Code::ok);
  CHECK(job[0].settle());
  CHECK(has_come(job[2], 3));
}

// -- order ------------------------------------------------------------------------------------------------------------

CASE(after_a_fence_a_relaxed_write_does_not_come_before_earlier_ones) {
  const Fresh fresh;
  Job job(2);
  set("landing", 1);
  Request batch[3] = {numbered(job[0], 1, 1), {}, numbered(job[0], 1, 2)};
  batch[1].verb = Verb::fence;
  CHECK_EQ(job[0].endpoint->post(batch, 3), size_t(3));
  CHECK_EQ(job[0].wait(3).size(), size_t(3));
  CHECK(!has_come(job[1], 2));
  set("landing", 2);
  REQUIRE(eventually([&] { return has_come(job[1], 2); }));
  CHECK(has_come(job[1], 1));
}

CASE(after_a_fence_nothing_comes_before_a_get_has_read) {
  for (const char* relaxed : {"0", "1"}) {
    for (uint32_t seed = 1; seed <= 20; ++seed) {
      const Fresh fresh(seed);
      Job job(2, {{"ib_relaxed_ordering", relaxed}});
      set("sending", 0);  // until all are posted
      Request batch[3] = {numbered(job[0], 1, 1), {}, numbered(job[0], 1, 1)};
      batch[0].verb = Verb::get;
      batch[0].local_offset = 0;
      batch[1].verb = Verb::fence;
      CHECK_EQ(job[0].endpoint->post(batch, 3), size_t(3));
      set("sending", 1);
      CHECK_EQ(job[0].wait(3).size(), size_t(3));
      CHECK_EQ(word_at(job[0], 0), 0ull);
    }
  }
}

// The owner may write again what was read once it is told so.
CASE(after_a_fence_no_signal_and_no_atomic_comes_before_a_get_has_read) {
  for (bool atomics : {false, true}) {
    for (uint32_t seed = 1; seed <= 20; ++seed) {
      const Fresh fresh(seed);
      Job job(2);
      set("sending", 0);
      Request batch[3] = {numbered(job[0], 1, 1), {}, with_signal(request(Verb::signal, 1, 0, 0, 0), 3, 1)};
      batch[0].verb = Verb::get;
      batch[0].local_offset = 0;
      batch[1].verb = Verb::fence;
      if (atomics) batch[2] = atomic(Atomic::fetch_add, 1, 1);
      CHECK_EQ(job[0].endpoint->post(batch, 3), size_t(3));
      set("sending", 1);
      const auto told = [&] {
        return atomics ? word_at(job[1], 64) : __atomic_load_n(&job[1].words[3], __ATOMIC_ACQUIRE);
      };
      REQUIRE(eventually([&] { return told() == 1; }));
      set("sending", 0);
      const uint64_t later = 99;
      std::memcpy(job[1].bytes.data() + 16, &later, 8);
      set("sending", 1);
      CHECK_EQ(job[0].wait(3).size(), size_t(3));
      CHECK_EQ(word_at(job[0], 0), 0ull);
    }
  }
}

// An atomic that the device cannot do takes more than one trip.
CASE(after_a_fence_no_signal_comes_before_an_emulated_atomic_is_done) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    const Fresh fresh(seed);
    Job job(2);
    const uint64_t before = 5;  // not what it is first taken to be
    std::memcpy(job[1].bytes.data() + 64, &before, 8);
    std::vector<Request> left = {
        with_signal(request(Verb::signal, 1, 0, 0, 0), 3, 1), {}, atomic(Atomic::fetch_add, 1, 1)};
    left[1].verb = Verb::fence;
    left[2].bytes = 4;
    size_t ended = 0;
    REQUIRE(eventually([&] {
      while (!left.empty() && post(job[0], left.back())) left.pop_back();
      Completion c[3];
      ended += job[0].endpoint->poll(c, 3);
      return __atomic_load_n(&job[1].words[3], __ATOMIC_ACQUIRE) == 1;
    }));
    CHECK_EQ(word_at(job[1], 64), 6ull);
    CHECK_EQ(job[0].wait(3 - ended).size(), 3 - ended);
  }
}

// -- failures ---------------------------------------------------------------------------------------------------------

CASE(an_error_of_each_kind_is_told_with_its_peer) {
  for (int status = IBV_WC_LOC_LEN_ERR; status <= IBV_WC_GENERAL_ERR; ++status) {
    const Fresh fresh{uint32_t(status)};
    Job job(3);
    const uint32_t peer = 1 + uint32_t(status % 2), other = 3 - peer, vendor = 0x100 + uint32_t(status);
    end(queue_pair(job[0], peer), status, vendor);
    std::vector<Request> batch;
    for (uint64_t i = 0; i < 6; ++i) batch.push_back(numbered(job[0], i % 2 ? peer : other, i));
    CHECK_EQ(job[0].endpoint->post(batch.data(), 6), size_t(6));
    for (const Completion& c : job[0].wait(6)) {
      CHECK_EQ(c.peer, c.token % 2 ? peer : other);
      CHECK(c.code == (c.token % 2 ? Code::remote : Code::ok));
      if (c.code == Code::ok) continue;
      CHECK_EQ(c.detail, uint64_t(vendor) << 32 | uint64_t(status));
      CHECK_CONTAINS(verbs_detail(c.detail),
                     "(status " + std::to_string(status) + ", vendor error " + std::to_string(vendor) + ")");
    }
    const Completion late = job[0].run(numbered(job[0], peer, 7));
    CHECK(late.code == Code::remote);
    CHECK_EQ(uint32_t(late.detail), uint32_t(status));
    CHECK(job[0].run(numbered(job[0], other, 8)).code == Code::ok);
    CHECK(job[0].settle());
  }
}

CASE(a_failed_put_with_a_signal_is_told_once) {
  const Fresh fresh;
  Job job(2);
  set("poll_most", 1);  // the write's error comes before the signal's
  end(queue_pair(job[0], 1), IBV_WC_REM_OP_ERR, 0);
  CHECK_EQ(post(job[0], with_signal(numbered(job[0], 1, 1), 1, 1)), size_t(1));
  const std::vector<Completion> told = job[0].wait(1);
  CHECK_EQ(told.at(0).token, 1ull);
  CHECK(told.at(0).code == Code::remote);
  Completion c{};
  for (int i = 0; i < 100; ++i) CHECK_EQ(job[0].endpoint->poll(&c, 1), size_t(0));
  CHECK(job[0].endpoint->settled());
}

CASE(a_chain_that_the_device_refuses_ends_once) {
  constexpr size_t most = 6;  // that a queue pair of 8 work requests has room for
  for (int64_t taken = 0; taken < int64_t(most); ++taken) {
    for (bool chained : {false, true}) {
      const Fresh fresh{uint32_t(taken)};
      set("max_cqe", 16);
      Job job(3, {{"ib_depth", "8"}});
      std::vector<Request> batch;
      for (uint64_t i = 0; i < most; ++i) batch.push_back(numbered(job[0], 1, i));
      set("sending", 0);
      fail("ibv_post_send", taken, ENOMEM);
      size_t posted = chained ? job[0].endpoint->post(batch.data(), most) : 0;
      while (posted < most && !failed()) posted += post(job[0], batch[posted]);
      CHECK(failed());
      std::set<uint64_t> tokens;
      set("sending", 1);
      for (const Completion& c : job[0].wait(posted)) {
        CHECK(c.code == Code::remote);
        CHECK_EQ(verbs_detail(c.detail), std::strerror(ENOMEM));
        tokens.insert(c.token);
      }
      CHECK_EQ(tokens.size(), posted);
      // As many as there is room for, none polled: what was refused takes none of it.
      uint64_t more = 0;
      for (uint64_t i = 0; i < 16; ++i) more += post(job[0], numbered(job[0], i % 2 ? 2 : 0, 10 + i));
      CHECK_EQ(more, 2 * most);
      CHECK(eventually([] { return count("under_way") == 0; }));
      for (const Completion& c : job[0].wait(more)) CHECK(c.code == Code::ok);
      CHECK(job[0].settle());
      CHECK_EQ(count("overruns"), fresh.overruns);
    }
  }
}

CASE(a_poll_that_fails_ends_what_is_under_way) {
  const Fresh fresh;
  Job job(3);
  set("landing", 1);
  CHECK(job[0].run(numbered(job[0], 1, 1)).code == Code::ok);
  CHECK_EQ(post(job[0], numbered(job[0], 1, 2)), size_t(1));
  fail("ibv_poll_cq", 0, EIO);
  CHECK(!job[0].endpoint->settled());
  CHECK(failed());
  for (int i = 0; i < 100; ++i) CHECK(!job[0].endpoint->settled());
  for (const Completion& c : job[0].wait(1)) {
    CHECK(c.code == Code::remote);
    CHECK_EQ(c.token, 2ull);
    CHECK_EQ(verbs_detail(c.detail), std::strerror(EIO));
  }
  CHECK(job[0].endpoint->settled());
  for (uint64_t i = 0; i < 1000; ++i) CHECK(job[0].run(numbered(job[0], 2, i)).code == Code::ok);
  CHECK(job[0].run(numbered(job[0], 1, 3)).code == Code::remote);
}

// -- limits -----------------------------------------------------------------------------------------------------------

CASE(ten_thousand_puts_through_short_queues) {
  const Fresh fresh;
  set("max_qp_wr", 9);
  set("max_cqe", 16);
  set("rd_atomic", 1);
  Job job(3, {{"queue", "40"}});
  constexpr uint64_t puts = 10000;
  uint64_t posted = 0, ended = 0;
  const auto deadline = Clock::now() + std::chrono::duration<double>(90);
  while (ended < puts && Clock::now() < deadline) {
    while (posted < puts) {
      Request r = numbered(job[0], uint32_t(posted % 3), posted);
      if (posted % 4 == 0) r = with_signal(r, 1, 1);
      if (posted % 7 == 0) r.verb = Verb::get;
      if (!post(job[0], r)) break;
      ++posted;
    }
    Completion c[16];
    const size_t n = job[0].endpoint->poll(c, 16);
    for (size_t i = 0; i < n; ++i) CHECK(c[i].code == Code::ok);
    ended += n;
  }
  CHECK_EQ(ended, puts);
  CHECK(job[0].settle());
  CHECK_EQ(count("overruns"), fresh.overruns);
  CHECK_EQ(job[0].words[1] + job[1].words[1] + job[2].words[1], puts / 4);
}

CASE(a_completion_queue_that_nobody_polls_is_not_overrun) {
  const Fresh fresh;
  set("max_cqe", 16);
  Job job(3, {{"ib_depth", "8"}});
  uint64_t posted = 0;
  for (uint64_t i = 0; i < 30; ++i) posted += post(job[0], numbered(job[0], uint32_t(i % 3), i));
  CHECK(posted >= 14);
  CHECK(eventually([] { return count("under_way") == 0; }));
  CHECK_EQ(count("overruns"), fresh.overruns);
  for (const Completion& c : job[0].wait(posted)) CHECK(c.code == Code::ok);
}

CASE(numbers_of_work_requests_wrap_around) {
  const Fresh fresh;
  Job job(2, {{"ib_depth", "8"}});
  verbs::Queue& q = queue(job[0], 1);
  q.posted = q.completed = q.retired = q.wrote = q.tripped = q.landed = q.settled = (uint64_t(1) << 48) - 16;
  for (uint64_t i = 0; i < 40; ++i) {
    CHECK(job[0].run(numbered(job[0], 1, i)).code == Code::ok);
    REQUIRE(job[0].settle());
    CHECK(has_come(job[1], i));
  }
  CHECK(q.completed > uint64_t(1) << 48);
}

// -- what cannot be made ----------------------------------------------------------------------------------------------

CASE(what_fails_while_a_job_is_made_leaves_nothing) {
  for (const char* function :
       {"ibv_get_device_list", "ibv_open_device", "ibv_query_device", "ibv_query_port", "ibv_query_gid", "ibv_alloc_pd",
        "ibv_create_cq", "ibv_create_qp", "ibv_reg_mr", "ibv_modify_qp", "ibv_alloc_td", "ibv_alloc_parent_domain",
        "ibv_post_send", "ibv_poll_cq"}) {
    const std::string name = function;
    const bool spared = name == "ibv_open_device" || name == "ibv_poll_cq" || name == "ibv_alloc_td" ||
                        name == "ibv_alloc_parent_domain" || name == "ibv_query_gid" ||
                        name == "ibv_query_device";  // done without, or asked again
    for (int64_t skipped = 0;; ++skipped) {
      const Fresh fresh;
      set("devices", 1);
      fail(function, skipped, ENOMEM);
      const std::string what = thrown([] { Job job(2); });
      if (!failed()) break;
      if (!spared && what.empty()) check::fail(__FILE__, __LINE__, name + " may fail unnoticed");
      REQUIRE(skipped < 100);
    }
  }
}

CASE(what_to_do_is_said_where_it_can_help) {
  const Fresh fresh;
  set("devices", 1);
  const auto advice = [](const char* function, int64_t skipped, int error) {
    fail(function, skipped, error);
    const std::string what = thrown([] { Job job(1); });
    CHECK(failed());
    CHECK_CONTAINS(what, std::strerror(error));
    return what;
  };
  for (const char* function : {"ibv_reg_mr", "ibv_create_cq", "ibv_create_qp"}) {
    for (int64_t skipped : {0, 1}) {
      CHECK_CONTAINS(advice(function, skipped, ENOMEM), "The locked-memory limit of this process is");
      CHECK(advice(function, skipped, EFAULT).find("locked-memory") == std::string::npos);
    }
  }
  CHECK_CONTAINS(advice("ibv_open_device", 1, EACCES), "--device=/dev/infiniband");
  CHECK_CONTAINS(advice("ibv_alloc_pd", 0, ENOSPC), "no protection domain");

  CHECK(advice("ibv_modify_qp", 0, ENETUNREACH).find("GIN_IB_GID_INDEX") == std::string::npos);
  CHECK_CONTAINS(advice("ibv_modify_qp", 1, ENETUNREACH), "rank 0 (fake0 port 1, GID 1, 10.0.1.1");
  CHECK_CONTAINS(advice("ibv_modify_qp", 1, ETIMEDOUT), "GIN_IB_GID_INDEX");
  CHECK_CONTAINS(advice("ibv_modify_qp", 2, EINVAL), "did not become ready to send");

  set("pkeys", 2);
  CHECK_CONTAINS(thrown([] { Job job(1, {{"ib_pkey_index", "2"}}); }), "2 partition keys, and none with index 2");
  CHECK_EQ(thrown([] { Job job(1, {{"ib_pkey_index", "1"}}); }), "");
  const struct {
    const char *name, *part;
  } ports[] = {{"active", "bring its link up"}, {"atomics", "has no atomics"}, {"gids", "it has no GID"}};
  for (const auto& port : ports) {
    set(port.name, 0);
    CHECK_CONTAINS(thrown([] { Job job(1); }), port.part);
    set(port.name, 2);
  }
  set("inline", 32);
  CHECK_CONTAINS(thrown([] { Job job(1); }), "GIN_IB_INLINE");
}

CASE(infiniband_ports_are_reached_by_their_lids) {
  const Fresh fresh;
  set("ethernet", 0);
  for (int64_t gids : {0, 1}) {
    set("gids", gids);
    Job job(2);
    CHECK(job[0].run(numbered(job[0], 1, 1)).code == Code::ok);
    CHECK(job[0].settle());
  }
}

// -- processes --------------------------------------------------------------------------------------------------------

CASE(the_child_of_a_fork_destroys_nothing) {
  for (const char* refused : {"", "ibv_alloc_parent_domain"}) {
    const Fresh fresh;
    fail(refused, 0, ENOMEM);
    Job job(2);
    const int64_t before = count("all");
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      for (auto& rank : job.ranks) rank->endpoint.reset(), rank->fabric.reset();
      _exit(count("all") == before ? 0 : 1);
    }
    int status = -1;
    CHECK(eventually([&] { return waitpid(child, &status, WNOHANG) == child; }));
    CHECK_EQ(status, 0);
    CHECK(job[0].run(numbered(job[0], 1, 1)).code == Code::ok);
    CHECK(job[0].settle());
  }
}

CHECK_MAIN
#endif

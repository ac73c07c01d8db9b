// The verbs wire: three ranks of one process on one device, each verb, what it refuses, and what happens when a peer goes.
// Without a usable device only what is refused is tested, unless GIN_TEST_VERBS=1 demands one. fake/verbs.cpp has some.
#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <thread>
#include <vector>

#include "check.h"
#include "error.h"
#include "verbs_job.h"

using namespace verbs_job;

namespace {

std::vector<std::string> usable_devices() {
  std::vector<std::string> names;
  try {
    for (const VerbsPort& port : verbs_ports())
      if (port.usable) names.push_back(port.device);
  } catch (const Error&) {
  }
  return names;
}

bool usable() {
  const char* demanded = std::getenv("GIN_TEST_VERBS");
  if (demanded && std::string(demanded) == "1") return true;
  if (!usable_devices().empty()) return true;
  std::puts("skip: no usable RDMA device");
  return false;
}

#define NEEDS_DEVICE() \
  if (!usable()) return

#define NEEDS_TWO_DEVICES()                              \
  if (usable_devices().size() < 2) {                     \
    std::puts("skip: fewer than 2 usable RDMA devices"); \
    return;                                              \
  }

}  // namespace

CASE(refuses_unknown_options) {
  CHECK_THROWS(Error, "ib_hca", make_fabric("verbs", 0, 1, {{"ib_nothing", "1"}}));
  CHECK_THROWS(Error, "has no option", make_fabric("shm", 0, 1, {{"ib_hca", "mlx5_0"}}));
}

CASE(refuses_a_device_that_does_not_exist) {
  CHECK_THROWS(Error, "verbs", make_fabric("verbs", 0, 1, {{"ib_hca", "no_such_device"}}));
}

CASE(refuses_a_local_rank_that_ib_hca_leaves_out) {
  const Options options = {{"ib_hca", "mlx5_0,mlx5_1/mlx5_2"}, {"local_rank", "2"}};
  CHECK_THROWS(Error, "for 2 ranks of a host, and this is local rank 2", make_fabric("verbs", 0, 1, options));
  CHECK_THROWS(Error, "for 1 ranks of a host", make_fabric("verbs", 0, 1, {{"ib_hca", "a/"}, {"local_rank", "1"}}));
  CHECK_THROWS(Error, "no device for local rank 1",
               make_fabric("verbs", 0, 1, {{"ib_hca", "a//b"}, {"local_rank", "1"}}));
}

CASE(refuses_more_nics_than_there_are) {
  NEEDS_DEVICE();
  CHECK_THROWS(Error, "GIN_IB_NICS is 8", make_fabric("verbs", 0, 1, {{"ib_nics", "8"}}));
  CHECK_THROWS(Error, "ib_nics", make_fabric("verbs", 0, 1, {{"ib_nics", "9"}}));
}

CASE(each_local_rank_has_the_device_named_for_it) {
  NEEDS_TWO_DEVICES();
  const std::vector<std::string> names = usable_devices();
  for (const char* rank : {"0", "1"}) {
    const std::string mine = names[std::string(rank) == "1"];
    const std::vector<VerbsUse> used = verbs_used({{"ib_hca", names[0] + "/" + names[1]}, {"local_rank", rank}});
    CHECK_EQ(used.size(), size_t(1));
    CHECK(used[0].port.starts_with(mine));
    CHECK_CONTAINS(used[0].why, "GIN_IB_HCA for local rank " + std::string(rank));
  }
  CHECK(verbs_used({{"local_rank", "0"}})[0].port != verbs_used({{"local_rank", "1"}})[0].port);
  CHECK(verbs_used({{"local_rank", "0"}})[0].port == verbs_used({{"local_rank", "2"}})[0].port);
}

CASE(endpoints_take_the_nics_of_a_rank_in_turn) {
  NEEDS_TWO_DEVICES();
  {
    Job job(3, {{"ib_nics", "2"}}, 2);
    const std::vector<std::string> names = usable_devices();
    for (const std::string& name : names) CHECK_CONTAINS(job[0].fabric->about(), name + " port 1");
    CHECK_EQ(verbs_live().regions, int64_t(3 * 2 * (3 + 1) + 3 * 2));  // three regions and a board, words of endpoints
    for (int nic = 0; nic < 2; ++nic) {
      std::iota(job[0].bytes.begin(), job[0].bytes.end(), char(nic));
      CHECK(job[0].run(with_signal(request(Verb::put, 1, 3, 5, 100001), 1, 1)).code == Code::ok);
      CHECK(job[0].settle());
      CHECK(std::equal(job[0].bytes.begin() + 5, job[0].bytes.begin() + 5 + 100001, job[1].bytes.begin() + 3));
      CHECK(job[0].run(request(Verb::get, 2, 0, 200000, 4097)).code == Code::ok);
      const uint64_t before = word_at(job[0], 64);
      CHECK(job[0].run(atomic(Atomic::fetch_add, 0, 5)).code == Code::ok);
      CHECK_EQ(word_at(job[0], 64), before + 5);
      std::swap(job[0].endpoint, job[0].other);
    }
    CHECK_EQ(job[1].words[1], 2ull);
  }
  const VerbsLive left = verbs_live();
  CHECK_EQ(left.devices + left.regions + left.completion_queues + left.queue_pairs, int64_t(0));
}

CASE(ranks_need_equal_numbers_of_nics) {
  NEEDS_TWO_DEVICES();
  Rank one(0, 2, {}, 1), two(1, 2, {{"ib_nics", "2"}}, 1);
  CHECK_THROWS(Error, "GIN_IB_NICS", one.fabric->connect(1, two.fabric->address(0)));
  CHECK_THROWS(Error, "GIN_IB_NICS", two.fabric->connect(0, one.fabric->address(1)));
}

CASE(puts_of_every_kind_of_size) {
  NEEDS_DEVICE();
  Job job(2);
  for (uint64_t size : {0ull, 1ull, 7ull, 63ull, 64ull, 65ull, 4095ull, 4097ull, 100001ull}) {
    std::iota(job[0].bytes.begin(), job[0].bytes.end(), char(size));
    std::fill(job[1].bytes.begin(), job[1].bytes.end(), 0);
    const Completion c = job[0].run(request(Verb::put, 1, 3, 5, size));
    CHECK(c.code == Code::ok);
    CHECK_EQ(c.token, 0x1234567890abcdefull);
    CHECK(job[0].settle());
    CHECK(std::equal(job[0].bytes.begin() + 5, job[0].bytes.begin() + 5 + long(size), job[1].bytes.begin() + 3));
    CHECK_EQ(int(job[1].bytes[3 + size]), 0);
  }
}

CASE(values_signals_and_gets) {
  NEEDS_DEVICE();
  Job job(3);
  for (uint64_t bytes = 1; bytes <= 8; ++bytes) {
    Request r = with_signal(request(Verb::value, 2, 16 * bytes, 0, bytes), 5, 3);
    r.value = 0x8877665544332211ull;
    CHECK(job[1].run(r).code == Code::ok);
    const uint64_t mask = bytes == 8 ? ~0ull : (1ull << 8 * bytes) - 1;
    CHECK_EQ(word_at(job[2], 16 * bytes), r.value & mask);
  }
  CHECK_EQ(job[2].words[5], 24ull);
  CHECK(job[0].run(with_signal(request(Verb::signal, 2, 0, 0, 0), 5, 1ull << 40)).code == Code::ok);
  CHECK(job[0].run(with_signal(request(Verb::put, 2, 0, 0, 0), 6, 1)).code == Code::ok);
  CHECK_EQ(job[2].words[5], 24ull + (1ull << 40));
  CHECK_EQ(job[2].words[6], 1ull);
  std::iota(job[2].bytes.begin(), job[2].bytes.end(), char(1));
  CHECK(job[0].run(request(Verb::get, 2, 11, 22, 10001)).code == Code::ok);
  CHECK(std::equal(job[2].bytes.begin() + 11, job[2].bytes.begin() + 11 + 10001, job[0].bytes.begin() + 22));
}

CASE(its_own_rank_is_a_peer) {
  NEEDS_DEVICE();
  Job job(1);
  job[0].bytes[100] = 42;
  CHECK(job[0].run(with_signal(request(Verb::put, 0, 200, 100, 1), 1, 1)).code == Code::ok);
  CHECK(job[0].settle());
  CHECK_EQ(int(job[0].bytes[200]), 42);
  CHECK_EQ(job[0].words[1], 1ull);
}

CASE(atomics_of_eight_bytes) {
  NEEDS_DEVICE();
  Job job(2);
  auto* word = reinterpret_cast<uint64_t*>(job[1].bytes.data() + 64);
  *word = 0b1100;
  const struct {
    Atomic op;
    uint64_t operand, compare, before, after;
  } steps[] = {
      {Atomic::fetch_add, 3, 0, 12, 15},
      {Atomic::compare_swap, 7, 14, 15, 15},
      {Atomic::compare_swap, 7, 15, 15, 7},
      {Atomic::swap, 0b1010, 0, 7, 0b1010},
      {Atomic::fetch_and, 0b0110, 0, 0b1010, 0b0010},
      {Atomic::fetch_or, 0b101, 0, 2, 7},
      {Atomic::fetch_xor, ~0ull, 0, 7, ~7ull},
  };
  for (const auto& s : steps) {
    CHECK(job[0].run(atomic(s.op, 1, s.operand, s.compare)).code == Code::ok);
    CHECK_EQ(job[0].results[0], s.before);
    CHECK_EQ(*word, s.after);
  }
  uint64_t here = 0;
  Request addressed = atomic(Atomic::fetch_add, 1, 1);
  addressed.local_region = local_address;
  addressed.local_offset = uint64_t(uintptr_t(&here));
  CHECK(job[0].run(addressed).code == Code::ok);
  CHECK_EQ(here, ~7ull);
}

CASE(atomics_of_four_bytes_leave_their_neighbour) {
  NEEDS_DEVICE();
  Job job(2);
  for (uint64_t at : {64ull, 68ull}) {
    auto* words = reinterpret_cast<uint32_t*>(job[1].bytes.data() + 64);
    words[0] = words[1] = 0xfffffffeu;
    const uint64_t mine = (at - 64) / 4;
    Request r = atomic(Atomic::fetch_add, 1, 3);
    r.bytes = 4;
    r.remote_offset = at;
    CHECK(job[0].run(r).code == Code::ok);
    CHECK_EQ(job[0].results[0] & 0xffffffffu, 0xfffffffeull);
    CHECK_EQ(words[mine], 1u);
    r.atomic = Atomic::compare_swap;
    r.compare = 2, r.value = 9;
    CHECK(job[0].run(r).code == Code::ok);
    CHECK_EQ(words[mine], 1u);
    r.compare = 1;
    CHECK(job[0].run(r).code == Code::ok);
    CHECK_EQ(words[mine], 9u);
    CHECK_EQ(words[1 - mine], 0xfffffffeu);
    r.remote_offset = at + 2;
    CHECK(job[0].run(r).code == Code::range);
  }
}

CASE(emulated_atomics_lose_nothing) {
  NEEDS_DEVICE();
  constexpr int each = 40;
  Job job(3);
  size_t left[2] = {each, each};
  for (int i = 0; i < each; ++i) {
    for (uint32_t r = 0; r < 2; ++r) {
      Request x = atomic(Atomic::fetch_xor, 2, 1ull << (r * each / 2 + i % 20));
      CHECK_EQ(job[r].endpoint->post(&x, 1), size_t(1));
    }
  }
  const auto deadline = Clock::now() + std::chrono::duration<double>(patience);
  while (left[0] + left[1] && Clock::now() < deadline) {
    for (uint32_t r = 0; r < 2; ++r) {
      Completion c[8];
      const size_t n = job[r].endpoint->poll(c, 8);
      for (size_t i = 0; i < n; ++i) CHECK(c[i].code == Code::ok);
      left[r] -= n;
    }
  }
  CHECK_EQ(left[0] + left[1], size_t(0));
  CHECK_EQ(word_at(job[2], 64), 0ull);  // every bit was turned twice
}

CASE(emulated_atomics_at_once_each_find_another_value) {
  NEEDS_DEVICE();
  constexpr uint32_t each = 300;
  Job job(2);
  uint32_t old[2][each];
  size_t posted = 0, ended = 0;
  const auto deadline = Clock::now() + std::chrono::duration<double>(patience);
  while (ended < 2 * each && Clock::now() < deadline) {
    if (posted < 2 * each) {
      Request x = atomic(Atomic::fetch_add, 1, 1);
      x.bytes = 4;
      x.remote_offset = 64 + 4 * (posted % 2);  // both halves of one word of 8 bytes
      x.local_region = local_address;
      x.local_offset = uint64_t(uintptr_t(&old[posted % 2][posted / 2]));
      posted += job[0].endpoint->post(&x, 1);
    }
    Completion c[8];
    const size_t n = job[0].endpoint->poll(c, 8);
    for (size_t i = 0; i < n; ++i) CHECK(c[i].code == Code::ok);
    ended += n;
  }
  CHECK_EQ(ended, size_t(2 * each));
  CHECK_EQ(word_at(job[1], 64), uint64_t(each) << 32 | each);
  for (auto& values : old) {
    std::sort(values, values + each);
    for (uint32_t i = 0; i < each; ++i) CHECK_EQ(values[i], i);
  }
}

CASE(a_short_queue_takes_ten_thousand_puts) {
  NEEDS_DEVICE();
  Job job(2, {{"queue", "4"}, {"ib_depth", "8"}});
  constexpr uint64_t puts = 10000;
  uint64_t posted = 0, ended = 0;
  const auto deadline = Clock::now() + std::chrono::duration<double>(60);
  while (ended < puts && Clock::now() < deadline) {
    Request batch[16];
    const uint64_t count = std::min<uint64_t>(16, puts - posted);
    for (uint64_t i = 0; i < count; ++i) {
      batch[i] = with_signal(request(Verb::value, 1, 8 * ((posted + i) % 1000), 0, 8), 2, 1);
      batch[i].value = posted + i;
      batch[i].token = posted + i;
    }
    posted += job[0].endpoint->post(batch, count);
    Completion c[16];
    const size_t n = job[0].endpoint->poll(c, 16);
    for (size_t i = 0; i < n; ++i) {
      CHECK(c[i].code == Code::ok);
      CHECK_EQ(c[i].token, ended + i);
    }
    ended += n;
    CHECK(posted - ended <= 4);
  }
  CHECK_EQ(ended, puts);
  CHECK_EQ(job[1].words[2], puts);
  for (uint64_t i = 0; i < 1000; ++i) CHECK_EQ(word_at(job[1], 8 * i), puts - 1000 + i);
}

CASE(a_fence_orders_relaxed_writes) {
  NEEDS_DEVICE();
  for (const char* relaxed : {"0", "1"}) {
    Job job(2, {{"ib_relaxed_ordering", relaxed}});
    Request batch[3] = {request(Verb::put, 1, 0, 0, 4096), {}, request(Verb::put, 1, 8192, 0, 4096)};
    batch[1].verb = Verb::fence;
    CHECK_EQ(job[0].endpoint->post(batch, 3), size_t(3));
    for (const Completion& c : job[0].wait(3)) CHECK(c.code == Code::ok);
    CHECK(job[0].settle());
  }
}

CASE(refuses_what_is_out_of_range) {
  NEEDS_DEVICE();
  Job job(2, {{"max_message", "65536"}});
  CHECK_EQ(job[0].fabric->max_message(), uint64_t(65536));
  const Request bad[] = {
      request(Verb::put, 2, 0, 0, 8),
      request(Verb::put, 1, data_bytes - 7, 0, 8),
      request(Verb::put, 1, 0, data_bytes - 7, 8),
      request(Verb::get, 1, ~0ull - 3, 0, 8),
      request(Verb::put, 1, 0, 0, 65537),
      request(Verb::value, 1, 0, 0, 9),
      with_signal(request(Verb::put, 1, 0, 0, 8), control_words, 1),
  };
  for (const Request& r : bad) CHECK(job[0].run(r).code == Code::range);
  CHECK(job[0].run(request(Verb::put, 1, data_bytes - 8, 0, 8)).code == Code::ok);
}

CASE(an_access_violation_ends_that_peer_only) {
  NEEDS_DEVICE();
  Job job(3);
  job[0].fabric->remove_region(data);
  job[0].exported_data = job[0].fabric->add_region(data, job[0].bytes.data(), data_bytes);
  std::string forged = job[1].exported_data;
  forged.replace(forged.rfind(' ') + 1, std::string::npos, "4294967295");  // a key that nobody gave out
  job[0].fabric->import_region(data, 1, forged, nullptr);
  job[0].fabric->import_region(data, 2, job[2].exported_data, nullptr);

  std::vector<Request> batch;
  for (uint64_t i = 0; i < 8; ++i) {
    batch.push_back(request(Verb::put, i % 2 ? 1 : 2, 4096 * i, 0, 4096));
    batch.back().token = i;
  }
  CHECK_EQ(job[0].endpoint->post(batch.data(), batch.size()), batch.size());
  for (const Completion& c : job[0].wait(batch.size())) {
    CHECK_EQ(uint32_t(c.code), uint32_t(c.token % 2 ? Code::remote : Code::ok));
    if (c.code == Code::remote) CHECK_CONTAINS(verbs_detail(c.detail), "remote access error");
  }
  CHECK(job[0].run(request(Verb::put, 1, 0, 0, 8)).code == Code::remote);
  CHECK(job[0].run(with_signal(request(Verb::put, 2, 0, 0, 8), 0, 1)).code == Code::ok);
  CHECK(job[0].settle());
}

CASE(a_peer_that_vanishes) {
  NEEDS_DEVICE();
  Job job(3, {{"ib_timeout", "12"}, {"ib_retry", "3"}});
  CHECK(job[0].run(request(Verb::put, 1, 0, 0, 8)).code == Code::ok);
  job.ranks[1].reset();

  // The put that was complete cannot be shown to have settled: that is said without a request.
  CHECK(!job[0].endpoint->settled());
  const std::vector<Completion> news = job[0].settle_or_hear();
  CHECK_EQ(news.at(0).token, no_request);
  CHECK_EQ(news.at(0).peer, 1u);
  CHECK_CONTAINS(verbs_detail(news.at(0).detail), "transport retry counter exceeded");

  CHECK(job[0].run(request(Verb::put, 1, 0, 0, 8)).code == Code::remote);
  CHECK(job[0].run(atomic(Atomic::swap, 1, 1)).code == Code::remote);
  CHECK(job[0].run(with_signal(request(Verb::put, 2, 0, 0, 8), 0, 1)).code == Code::ok);
  CHECK_EQ(job[2].words[0], 1ull);
}

CASE(a_peer_that_vanishes_under_load) {
  NEEDS_DEVICE();
  Job job(2, {{"ib_timeout", "12"}, {"ib_retry", "3"}});
  job.ranks[1].reset();
  std::vector<Request> batch;
  for (uint64_t i = 0; i < 60; ++i) batch.push_back(with_signal(request(Verb::put, 1, 0, 0, 512), 0, 1));
  CHECK_EQ(job[0].endpoint->post(batch.data(), batch.size()), batch.size());
  for (const Completion& c : job[0].wait(batch.size())) {
    CHECK(c.code == Code::remote);
    CHECK_CONTAINS(verbs_detail(c.detail), "transport retry counter exceeded");
  }
}

CASE(what_is_under_way_to_an_abandoned_peer_ends_without_retries) {
  NEEDS_DEVICE();
  Job job(3, {{"ib_timeout", "21"},
              {"ib_retry", "6"}});  // a minute until the device gives a peer up, more than our patience
  job.ranks[1].reset();
  std::vector<Request> batch;
  for (uint64_t i = 0; i < 60; ++i) {
    batch.push_back(with_signal(request(Verb::put, i % 6 ? 1 : 2, 512 * i, 0, 512), 0, 1));
    batch.back().token = i;
  }
  CHECK_EQ(job[0].endpoint->post(batch.data(), batch.size()), batch.size());
  for (int again = 0; again < 2; ++again) job[0].endpoint->abandon(1);
  for (const Completion& c : job[0].wait(batch.size())) {
    CHECK(c.code == (c.token % 6 ? Code::remote : Code::ok));
    if (c.code != Code::ok) CHECK_CONTAINS(verbs_detail(c.detail), "Flushed");
  }
  CHECK(job[0].settle());
  CHECK(job[0].run(request(Verb::put, 1, 0, 0, 8)).code == Code::remote);
  CHECK(job[0].run(with_signal(request(Verb::put, 2, 0, 0, 8), 0, 1)).code == Code::ok);
  CHECK_EQ(job[2].words[0], 11ull);
}

CASE(an_abandoned_peer_is_not_waited_for) {
  NEEDS_DEVICE();
  Job job(2);
  job[0].endpoint->abandon(1);
  const std::vector<Completion> news = job[0].wait(1);
  CHECK_EQ(news.at(0).token, no_request);
  CHECK(news.at(0).code == Code::remote);
  CHECK_EQ(news.at(0).peer, 1u);
  CHECK(job[0].settle());
  CHECK(job[0].fabric->leave(patience));  // though the other never does
}

CASE(a_probe_names_who_is_not_reached) {
  NEEDS_DEVICE();
  const Options options{{"ib_timeout", "12"}, {"ib_retry", "2"}};
  Rank a(0, 2, options), b(1, 2, options);
  std::string wrong = b.fabric->address(0);
  wrong.replace(wrong.rfind(' ') + 1, std::string::npos, "16777214");  // no such queue pair
  a.fabric->connect(0, a.fabric->address(0));
  a.fabric->connect(1, wrong);
  CHECK_THROWS(Error, "rank 1 is not reached", a.fabric->probe(patience));
  CHECK_THROWS(Error, "use one wire", b.fabric->connect(0, "gin-shm-1 7"));
}

CASE(leaving_waits_for_the_others) {
  NEEDS_DEVICE();
  Job job(2);
  CHECK(!job[0].fabric->leave(0.2));  // the other is still there
  bool left[2] = {false, false};
  std::thread other([&] { left[1] = job[1].fabric->leave(patience); });
  left[0] = job[0].fabric->leave(patience);
  other.join();
  CHECK(left[0] && left[1]);
}

CASE(nothing_stays_open) {
  NEEDS_DEVICE();
  for (int i = 0; i < 5; ++i) {
    Job job(2);
    CHECK(job[0].run(request(Verb::put, 1, 0, 0, 8)).code == Code::ok);
    CHECK(verbs_live().queue_pairs >= 4);
  }
  const VerbsLive left = verbs_live();
  CHECK_EQ(left.devices + left.regions + left.completion_queues + left.queue_pairs, int64_t(0));
}

CHECK_MAIN

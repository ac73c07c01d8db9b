// The engine where the loss of a peer is no failure of the job: who is lost, and that the others' operations go on.
#include <thread>
#include <vector>

#include "check.h"
#include "gin/backends/ibrc_proxy/producer.h"
#include "proxy/proxy.h"
#include "wire/faulty.h"
#include "wire/registry.h"

using namespace gin;
using namespace gin::proxy;

namespace {

constexpr uint32_t ranks = 3, window = 1, words = 16;

// Rank 0 of three whose windows all lie here, over a wire with faults.
struct Stage {
  explicit Stage(bool peers_fail = true, const wire::Options& faults = {{"fault.hold", "0"}}, uint32_t contexts = 1)
      : layout{contexts, 4, ranks}, lost(ranks + 1), records(ranks) {
    fabric = wire::make_fabric("shm", 0, ranks, faults);
    const uint64_t control_words = layout.bytes() / 8;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      control.emplace_back(control_words);
      memory.emplace_back(words);
    }
    add_region(0, control);
    add_region(window, memory);
    ProxyOptions options;
    options.depth = 16;
    if (peers_fail) options.losses = {lost.data(), records.data()};
    proxy = std::make_unique<Proxy>(fabric, layout, 4, record, nullptr, options);
  }

  void add_region(uint32_t number, std::vector<std::vector<uint64_t>>& parts) {
    const std::string exported = fabric->add_region(number, parts[0].data(), 8 * parts[0].size());
    for (uint32_t rank = 0; rank < ranks; ++rank) fabric->import_region(number, rank, exported, parts[rank].data());
  }

  void set_fault(const char* name, uint64_t value) {
    wire::set_faults(*wire::faults_of(*fabric), {{std::string("fault.") + name, std::to_string(value)}});
  }

  const ibrc::Ring& ring(uint32_t context = 0) { return proxy->rings()[context]; }

  // Returns the operation's ticket.
  uint64_t push(const ibrc::Fields& f, uint32_t context = 0) {
    const uint32_t slots = ibrc::slots(f);
    const uint64_t first = ibrc::reserve(ring(context), slots).first;
    CHECK(ibrc::finds_room(ring(context), first + slots));
    ibrc::publish(ring(context), first, f);
    return first + slots;
  }

  void run() {
    while (proxy->step()) {
    }
  }

  std::shared_ptr<wire::Fabric> fabric;
  Record record{};
  ControlLayout layout;
  std::vector<uint32_t> lost;
  std::vector<Record> records;
  std::vector<std::vector<uint64_t>> control, memory;
  std::unique_ptr<Proxy> proxy;
};

ibrc::Fields value_to(uint32_t peer, uint64_t value, uint32_t counter = 0) {
  ibrc::Fields f;
  f.op = ibrc::Op::value;
  f.peer = peer;
  f.dst_window = window;
  f.bytes = 8;
  f.immediate = value;
  f.counter = counter;
  f.has_signal = true;
  f.id = 1;
  return f;
}

ibrc::Fields add_to(uint32_t peer, uint32_t slot) {
  ibrc::Fields f;
  f.op = ibrc::Op::fetch_add;
  f.peer = peer;
  f.dst_window = window;
  f.dst_offset = 8;
  f.bytes = 8;
  f.immediate = 5;
  f.id = slot;
  return f;
}

}  // namespace

CASE(one_peer_fails_and_another_goes_on) {
  Stage stage;
  stage.set_fault("fail_peer", 1);
  stage.set_fault("fail_code", uint64_t(Code::remote));
  stage.set_fault("fail_detail", 12);
  stage.push(value_to(1, 41, 1));
  stage.push(value_to(2, 42, 2));
  stage.run();
  CHECK_EQ(stage.record.state, Record::empty);
  CHECK(stage.lost == (std::vector<uint32_t>{0, 1, 0, 1}));
  const Record& why = stage.records[1];
  CHECK_EQ(why.state, Record::complete);
  CHECK(why.code == Code::remote && why.operation == Operation::put_value);
  CHECK_EQ(why.peer, 1);
  CHECK_EQ(why.id, 1u);
  CHECK_EQ(why.detail, 12ull);
  CHECK_EQ(stage.records[2].state, Record::empty);
  CHECK_EQ(stage.memory[2][0], 42ull);
  CHECK_EQ(stage.memory[1][0], 0ull);
  // The lost one's counter counts, as nothing of it is under way any more.
  CHECK_EQ(stage.ring().counters[0], 1ull);
  CHECK_EQ(stage.ring().counters[1], 1ull);
  CHECK_EQ(stage.ring().progress->retired, 2ull);

  // From now on without the wire, which would take them again.
  stage.set_fault("fail_peer", ~0ull);
  for (uint64_t i = 0; i < 40; ++i) {  // more than the ring holds
    stage.push(value_to(1, 100 + i, 1));
    stage.push(value_to(2, 100 + i, 2));
    stage.run();
  }
  CHECK_EQ(stage.memory[1][0], 0ull);
  CHECK_EQ(stage.memory[2][0], 139ull);
  CHECK_EQ(stage.ring().counters[0], 41ull);
  CHECK_EQ(stage.ring().counters[1], 41ull);
  CHECK_EQ(stage.ring().progress->retired, 82ull);
  CHECK_EQ(stage.ring().progress->settled, 82ull);
  CHECK_EQ(stage.record.state, Record::empty);
  CHECK_EQ(stage.records[1].detail, 12ull);  // the first one stands
  CHECK_EQ(stage.proxy->stats().failures, 41ull);
}

CASE(atomics_of_a_lost_peer_end_with_0) {
  Stage stage;
  stage.memory[1][1] = stage.memory[2][1] = 7;
  stage.ring().results[3].value = 99;  // of an earlier atomic
  stage.set_fault("fail_peer", 1);
  const uint64_t failed = stage.push(add_to(1, 3)), good = stage.push(add_to(2, 4));
  stage.run();
  CHECK_EQ(stage.ring().results[3].done, failed);
  CHECK_EQ(stage.ring().results[3].value, 0ull);
  CHECK_EQ(stage.ring().results[4].done, good);
  CHECK_EQ(stage.ring().results[4].value, 7ull);
  CHECK_EQ(stage.memory[2][1], 12ull);
  stage.ring().results[3].value = 99;
  const uint64_t refused = stage.push(add_to(1, 3));
  stage.run();
  CHECK_EQ(stage.ring().results[3].done, refused);
  CHECK_EQ(stage.ring().results[3].value, 0ull);
  CHECK_EQ(stage.memory[1][1], 7ull);
}

CASE(a_lost_peer_is_the_jobs_failure_otherwise) {
  Stage stage(false);
  stage.set_fault("fail_peer", 1);
  stage.push(value_to(1, 41, 1));
  stage.push(add_to(1, 3));
  stage.run();
  CHECK(stage.record.code == Code::remote);
  CHECK_EQ(stage.record.peer, 1);
  CHECK_EQ(stage.ring().counters[0], 0ull);
  CHECK_EQ(stage.ring().results[3].done, 0ull);  // its waiter sees the record
  CHECK_EQ(stage.ring().progress->retired, 2ull);
}

CASE(a_peer_given_up_from_outside_is_lost_on_every_context) {
  Stage stage(true, {{"fault.hold", "0"}}, 3);
  stage.proxy->give_up(2);
  stage.proxy->give_up(ranks);  // no such rank
  CHECK(stage.lost == (std::vector<uint32_t>{0, 0, 1, 1}));
  CHECK(stage.records[2].operation == Operation::none);
  for (uint32_t context = 0; context < 3; ++context) {
    stage.push(value_to(2, 5, 1), context);
    stage.push(value_to(1, context, 2), context);
    stage.run();
    CHECK_EQ(stage.ring(context).progress->settled, 2ull);
    CHECK_EQ(stage.ring(context).counters[0], 1ull);
    CHECK_EQ(stage.memory[1][0], uint64_t(context));
  }
  CHECK_EQ(stage.memory[2][0], 0ull);
  CHECK_EQ(stage.record.state, Record::empty);
}

CASE(what_the_wire_does_not_take_of_a_lost_peer_is_dropped) {
  Stage stage;
  stage.set_fault("accept", 0);
  stage.push(value_to(1, 1, 1));
  const uint64_t ticket = stage.push(add_to(1, 9));
  stage.push(value_to(2, 2, 2));
  stage.run();
  CHECK_EQ(stage.ring().progress->retired, 0ull);
  stage.proxy->give_up(1);
  stage.run();
  CHECK_EQ(stage.ring().counters[0], 1ull);
  CHECK_EQ(stage.ring().results[9].done, ticket);
  CHECK_EQ(stage.ring().progress->retired, 2ull);
  stage.set_fault("accept", ~0ull);
  stage.run();
  CHECK_EQ(stage.memory[2][0], 2ull);
  CHECK_EQ(stage.memory[1][0], 0ull);
  CHECK_EQ(stage.ring().progress->retired, 3ull);
}

CASE(only_a_remote_failure_is_a_peers) {
  for (Code code : {Code::range, Code::unsupported, Code::internal}) {
    Stage stage;
    stage.set_fault("fail_peer", 1);
    stage.set_fault("fail_code", uint64_t(code));
    stage.push(value_to(1, 1));
    stage.run();
    CHECK(stage.record.code == code);
    CHECK_EQ(stage.lost[1], uint32_t(code == Code::internal));
  }
}

CASE(every_peer_may_be_lost_in_turn) {
  Stage stage;
  for (uint32_t peer = 0; peer < ranks; ++peer) {
    stage.set_fault("fail_peer", peer);
    stage.push(value_to(peer, 1));
    stage.run();
    CHECK_EQ(stage.lost[peer], 1u);
  }
  for (uint64_t i = 0; i < 20; ++i) {
    for (uint32_t peer = 0; peer < ranks; ++peer) stage.push(value_to(peer, 1));
    stage.run();
  }
  CHECK_EQ(stage.ring().progress->settled, 63ull);
  CHECK_EQ(stage.record.state, Record::empty);
}

CASE(a_peer_is_lost_while_the_engines_thread_runs) {
  Stage stage;
  stage.proxy->start();
  constexpr uint64_t count = 20000;
  std::thread other([&] {
    while (__atomic_load_n(&stage.ring().progress->retired, __ATOMIC_ACQUIRE) < count) std::this_thread::yield();
    stage.proxy->give_up(1);
  });
  for (uint64_t i = 1; i <= count; ++i) {
    for (uint32_t peer : {1u, 2u}) {
      const uint64_t first = ibrc::reserve(stage.ring(), 1).first;
      while (!ibrc::finds_room(stage.ring(), first + 1)) std::this_thread::yield();
      ibrc::publish(stage.ring(), first, value_to(peer, i, peer));
    }
  }
  other.join();
  CHECK(stage.proxy->stop(30));
  CHECK_EQ(stage.ring().progress->settled, 2 * count);
  CHECK_EQ(stage.ring().counters[0], count);
  CHECK_EQ(stage.ring().counters[1], count);
  CHECK_EQ(stage.memory[2][0], count);
  CHECK(stage.memory[1][0] >= count / 4);
  CHECK(stage.lost == (std::vector<uint32_t>{0, 1, 0, 1}));
  CHECK_EQ(stage.record.state, Record::empty);
}

CHECK_MAIN

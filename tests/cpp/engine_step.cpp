// The engine step by step over an endpoint that the test moves by hand.
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "check.h"
#include "error.h"
#include "gin/backends/ibrc_proxy/producer.h"
#include "proxy/proxy.h"
#include "wire/registry.h"

using namespace gin;
using namespace gin::proxy;

namespace {

struct Script {
  size_t room = SIZE_MAX;             // how many requests are still taken
  bool settled = true, once = false;  // once: it is true for one question
  std::vector<wire::Request> posted;
  std::deque<wire::Completion> completions;

  void complete(size_t index, Code code = Code::ok, uint64_t detail = 0) {
    completions.push_back({posted[index].token, code, posted[index].peer, detail});
  }
};

class ScriptedEndpoint final : public wire::Endpoint {
 public:
  explicit ScriptedEndpoint(Script& script) : script_(script) {}

  size_t post(const wire::Request* requests, size_t count) override {
    count = std::min(count, script_.room);
    script_.room -= count;
    script_.posted.insert(script_.posted.end(), requests, requests + count);
    return count;
  }
  size_t poll(wire::Completion* completions, size_t count) override {
    size_t got = 0;
    for (; got < count && !script_.completions.empty(); ++got) {
      completions[got] = script_.completions.front();
      script_.completions.pop_front();
    }
    return got;
  }
  bool settled() override { return script_.once ? std::exchange(script_.settled, false) : script_.settled; }

 private:
  Script& script_;
};

class ScriptedFabric final : public wire::Fabric {
 public:
  explicit ScriptedFabric(Script& script) : script_(script) {}
  std::string add_region(uint32_t, void*, uint64_t) override { return ""; }
  void import_region(uint32_t, uint32_t, const std::string&, void*) override {}
  void remove_region(uint32_t) override {}
  std::unique_ptr<wire::Endpoint> endpoint() override { return std::make_unique<ScriptedEndpoint>(script_); }
  uint64_t max_message() const override { return 1 << 20; }

 private:
  Script& script_;
};

struct Stage {
  explicit Stage(uint32_t depth = 16, uint32_t ranks = 4, uint32_t contexts = 1) : layout{contexts, 8, ranks} {
    ProxyOptions options;
    options.depth = depth;
    proxy = std::make_unique<Proxy>(std::make_shared<ScriptedFabric>(script), layout, 4, record, nullptr, options);
  }

  const ibrc::Ring& ring(uint32_t context = 0) { return proxy->rings()[context]; }

  void push(const ibrc::Fields& f, uint32_t context = 0) {
    const uint64_t first = ibrc::reserve(ring(context), ibrc::slots(f)).first;
    CHECK(ibrc::finds_room(ring(context), first + ibrc::slots(f)));
    ibrc::publish(ring(context), first, f);
  }

  void run() {
    while (proxy->step()) {
    }
  }

  uint64_t retired() { return ring().progress->retired; }

  Script script;
  Record record{};
  ControlLayout layout;
  std::unique_ptr<Proxy> proxy;
};

ibrc::Fields put_to(uint32_t peer, uint32_t counter = 0) {
  ibrc::Fields f;
  f.op = ibrc::Op::put;
  f.peer = peer;
  f.bytes = 8;
  f.counter = counter;
  return f;
}

}  // namespace

CASE(every_field_reaches_the_wire) {
  Stage stage;
  ibrc::Fields put = put_to(3, 2);
  put.dst_window = 4095, put.src_window = 17;
  put.dst_offset = (1ull << 63) - 1, put.src_offset = 1ull << 40;
  put.bytes = (1ull << 48) - 1;
  put.has_signal = put.ordered = true;
  put.id = 5, put.signal_add = ~0ull;
  stage.push(put);
  ibrc::Fields get = put;
  get.op = ibrc::Op::get, get.has_signal = get.ordered = false;
  stage.push(get);
  ibrc::Fields swap;
  swap.op = ibrc::Op::compare_swap, swap.peer = 1, swap.id = 63, swap.bytes = 4;
  swap.dst_window = 2, swap.dst_offset = 12, swap.immediate = 1ull << 63 | 9, swap.compare = 1ull << 63 | 8;
  stage.push(swap);
  stage.run();
  REQUIRE(stage.script.posted.size() == 3);
  const wire::Request &a = stage.script.posted[0], &b = stage.script.posted[1], &c = stage.script.posted[2];
  CHECK(a.verb == wire::Verb::put && a.has_signal && a.ordered);
  CHECK_EQ(a.peer, 3u);
  CHECK_EQ(a.remote_region, 4095u);
  CHECK_EQ(a.local_region, 17u);
  CHECK_EQ(a.remote_offset, (1ull << 63) - 1);
  CHECK_EQ(a.local_offset, 1ull << 40);
  CHECK_EQ(a.bytes, (1ull << 48) - 1);
  CHECK_EQ(a.signal_region, 0u);
  CHECK_EQ(a.signal_offset, stage.layout.native(0, 5));
  CHECK_EQ(a.signal_add, ~0ull);
  CHECK(b.verb == wire::Verb::get && !b.has_signal);
  CHECK_EQ(b.remote_region, 17u);
  CHECK_EQ(b.local_region, 4095u);
  CHECK_EQ(b.remote_offset, 1ull << 40);
  CHECK(c.verb == wire::Verb::atomic && c.atomic == wire::Atomic::compare_swap);
  CHECK_EQ(c.value, 1ull << 63 | 9);
  CHECK_EQ(c.compare, 1ull << 63 | 8);
  CHECK_EQ(c.local_region, ibrc::result_region);
  CHECK_EQ(c.local_offset, 63 * sizeof(ibrc::Result));
}

CASE(operations_retire_in_order_whatever_the_order_of_completions) {
  Stage stage;
  for (uint32_t i = 0; i < 6; ++i) stage.push(put_to(i % 4, 1));
  stage.run();
  REQUIRE(stage.script.posted.size() == 6);
  CHECK_EQ(stage.ring().progress->consumed, 6ull);
  const std::vector<std::pair<size_t, uint64_t>> steps = {{3, 0}, {0, 1}, {2, 1}, {1, 4}, {5, 4}, {4, 6}};
  uint64_t completed = 0;
  for (auto [index, retired] : steps) {
    stage.script.complete(index);
    stage.run();
    CHECK_EQ(stage.retired(), retired);
    CHECK_EQ(stage.ring().counters[0], ++completed);  // counters do not wait for others
  }
}

CASE(back_pressure_keeps_everything_in_order) {
  Stage stage;
  for (uint32_t i = 0; i < 5; ++i) stage.push(put_to(i % 4));
  stage.script.room = 2;
  stage.run();
  CHECK_EQ(stage.script.posted.size(), size_t(2));
  stage.push(put_to(1));
  stage.run();
  CHECK_EQ(stage.script.posted.size(), size_t(2));
  stage.script.room = 1;
  stage.run();
  stage.script.room = SIZE_MAX;
  stage.run();
  REQUIRE(stage.script.posted.size() == 6);
  for (uint64_t i = 0; i < 6; ++i) CHECK_EQ(stage.script.posted[i].token, i);
}

CASE(no_more_than_the_depth_is_in_flight) {
  Stage stage(4);
  for (uint32_t i = 0; i < 4; ++i) stage.push(put_to(0));
  stage.run();
  stage.push(put_to(0));
  stage.run();
  CHECK_EQ(stage.script.posted.size(), size_t(4));
  stage.script.complete(0);
  stage.run();
  CHECK_EQ(stage.script.posted.size(), size_t(5));
  CHECK_EQ(stage.proxy->stats().max_depth, 4ull);
}

CASE(the_first_failure_is_recorded_and_only_that_peer_given_up) {
  Stage stage;
  ibrc::Fields signalled = put_to(2, 1);
  signalled.has_signal = true, signalled.id = 7;
  stage.push(put_to(1));
  stage.push(signalled);
  stage.push(put_to(3, 2));
  stage.run();
  stage.script.complete(1, Code::remote, 0x81);
  stage.run();
  CHECK_EQ(stage.record.state, Record::complete);
  CHECK(stage.record.code == Code::remote);
  CHECK(stage.record.operation == Operation::put);
  CHECK_EQ(stage.record.peer, 2);
  CHECK_EQ(stage.record.id, 7u);
  CHECK_EQ(stage.record.detail, 0x81ull);
  CHECK_EQ(stage.ring().counters[0], 0ull);

  stage.push(put_to(2));
  stage.push(put_to(3));
  stage.run();
  REQUIRE(stage.script.posted.size() == 4);  // the one to peer 2 never reached the wire
  CHECK_EQ(stage.script.posted[3].peer, 3u);
  stage.script.complete(0);
  stage.script.complete(2, Code::internal);
  stage.script.complete(3);
  stage.run();
  CHECK_EQ(stage.retired(), 5ull);
  CHECK_EQ(stage.record.peer, 2);
  CHECK_EQ(stage.proxy->stats().failures, 3ull);
}

CASE(requests_to_a_peer_that_dies_do_not_block_the_queue) {
  Stage stage;
  stage.script.room = 1;
  for (uint32_t peer : {1u, 1u, 2u, 1u, 3u}) stage.push(put_to(peer));
  stage.run();
  stage.script.complete(0, Code::remote);
  stage.run();
  stage.script.room = SIZE_MAX;
  stage.run();
  REQUIRE(stage.script.posted.size() == 3);
  CHECK_EQ(stage.script.posted[1].peer, 2u);
  CHECK_EQ(stage.script.posted[2].peer, 3u);
  stage.script.complete(1);
  stage.script.complete(2);
  stage.run();
  CHECK_EQ(stage.retired(), 5ull);
}

CASE(a_peer_given_up_from_outside_fails_at_once) {
  Stage stage;
  stage.proxy->give_up(2);
  stage.proxy->give_up(400);  // no such rank: nothing happens
  stage.push(put_to(2));
  stage.run();
  CHECK(stage.script.posted.empty());
  CHECK_EQ(stage.retired(), 1ull);
  CHECK(stage.record.code == Code::remote);
}

CASE(what_no_producer_writes_is_recorded_as_out_of_range) {
  struct Bad {
    const char* what;
    ibrc::Fields fields;
  };
  ibrc::Fields unknown = put_to(0), peer = put_to(4), counter = put_to(0, 5), signal = put_to(0), slot;
  unknown.op = ibrc::Op(14);
  signal.has_signal = true, signal.id = 8;
  slot.op = ibrc::Op::fetch_add, slot.id = ibrc::result_slots, slot.bytes = 8;
  ibrc::Fields lone = put_to(0);
  lone.op = ibrc::Op::extension;
  for (const ibrc::Fields& bad : {unknown, peer, counter, signal, slot, lone}) {
    Stage stage;
    stage.push(bad);
    stage.push(put_to(1));
    stage.run();
    CHECK_EQ(stage.script.posted.size(), size_t(1));
    CHECK_EQ(stage.record.state, Record::complete);
    CHECK(stage.record.code == Code::range);
    stage.script.complete(0);
    stage.run();
    CHECK_EQ(stage.retired(), 2ull);
  }
}

CASE(an_extension_that_is_none_is_out_of_range) {
  Stage stage;
  ibrc::Fields f = put_to(0);
  f.has_signal = true, f.signal_add = 2;
  const uint64_t first = ibrc::reserve(stage.ring(), 2).first;
  ibrc::store_slot(&stage.ring().slots[first], ibrc::encode(f, ibrc::phase_bit));
  ibrc::store_slot(&stage.ring().slots[first + 1], ibrc::encode(put_to(1), ibrc::phase_bit));
  stage.run();
  CHECK(stage.record.code == Code::range);
  CHECK_EQ(stage.retired(), 2ull);
}

CASE(settled_follows_the_wire) {
  Stage stage;
  stage.script.settled = false;
  stage.push(put_to(1));
  stage.run();
  stage.script.complete(0);
  stage.run();
  CHECK_EQ(stage.retired(), 1ull);
  CHECK_EQ(stage.ring().progress->settled, 0ull);
  stage.script.settled = true;
  stage.run();
  CHECK_EQ(stage.ring().progress->settled, 1ull);
}

// What retires while the wire still settles what it was asked about is not in its answer.
CASE(settled_is_what_the_wire_was_asked_about) {
  Stage stage;
  stage.script.settled = false;
  for (uint64_t token : {0, 1}) {
    stage.push(put_to(1));
    stage.run();
    stage.script.completions.push_back({token, Code::ok, 1, 0});
    stage.run();
  }
  CHECK_EQ(stage.retired(), 2ull);
  stage.script.settled = stage.script.once = true;
  stage.proxy->step();
  CHECK_EQ(stage.ring().progress->settled, 1ull);
  stage.script.settled = true;
  stage.proxy->step();
  CHECK_EQ(stage.ring().progress->settled, 2ull);
}

// Steps until as many requests are posted, and how many steps it took.
uint32_t steps_to(Stage& stage, size_t posted) {
  uint32_t steps = 0;
  while (stage.script.posted.size() < posted && steps < 100000) stage.proxy->step_often(), ++steps;
  return steps;
}

CASE(rings_that_have_slept_are_found_and_do_not_hold_up_the_others) {
  Stage stage(16, 4, 100);
  stage.push(put_to(1), 7);
  stage.run();
  stage.script.complete(0);
  // Ring 7 is in use all the time, the others never: they fall asleep.
  for (uint32_t i = 0; i < (1u << 16) + 10; ++i) {
    stage.push(put_to(1), 7);
    stage.proxy->step_often();
    stage.script.complete(stage.script.posted.size() - 1);
    stage.proxy->step_often();
    stage.script.posted.resize(1);
  }
  stage.script.posted.clear();
  stage.script.completions.clear();
  stage.push(put_to(1), 7);
  CHECK_EQ(steps_to(stage, 1), 1u);
  for (uint32_t context : {0u, 99u, 50u}) {
    const size_t before = stage.script.posted.size();
    stage.push(put_to(2), context);
    const uint32_t steps = steps_to(stage, before + 1);
    CHECK(steps >= 1 && steps <= 16);
    stage.push(put_to(2), context);  // awake again
    CHECK_EQ(steps_to(stage, before + 2), 1u);
  }
  // All of them at once.
  for (uint32_t context = 0; context < 100; ++context) stage.push(put_to(3), context);
  const size_t before = stage.script.posted.size();
  CHECK(steps_to(stage, before + 100) <= 64);
}

CASE(rings_that_sleep_are_found_at_once_where_nothing_moves_and_by_who_does_not_come_again) {
  Stage busy(16, 4, 100);
  busy.push(put_to(3), 98);
  CHECK(steps_to(busy, 1) > 1);  // it does sleep
  Stage still(16, 4, 100);
  for (uint32_t i = 0; i < 2000; ++i) still.proxy->step_often();
  still.push(put_to(3), 97);
  CHECK_EQ(steps_to(still, 1), 1u);
  Stage once(16, 4, 100);
  once.push(put_to(3), 98);
  once.proxy->step();
  CHECK_EQ(once.script.posted.size(), size_t(1));
}

CASE(a_range_failure_does_not_give_the_peer_up) {
  Stage stage;
  stage.push(put_to(1));
  stage.run();
  stage.script.complete(0, Code::range);
  stage.push(put_to(1));
  stage.run();
  CHECK_EQ(stage.script.posted.size(), size_t(2));
}

CASE(records_are_written_once) {
  Record record{};
  CHECK(fail(record, {Code::remote, Operation::get, 5, 1, 2, 3, 4, 6}));
  CHECK(!fail(record, {Code::timeout, Operation::wait, 7}));
  CHECK(record.code == Code::remote && record.operation == Operation::get);
  CHECK_EQ(record.peer, 5);
  CHECK(has_failed(record));
}

CASE(numbers_that_do_not_fit_a_descriptor_are_refused) {
  Record record{};
  std::shared_ptr<wire::Fabric> fabric = wire::make_fabric("null", 0, 2);
  const auto make = [&](ControlLayout layout, uint32_t counters, uint32_t depth) {
    ProxyOptions options;
    options.depth = depth;
    Proxy(fabric, layout, counters, record, nullptr, options);
  };
  make({1, 1, 2}, ibrc::max_counters, 4);
  CHECK_THROWS(Error, "power of two", make({1, 1, 2}, 1, 12));
  CHECK_THROWS(Error, "power of two", make({1, 1, 2}, 1, 2));
  CHECK_THROWS(Error, "counters", make({1, 1, 2}, ibrc::max_counters + 1, 4));
  CHECK_THROWS(Error, "signals", make({1, ibrc::max_ids + 1, 2}, 1, 4));
  CHECK_THROWS(Error, "ranks", make({1, 1, ibrc::max_peers + 1}, 1, 4));
  CHECK_THROWS(Error, "contexts", make({0, 1, 2}, 1, 4));
}

CHECK_MAIN

// Producers and the engine on one ring: laps, wrap-around, several producers, a ring that is full.
#include <thread>
#include <vector>

#include "check.h"
#include "gin/backends/ibrc_proxy/producer.h"
#include "proxy/proxy.h"
#include "wire/registry.h"

using namespace gin;
using namespace gin::proxy;

namespace {

constexpr uint64_t words = 1024;

// One rank that talks to itself over the shm wire. Region 0 is the control window, region 1 the data.
struct Loop {
  Loop(uint32_t depth, const std::string& wire = "shm", const wire::Options& options = {})
      : layout{1, 4, 1}, control(layout.bytes() / 8), data(words), fabric(wire::make_fabric(wire, 0, 1, options)) {
    fabric->add_region(0, control.data(), layout.bytes());
    fabric->add_region(1, data.data(), words * 8);
    ProxyOptions chosen;
    chosen.depth = depth;
    chosen.thread.spin = 16, chosen.thread.yield = 1u << 30;
    proxy = std::make_unique<Proxy>(fabric, layout, 2, record, nullptr, chosen);
  }

  const ibrc::Ring& ring() { return proxy->rings()[0]; }

  void push(const ibrc::Fields& f) {
    const uint64_t first = ibrc::reserve(ring(), ibrc::slots(f)).first, end = first + ibrc::slots(f);
    while (!ibrc::finds_room(ring(), end)) std::this_thread::yield();
    ibrc::publish(ring(), first, f);
  }

  void flush() {
    const uint64_t end = ibrc::load_shared(ring().head);
    while (ibrc::load_acquire(&ring().progress->retired) < end) std::this_thread::yield();
  }

  uint64_t signal(uint32_t id) { return __atomic_load_n(&control[layout.native(0, id) / 8], __ATOMIC_ACQUIRE); }

  Record record{};
  ControlLayout layout;
  std::vector<uint64_t> control, data;
  std::shared_ptr<wire::Fabric> fabric;
  std::unique_ptr<Proxy> proxy;
};

ibrc::Fields value_at(uint64_t offset, uint64_t value) {
  ibrc::Fields f;
  f.op = ibrc::Op::value;
  f.dst_window = 1;
  f.dst_offset = offset;
  f.bytes = 8;
  f.immediate = value;
  return f;
}

void push_many_through(uint32_t depth, uint64_t count) {
  Loop loop(depth);
  loop.proxy->start();
  for (uint64_t i = 0; i < count; ++i) {
    ibrc::Fields f = value_at(8 * (i % words), i | 1ull << 63);
    f.has_signal = true;
    f.signal_add = i % 3;  // one slot when it is 1, else two, so operations wrap in every position
    f.counter = 1 + i % 2;
    loop.push(f);
  }
  loop.flush();
  uint64_t sum = 0;
  for (uint64_t i = 0; i < count; ++i) sum += i % 3;
  CHECK_EQ(loop.signal(0), sum);
  for (uint64_t i = count - std::min(count, words); i < count; ++i) CHECK_EQ(loop.data[i % words], i | 1ull << 63);
  CHECK_EQ(loop.ring().counters[0] + loop.ring().counters[1], count);
  CHECK_EQ(loop.proxy->stats().descriptors, count);
  CHECK_EQ(loop.record.state, Record::empty);
  CHECK(loop.proxy->stop(5));
}

}  // namespace

CASE(ten_thousand_puts_through_a_ring_of_four) { push_many_through(4, 10000); }
CASE(ten_thousand_puts_through_a_ring_of_8) { push_many_through(8, 10000); }
CASE(ten_thousand_puts_through_a_ring_of_1024) { push_many_through(1024, 10000); }

CASE(a_full_ring_has_no_room_until_the_engine_has_taken) {
  Loop loop(4);
  for (int i = 0; i < 4; ++i) {
    const uint64_t first = ibrc::reserve(loop.ring(), 1).first;
    CHECK(ibrc::finds_room(loop.ring(), first + 1));
    ibrc::publish(loop.ring(), first, value_at(0, uint64_t(i)));
  }
  const uint64_t fifth = ibrc::reserve(loop.ring(), 1).first;
  CHECK(!ibrc::finds_room(loop.ring(), fifth + 1));
  while (loop.proxy->step()) {
  }
  CHECK(ibrc::finds_room(loop.ring(), fifth + 1));
  CHECK_EQ(loop.data[0], 3ull);
}

CASE(nothing_is_taken_before_its_extension_is_there) {
  Loop loop(4);
  ibrc::Fields f = value_at(0, 7);
  f.has_signal = true;
  f.signal_add = 5;
  const uint64_t first = ibrc::reserve(loop.ring(), 2).first;
  ibrc::store_slot(&loop.ring().slots[first], ibrc::encode(f, ibrc::phase(first, 4)));
  CHECK(!loop.proxy->step());
  CHECK_EQ(loop.data[0], 0ull);
  ibrc::store_slot(&loop.ring().slots[first + 1], ibrc::encode_extension(f, ibrc::phase(first + 1, 4)));
  CHECK(loop.proxy->step());
  CHECK_EQ(loop.data[0], 7ull);
  CHECK_EQ(loop.signal(0), 5ull);
  CHECK_EQ(loop.ring().progress->retired, 2ull);
}

CASE(several_producers) {
  constexpr uint64_t producers = 3, each = 5000;
  for (uint32_t depth : {4u, 64u}) {
    Loop loop(depth);
    loop.proxy->start();
    std::vector<std::thread> threads;
    for (uint64_t p = 0; p < producers; ++p) {
      threads.emplace_back([&loop, p] {
        for (uint64_t i = 0; i < each; ++i) {
          ibrc::Fields f = value_at(8 * p, i);
          f.has_signal = true;
          f.id = uint32_t(p);
          f.signal_add = 1 + i % 2;
          loop.push(f);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    loop.flush();
    for (uint64_t p = 0; p < producers; ++p) {
      CHECK_EQ(loop.data[p], each - 1);
      CHECK_EQ(loop.signal(uint32_t(p)), each + each / 2);
    }
    CHECK(loop.proxy->stop(5));
  }
}

CASE(atomics_return_the_old_value_in_their_slot) {
  Loop loop(4);
  loop.proxy->start();
  uint64_t expected = 0;
  for (uint64_t i = 0; i < 300; ++i) {
    const uint32_t slot = ibrc::claim_result(loop.ring());
    REQUIRE(slot < ibrc::result_slots);
    ibrc::Fields f;
    f.op = i % 2 ? ibrc::Op::compare_swap : ibrc::Op::fetch_add;
    f.dst_window = 1;
    f.bytes = 8;
    f.id = slot;
    f.immediate = i % 2 ? expected + 1000 : i;
    f.compare = expected;
    const uint64_t first = ibrc::reserve(loop.ring(), ibrc::slots(f)).first, ticket = first + ibrc::slots(f);
    while (!ibrc::finds_room(loop.ring(), ticket)) std::this_thread::yield();
    ibrc::publish(loop.ring(), first, f);
    const ibrc::Result& result = loop.ring().results[slot];
    while (ibrc::load_acquire(&result.done) != ticket) std::this_thread::yield();
    CHECK_EQ(result.value, expected);
    expected += i % 2 ? 1000 : i;
    ibrc::release_result(loop.ring(), slot);
  }
  CHECK_EQ(loop.data[0], expected);
  CHECK(loop.proxy->stop(5));
}

CASE(result_slots_run_out_and_come_back) {
  Loop loop(4);
  for (uint32_t i = 0; i < ibrc::result_slots; ++i) CHECK_EQ(ibrc::claim_result(loop.ring()), i);
  CHECK_EQ(ibrc::claim_result(loop.ring()), ibrc::result_slots);
  ibrc::release_result(loop.ring(), 17);
  CHECK_EQ(ibrc::claim_result(loop.ring()), 17u);
}

CASE(a_wire_that_takes_one_at_a_time_and_refuses_often_loses_nothing) {
  Loop loop(16, "shm", {{"fault.accept", "1"}, {"fault.refuse", "3"}});
  loop.proxy->start();
  for (uint64_t i = 0; i < 2000; ++i) {
    ibrc::Fields f = value_at(8 * (i % words), i);
    f.has_signal = true;
    loop.push(f);
  }
  loop.flush();
  CHECK_EQ(loop.signal(0), 2000ull);
  CHECK_EQ(loop.data[1999 % words], 1999ull);
  CHECK(loop.proxy->stop(5));
}

CHECK_MAIN

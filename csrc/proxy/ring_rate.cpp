#include "proxy/ring_rate.h"

#include <sched.h>

#include <chrono>

#include "error.h"
#include "gin/backends/ibrc_proxy/producer.h"
#include "proxy/proxy.h"
#include "wire/registry.h"

namespace gin::proxy {
namespace {

using Clock = std::chrono::steady_clock;

// Waits as the bare ring's threads do, so that the two are comparable on a busy machine.
template <class Done>
void await(Done done, Clock::time_point deadline) {
  for (uint32_t looks = 1; !done(); ++looks) {
    if (looks % 4096 != 0) continue;
    if (Clock::now() > deadline)
      throw Error(Error::Kind::timeout,
                  "ring rate: the engine did not keep up before the deadline; is a core free for it?");
    sched_yield();
  }
}

}  // namespace

double ring_rate(uint64_t count, uint32_t depth, double deadline_s) {
  const ControlLayout layout{1, 1, 2};
  Record record{};
  ProxyOptions options;
  options.depth = depth;
  options.thread.spin = 4096;
  Proxy proxy(wire::make_fabric("null", 0, 2), layout, 1, record, nullptr, options);
  const ibrc::Ring& ring = proxy.rings()[0];
  proxy.start();

  const auto start = Clock::now();
  const auto deadline = start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(deadline_s));
  ibrc::Fields put;
  put.op = ibrc::Op::put;
  put.peer = 1;
  put.bytes = 8;
  for (uint64_t i = 0; i < count; ++i) {
    put.dst_offset = put.src_offset = 8 * i;
    const uint64_t sequence = ibrc::reserve(ring, 1).first;
    await([&] { return ibrc::finds_room(ring, sequence + 1); }, deadline);
    ibrc::publish(ring, sequence, put);
  }
  await([&] { return ibrc::load_acquire(&ring.progress->retired) >= count; }, deadline);
  const std::chrono::duration<double> took = Clock::now() - start;
  if (proxy.stats().descriptors != count || record.state != Record::empty)
    throw Error(Error::Kind::internal, "ring rate: descriptors were lost or refused");
  return double(count) / took.count();
}

}  // namespace gin::proxy

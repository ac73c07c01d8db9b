#include "sim/rate.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "error.h"
#include "gin/backends/ibrc_proxy/producer.h"
#include "sim/simulation.h"

namespace gin::sim {
namespace {

constexpr uint32_t depth = 64;
constexpr uint64_t window_bytes = 4096, message_bytes = 64;

// One rank: its windows' memory, and a ring with its engine.
struct Sender {
  Sender(Simulation& simulation, uint32_t rank, ControlLayout layout)
      : memory(layout.bytes() / 8 + window_bytes / 8), fabric(simulation.fabric(rank)) {
    control = memory.data() + window_bytes / 8;
    fabric->add_region(0, control, layout.bytes());
    fabric->add_region(1, memory.data(), window_bytes);
    proxy::ProxyOptions options;
    options.depth = depth;
    proxy = std::make_shared<proxy::Proxy>(fabric, layout, 1, record, nullptr, options);
    simulation.add_proxy(rank, proxy);
  }

  void fill(uint32_t peer, uint64_t count) {
    const ibrc::Ring& ring = proxy->rings()[0];
    ibrc::Fields put;
    put.op = ibrc::Op::put;
    put.peer = peer;
    put.dst_window = put.src_window = 1;
    put.bytes = message_bytes;
    put.has_signal = true;
    for (uint64_t i = 0; i < count; ++i) {
      put.dst_offset = message_bytes * (i % (window_bytes / message_bytes));
      put.src_offset = window_bytes - message_bytes - put.dst_offset;
      ibrc::publish(ring, ibrc::reserve(ring, 1).first, put);
    }
  }

  std::vector<uint64_t> memory;
  uint64_t* control;
  gin::Record record{};
  std::shared_ptr<wire::Fabric> fabric;
  std::shared_ptr<proxy::Proxy> proxy;
};

}  // namespace

Rate rate(uint64_t count, uint32_t ranks, const Options& options) {
  Simulation simulation(ranks, options);
  const ControlLayout layout{1, 1, ranks};
  std::vector<std::unique_ptr<Sender>> senders;
  for (uint32_t rank = 0; rank < ranks; ++rank) senders.push_back(std::make_unique<Sender>(simulation, rank, layout));

  const auto begin = std::chrono::steady_clock::now();
  const uint64_t turns = std::max<uint64_t>(1, count / (uint64_t(depth) * ranks));
  for (uint64_t turn = 0; turn < turns; ++turn) {
    for (uint32_t rank = 0; rank < ranks; ++rank) senders[rank]->fill((rank + 1) % ranks, depth);
    simulation.drain();
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;

  uint64_t arrived = 0;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    arrived += *reinterpret_cast<uint64_t*>(reinterpret_cast<char*>(senders[rank]->control) + layout.native(0, 0));
    simulation.remove_proxy(rank, *senders[rank]->proxy);
  }
  if (arrived != turns * depth * ranks || simulation.operations() != arrived)
    throw Error(Error::Kind::internal, "simulated rate: operations were lost");
  return {double(arrived) / took.count(), double(simulation.steps()) / double(arrived)};
}

}  // namespace gin::sim

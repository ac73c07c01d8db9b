#include <chrono>
#include <cstring>
#include <thread>

#include "error.h"
#include "wire/verbs/endpoint.h"
#include "wire/verbs/syndrome.h"

namespace gin::wire {
namespace verbs {
namespace {

using Kind = Error::Kind;
using Clock = std::chrono::steady_clock;

constexpr uint64_t small_probe = 8;

Clock::time_point after(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

void pause() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

std::string hint(const std::string& size) {
  if (size == "small")
    return "check that both addresses are of one network (GIN_IB_HCA, GIN_IB_GID_INDEX), for RoCE that UDP port 4791 "
           "is open between the hosts, and for InfiniBand that both ports are of one partition (GIN_IB_PKEY_INDEX)";
  return "messages of 8 bytes arrive: the network between them carries smaller packets; set GIN_IB_MTU to less";
}

class VerbsFabric final : public Fabric {
 public:
  VerbsFabric(uint32_t rank, uint32_t size, const Settings& settings)
      : core_(std::make_shared<Core>(rank, size, settings)) {}

  std::string add_region(uint32_t region, void* base, uint64_t bytes) override {
    return core_->memory.add(region, base, bytes, core_->settings.relaxed && region != 0);
  }
  void import_region(uint32_t region, uint32_t peer, const std::string& exported, void*) override {
    core_->memory.import(region, peer, exported);
  }
  void remove_region(uint32_t region) override { core_->memory.remove(region); }
  std::unique_ptr<Endpoint> endpoint() override { return std::make_unique<VerbsEndpoint>(core_); }
  uint64_t max_message() const override {
    uint64_t most = core_->settings.max_message;
    for (const auto& device : core_->devices) most = std::min(most, device->about.max_bytes);
    return most;
  }
  std::string about() const override {
    std::string all;
    for (const auto& device : core_->devices) all += (all.empty() ? "" : "; ") + about(*device);
    const std::string note = core_->memory.note();
    return note.empty() ? all : all + "; " + note;
  }

  std::string address(uint32_t peer) override;
  void connect(uint32_t peer, const std::string& address) override;
  void probe(double seconds) override;
  bool leave(double seconds) override;

 private:
  static std::string about(const Device& device);
  void probe_size(uint64_t bytes, const std::string& size, Clock::time_point deadline);
  bool drain(VerbsEndpoint& endpoint, Clock::time_point deadline) const;
  bool heard_from(uint32_t peer) const {
    const auto* words = reinterpret_cast<const uint64_t*>(core_->board.data());
    return __atomic_load_n(&words[peer], __ATOMIC_ACQUIRE) != 0;
  }

  std::shared_ptr<Core> core_;
};

std::string VerbsFabric::about(const Device& device) {
  const VerbsPort& p = device.about;
  return device.name() + ", " + p.link + ", " +
         (p.gid.empty()
              ? "LID " + std::to_string(device.address.lid)
              : "GID " + std::to_string(p.gid_index) + " " + p.gid + (p.gid_type.empty() ? "" : " " + p.gid_type)) +
         ", MTU " + std::to_string(device.address.mtu) + " (" + device.why + ")";
}

std::string VerbsFabric::address(uint32_t peer) {
  std::lock_guard<std::mutex> lock(core_->mutex);
  PeerAddress a;
  for (uint32_t d = 0; d < core_->devices.size(); ++d) {
    a.ports.push_back(core_->devices[d]->address);
    a.boards.push_back({core_->board.address(), core_->board.remote_key(d)});
  }
  a.sequence = core_->sequence;
  for (VerbsEndpoint* e : core_->endpoints) {
    const bool open = e && e->queue(peer).pair;
    a.numbers.push_back(open ? e->queue(peer).pair->qp_num : 0);
  }
  return a.text();
}

void VerbsFabric::connect(uint32_t peer, const std::string& text) {
  PeerAddress a = PeerAddress::parse(text, peer);
  std::lock_guard<std::mutex> lock(core_->mutex);
  if (a.numbers.size() != core_->endpoints.size())
    throw Error(Kind::config, "rank " + std::to_string(peer) + " has " + std::to_string(a.numbers.size()) +
                                  " endpoints and this rank " + std::to_string(core_->endpoints.size()) +
                                  "; all ranks need equal numbers of contexts (GIN_CONTEXTS)");
  if (a.ports.size() != core_->devices.size())
    throw Error(Kind::config, "rank " + std::to_string(peer) + " uses " + std::to_string(a.ports.size()) +
                                  " NICs and this rank " + std::to_string(core_->devices.size()) +
                                  "; all ranks need equal numbers of them (GIN_IB_NICS)");
  core_->peers[peer] = std::move(a);
  for (size_t i = 0; i < core_->endpoints.size(); ++i)
    if (core_->endpoints[i]) verbs::connect(core_->endpoints[i]->queue(peer), *core_, i);
}

void VerbsFabric::probe(double seconds) {
  const Clock::time_point deadline = after(seconds);
  probe_size(small_probe, "small", deadline);
  probe_size(Board::page_bytes, "large", deadline);
}

void VerbsFabric::probe_size(uint64_t bytes, const std::string& size, Clock::time_point deadline) {
  for (VerbsEndpoint* e : core_->endpoints)
    for (uint32_t peer = 0; e && peer < core_->size; ++peer) e->probe(peer, bytes);
  std::string failed;
  for (VerbsEndpoint* e : core_->endpoints) {
    if (!e) continue;
    const auto pending = [&](uint32_t peer) {
      const Queue& q = e->queue(peer);
      return q.connected && !q.dead && (q.retired != q.posted || q.landed > q.settled);
    };
    const auto any_pending = [&] {
      for (uint32_t peer = 0; peer < core_->size; ++peer)
        if (pending(peer)) return true;
      return false;
    };
    Completion none[1];
    while (e->poll(none, 1), e->settled(), any_pending() && Clock::now() < deadline) pause();
    for (uint32_t peer = 0; peer < core_->size; ++peer) {
      const Queue& q = e->queue(peer);
      if (!q.dead && !pending(peer)) continue;
      failed += "rank " + std::to_string(peer) + " is not reached (" + path(*core_, e->device(), peer) +
                "): " + (q.dead ? verbs_detail(q.syndrome) : "no answer before the deadline") + ". ";
    }
    if (!failed.empty()) throw Error(Kind::remote, "wire verbs: " + failed + "For each, " + hint(size));
  }
}

// Waits until everything that was posted has ended.
bool VerbsFabric::drain(VerbsEndpoint& e, Clock::time_point deadline) const {
  const auto busy = [&] {
    for (uint32_t peer = 0; peer < core_->size; ++peer)
      if (e.queue(peer).completed != e.queue(peer).posted) return true;
    return false;
  };
  Completion dropped[16];
  while (e.poll(dropped, 16), busy()) {
    if (Clock::now() >= deadline) return false;
    pause();
  }
  return true;
}

bool VerbsFabric::leave(double seconds) {
  std::lock_guard<std::mutex> lock(core_->mutex);
  VerbsEndpoint* e = core_->endpoints.empty() ? nullptr : core_->endpoints.front();
  if (!e || seconds <= 0) return false;
  const Clock::time_point deadline = after(seconds);
  for (VerbsEndpoint* other : core_->endpoints)
    if (other && !drain(*other, deadline)) return false;
  for (uint32_t peer = 0; peer < core_->size; ++peer)
    if (peer != core_->rank) e->say_goodbye(peer);
  const auto all_left = [&] {
    for (uint32_t peer = 0; peer < core_->size; ++peer) {
      const Queue& q = e->queue(peer);
      if (peer == core_->rank || !q.connected || q.dead) continue;
      if (!heard_from(peer) || q.completed != q.posted) return false;
    }
    return true;
  };
  Completion dropped[16];
  while (e->poll(dropped, 16), !all_left()) {
    if (Clock::now() >= deadline) return false;
    pause();
  }
  return true;
}

}  // namespace
}  // namespace verbs

std::unique_ptr<Fabric> make_verbs(uint32_t rank, uint32_t size, const Options& options) {
  return std::make_unique<verbs::VerbsFabric>(rank, size, verbs::parse(options));
}

std::string verbs_detail(uint64_t detail) {
  const uint32_t low = uint32_t(detail), vendor = uint32_t(detail >> 32);
  if (low & verbs::errno_mark) return std::strerror(int(low & ~uint32_t(verbs::errno_mark)));
  std::string text = verbs::Library::get().wc_status_str(ibv_wc_status(low));
  text += " (status " + std::to_string(low);
  return text + (vendor ? ", vendor error " + std::to_string(vendor) + ")" : ")");
}

}  // namespace gin::wire

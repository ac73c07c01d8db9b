// The simulated network as a wire: what proxies and emulated libraries post to.
#pragma once

#include <vector>

#include "sim/network.h"
#include "wire/wire.h"

namespace gin::sim {

class Endpoint final : public wire::Endpoint {
 public:
  Endpoint(Network& network, uint32_t rank, uint32_t group)
      : network_(network), network_lives_(network.lives_), rank_(rank), group_(group) {}
  ~Endpoint() override;

  size_t post(const wire::Request* requests, size_t count) override;
  size_t poll(wire::Completion* completions, size_t count) override;
  bool settled() override { return unsettled_ == 0 || network_.options_.faults.settle_early; }

 private:
  friend class Network;

  uint32_t stream(uint32_t peer);
  // The request with its regions numbered over all groups.
  wire::Request numbered(wire::Request request) const;

  Network& network_;
  const std::shared_ptr<const bool> network_lives_;  // whoever holds the endpoint may outlive the simulation
  const uint32_t rank_, group_;
  std::vector<uint32_t> stream_of_peer_;  // number + 1; made when first posted to
  std::vector<Network::Stream> streams_;
  std::vector<wire::Completion> done_;
  size_t first_done_ = 0;
  uint64_t taken_ = 0;      // and not yet polled
  uint64_t unsettled_ = 0;  // completed with ok and not yet settled
  uint64_t flights_ = 0;
  uint32_t fences_ = 0;
};

// The fabrics of one communicator's ranks are a group: regions are numbered within it, and by the network over all groups.
constexpr uint32_t group_regions = 1u << 20;
constexpr uint32_t in_network(uint32_t group, uint32_t region) { return group * group_regions + region; }

class Fabric final : public wire::Fabric {
 public:
  Fabric(Network& network, uint32_t rank, uint32_t group) : network_(network), rank_(rank), group_(group) {}

  std::string add_region(uint32_t region, void* base, uint64_t bytes) override;
  // All ranks' regions are known here as soon as they are added.
  void import_region(uint32_t, uint32_t, const std::string&, void*) override {}
  void remove_region(uint32_t region) override;
  std::unique_ptr<wire::Endpoint> endpoint() override { return std::make_unique<Endpoint>(network_, rank_, group_); }
  uint64_t max_message() const override { return network_.options_.max_message; }
  std::string about() const override { return "simulated"; }

 private:
  Network& network_;
  const uint32_t rank_, group_;
};

}  // namespace gin::sim

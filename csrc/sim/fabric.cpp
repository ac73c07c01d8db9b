#include "sim/fabric.h"

#include <algorithm>

#include "error.h"

namespace gin::sim {
namespace {

constexpr uint32_t few_regions = 256;

}  // namespace

Endpoint::~Endpoint() {
  // What was posted may still land, but nobody hears of it.
  if (flights_ && *network_lives_) network_.abandon(*this);
}

size_t Endpoint::post(const wire::Request* requests, size_t count) {
  size_t accepted = 0;
  while (accepted < count && network_.accept(*this, numbered(requests[accepted]))) ++accepted;
  return accepted;
}

wire::Request Endpoint::numbered(wire::Request request) const {
  request.remote_region = in_network(group_, request.remote_region);
  request.signal_region = in_network(group_, request.signal_region);
  if (request.local_region != wire::local_address) request.local_region = in_network(group_, request.local_region);
  return request;
}

size_t Endpoint::poll(wire::Completion* completions, size_t count) {
  count = std::min(count, done_.size() - first_done_);
  std::copy_n(done_.begin() + long(first_done_), count, completions);
  first_done_ += count;
  if (first_done_ == done_.size()) {
    done_.clear();
    first_done_ = 0;
  }
  for (size_t i = 0; i < count; ++i)
    if (completions[i].token != wire::no_request) --taken_;
  return count;
}

uint32_t Endpoint::stream(uint32_t peer) {
  if (stream_of_peer_.empty()) stream_of_peer_.resize(network_.hosts_.size());
  uint32_t& number = stream_of_peer_[peer];
  if (!number) {
    streams_.emplace_back();
    number = uint32_t(streams_.size());
  }
  return number - 1;
}

std::string Fabric::add_region(uint32_t number, void* base, uint64_t bytes) {
  const uint32_t region = in_network(group_, number);
  const Faults& faults = network_.options_.faults;
  if (faults.register_rank == Faults::off || faults.register_rank == rank_) {
    if (network_.registrations_++ == faults.register_at)
      throw Error(Error::Kind::memory, "rank " + std::to_string(rank_) + " cannot register " + std::to_string(bytes) +
                                           " bytes: the simulation was told to refuse (fault.register_at)");
  }
  Network::Host& host = network_.hosts_[rank_];
  if (network_.region(rank_, region))
    throw Error(Error::Kind::config, "region " + std::to_string(number) + " is already registered; remove it first");
  if (region < few_regions) {
    if (host.regions.size() <= region) host.regions.resize(region + 1);
    host.regions[region] = {static_cast<char*>(base), bytes, true};
  } else {
    host.more_regions[region] = {static_cast<char*>(base), bytes, true};
  }
  return "gin-sim-1";
}

void Fabric::remove_region(uint32_t number) {
  const uint32_t region = in_network(group_, number);
  Network::Host& host = network_.hosts_[rank_];
  network_.drop_region(rank_, region);
  if (region < host.regions.size()) host.regions[region] = {};
  host.more_regions.erase(region);
}

}  // namespace gin::sim

#include "sim/network.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "sim/fabric.h"

namespace gin::sim {

Network::Network(uint32_t ranks, const Options& options, Agenda& agenda, Random& random, Trace& trace,
                 Listener& listener)
    : options_(options), agenda_(agenda), random_(random), trace_(trace), listener_(listener), hosts_(ranks) {}

template <class Body>
void Network::each_live(Body body) {
  for (uint32_t index = 0; index < made_; ++index)
    if (Flight& f = flight(index); f.live) body(index, f);
}

Network::~Network() {
  let_go();
  each_live([](uint32_t, Flight& f) {
    if (f.held != f.small) std::free(f.held);
  });
}

std::shared_ptr<wire::Fabric> Network::fabric(uint32_t rank, uint32_t group) {
  return std::make_shared<Fabric>(*this, rank, group);
}

void Network::happen(uint32_t index, uint32_t tag) {
  const uint32_t piece = tag & 0xff;
  --flight(index).events;
  switch (Stage(tag >> 8)) {
    case read_piece:
      read(index, piece);
      break;
    case land_piece:
      land(index, piece);
      break;
    case apply:
      add_signal(index);
      break;
    case finish:
      finished(index);
      break;
  }
  maybe_free(index);
}

void Network::kill(uint32_t rank) {
  if (hosts_[rank].dead) return;
  hosts_[rank].dead = true;
  forget_stacks(rank);
  if (trace_.on()) trace_.add(agenda_.now(), Kind::kill, rank);
}

void Network::forget_stacks(uint32_t rank) {
  each_live([&](uint32_t, Flight& f) {
    if (f.rank != rank || !f.stack || f.completed) return;
    f.source = nullptr;
    f.code = Code::internal;
  });
}

void Network::abandon(Endpoint& endpoint) {
  each_live([&](uint32_t index, Flight& f) {
    if (f.endpoint != &endpoint) return;
    f.endpoint = nullptr;
    if (f.waits) let_land(index);
    if (f.landed && !f.settled) let_signal(index);
    maybe_free(index);
  });
}

// The memory of a region is about to be something else.
void Network::drop_region(uint32_t rank, uint32_t number) {
  const Region* gone = region(rank, number);
  if (gone) let_go_of(gone->base, gone->bytes);
}

void Network::forget_memory(const char* from, uint64_t bytes) {
  let_go_of(from, bytes);
  for (Host& host : hosts_) {
    const auto drop = [&](Region& region) {
      if (region.present && region.base >= from && region.base < from + bytes) region = {};
    };
    for (Region& region : host.regions) drop(region);
    for (auto& [number, region] : host.more_regions) drop(region);
  }
}

void Network::let_go_of(const char* from, uint64_t bytes) {
  if (!in_flight_) return;
  const auto inside = [&](const void* address) { return address && address >= from && address < from + bytes; };
  each_live([&](uint32_t, Flight& f) {
    if (inside(f.source) || inside(f.target) || inside(f.signal)) f.lost = true;
  });
}

uint32_t Network::take_flight() {
  uint32_t index;
  if (free_.empty()) {
    index = made_++;
    if (index % chunk == 0) chunks_.push_back(std::make_unique_for_overwrite<Flight[]>(chunk));
  } else {
    index = free_.back();
    free_.pop_back();
  }
  ++in_flight_;
  return index;
}

void Network::maybe_free(uint32_t index) {
  Flight& f = flight(index);
  if (!f.live || f.events || !f.completed || !f.settled) return;
  if (f.held != f.small) std::free(f.held);
  if (f.endpoint) --f.endpoint->flights_;
  f.live = false;
  --in_flight_;
  free_.push_back(index);
}

Record& Network::note(Kind kind, const Flight& f) {
  Record& record = trace_.add(agenda_.now(), kind, f.rank);
  record.op = uint8_t(1 + uint32_t(f.request.verb));
  record.peer = int32_t(f.request.peer);
  record.context = uint16_t(f.request.context);
  const bool moves = f.request.verb != wire::Verb::signal;
  record.region = moves ? f.request.remote_region : f.request.signal_region;
  record.offset = moves ? f.request.remote_offset : f.request.signal_offset;
  record.bytes = f.request.bytes;
  record.file = trace_.file(f.site.file);
  record.line = f.site.line;
  record.number = f.number;
  return record;
}

std::string Network::report() const {
  if (!in_flight_) return "nothing is in flight";
  uint64_t held = 0;
  for (uint32_t index = 0; index < made_; ++index)
    if (const Flight& f = flight(index); f.live && f.waits) ++held;
  std::string text = std::to_string(in_flight_) + " requests are in flight";
  if (held) text += ", " + std::to_string(held) + " of them behind a fence";
  return text;
}

}  // namespace gin::sim

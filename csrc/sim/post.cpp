// A request on its way into the network: where it goes, what it has to wait for, and when its parts happen.
#include <algorithm>
#include <cstring>

#include "sim/fabric.h"
#include "sim/network.h"

namespace gin::sim {
namespace {

using wire::Request;
using wire::Verb;

constexpr int poison_byte = 0xa5;
constexpr uint64_t refusal_ns = 1000;  // after which a refused post is tried again

bool overlap(const char* a, const char* b, uint64_t bytes) { return a < b + bytes && b < a + bytes; }

}  // namespace

uint64_t checksum(const char* from, uint64_t bytes) {
  uint64_t sum = bytes;
  for (; bytes >= 8; from += 8, bytes -= 8) {
    uint64_t word;
    std::memcpy(&word, from, 8);
    sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
    sum ^= sum >> 32;
  }
  uint64_t rest = 0;
  std::memcpy(&rest, from, bytes);
  return (sum ^ rest) * 0x9e3779b97f4a7c15u;
}

bool Network::accept(Endpoint& endpoint, const Request& request) {
  const Faults& faults = options_.faults;
  if (endpoint.taken_ >= options_.queue) return false;
  if (faults.refuse_one_in && random_.one_in(faults.refuse_one_in)) {
    agenda_.add(What::nudge, endpoint.rank_, 0, refusal_ns, 0);
    return false;
  }
  const uint64_t number = ++numbers_;
  if (faults.dead_rank < hosts_.size() && number == faults.dead_after + 1)
    agenda_.add(What::kill, uint32_t(faults.dead_rank), 0, 0, 0);
  ++endpoint.taken_;
  if (request.verb == Verb::fence) {
    accept_fence(endpoint, request, number);
    return true;
  }
  const uint32_t index = take_flight();
  Flight& f = flight(index);
  ++endpoint.flights_;
  f = {};
  f.request = request;
  f.endpoint = &endpoint;
  f.number = number;
  f.rank = endpoint.rank_;
  f.held = f.small;
  f.live = true;
  f.previous = f.next = nobody;
  if (agenda_.by_priority()) f.priority = (1u << 20) + random_.below(1u << 30);
  if (trace_.on()) f.site = listener_.site(f.rank, request.context, request.token);
  f.code = resolve(f);
  if (trace_.on()) {
    Record& record = note(Kind::post, f);
    record.value = request.has_signal ? request.signal_add : request.value;
    record.value2 = (request.has_signal ? 1 : 0) | (request.ordered ? 2 : 0);
  }
  if (f.code == Code::ok) plant(f);
  if (f.code != Code::ok) {
    f.landed = f.settled = true;
    complete(index, perhaps_delay() + options_.model.link(f.rank, request.peer).latency_ns);
    maybe_free(index);
    return true;
  }
  if (request.verb != Verb::get) queue_in_stream(index);
  plan(index);
  maybe_free(index);
  return true;
}

// Nothing of a fence travels: what comes after it waits for what was before it.
void Network::accept_fence(Endpoint& endpoint, const Request& request, uint64_t number) {
  if (!options_.faults.ignore_order) ++endpoint.fences_;
  endpoint.done_.push_back({request.token, Code::ok, request.peer, 0});
  listener_.changed(endpoint.rank_);
  if (!trace_.on()) return;
  const Site site = listener_.site(endpoint.rank_, request.context, request.token);
  Record& record = trace_.add(agenda_.now(), Kind::post, endpoint.rank_);
  record.op = uint8_t(1 + uint32_t(Verb::fence));
  record.context = uint16_t(request.context);
  record.number = number;
  record.file = trace_.file(site.file);
  record.line = site.line;
}

// -- where it goes ------------------------------------------------------------------------------------------------

const Network::Region* Network::region(uint32_t rank, uint32_t number) const {
  const Host& host = hosts_[rank];
  if (number < host.regions.size()) return host.regions[number].present ? &host.regions[number] : nullptr;
  const auto found = host.more_regions.find(number);
  return found == host.more_regions.end() ? nullptr : &found->second;
}

bool Network::has(uint32_t rank, const char* from, uint64_t bytes) const {
  const Host& host = hosts_[rank];
  const auto inside = [&](const Region& r) {
    const uint64_t offset = uint64_t(from) - uint64_t(r.base);
    return offset <= r.bytes && bytes <= r.bytes - offset;
  };
  const auto present = [&](const Region& r) { return r.present && inside(r); };
  return std::any_of(host.regions.begin(), host.regions.end(), present) ||
         std::any_of(host.more_regions.begin(), host.more_regions.end(),
                     [&](const auto& entry) { return inside(entry.second); });
}

char* Network::place(uint32_t rank, uint32_t number, uint64_t offset, uint64_t bytes) const {
  const Region* found = region(rank, number);
  if (!found || offset > found->bytes || bytes > found->bytes - offset) return nullptr;
  return found->base + offset;
}

Code Network::resolve(Flight& f) {
  const Request& r = f.request;
  if (r.peer >= hosts_.size()) return Code::range;
  if (hosts_[r.peer].dead || hosts_[f.rank].dead) return Code::remote;
  if (r.has_signal) {
    f.signal = reinterpret_cast<uint64_t*>(place(r.peer, r.signal_region, r.signal_offset, 8));
    if (!f.signal || uintptr_t(f.signal) % 8 != 0) return Code::range;
  }
  return r.verb == Verb::signal ? Code::ok : resolve_moved(f);
}

Code Network::resolve_moved(Flight& f) {
  const Request& r = f.request;
  char* remote = place(r.peer, r.remote_region, r.remote_offset, r.bytes);
  if (!remote) return Code::range;
  if (r.verb == Verb::value) {
    f.target = remote;
    return r.bytes >= 1 && r.bytes <= 8 ? Code::ok : Code::range;
  }
  f.stack = r.verb == Verb::atomic && r.local_region == wire::local_address;
  char* local =
      f.stack ? reinterpret_cast<char*>(r.local_offset) : place(f.rank, r.local_region, r.local_offset, r.bytes);
  if (!local) return Code::range;
  f.source = r.verb == Verb::get ? remote : local;
  f.target = r.verb == Verb::get ? local : remote;
  if (r.verb == Verb::atomic && ((r.bytes != 4 && r.bytes != 8) || uintptr_t(remote) % r.bytes != 0))
    return Code::range;
  return Code::ok;
}

// What was asked to go wrong with it.
void Network::plant(Flight& f) {
  const Faults& faults = options_.faults;
  const uint64_t number = f.number - 1;
  const auto drawn = [&](uint64_t one_in) { return one_in && random_.one_in(one_in); };
  if (number == faults.fail_at || f.request.peer == faults.fail_peer || drawn(faults.fail_one_in)) {
    f.code = Code(uint32_t(faults.fail_code));
    f.detail = faults.fail_detail;
  }
  f.lost = number == faults.lose_at || drawn(faults.lose_one_in);
  f.twice = number == faults.signal_twice_at || drawn(faults.signal_twice_one_in);
}

void Network::queue_in_stream(uint32_t index) {
  Flight& f = flight(index);
  Endpoint& endpoint = *f.endpoint;
  f.stream = endpoint.stream(f.request.peer);
  Stream& stream = endpoint.streams_[f.stream];
  if (stream.fences != endpoint.fences_) {
    stream.fences = endpoint.fences_;
    stream.barrier = stream.next;
  }
  f.streamed = true;
  f.sequence = stream.next++;
  // What is ordered is not overtaken by what was before it: its bytes wait as well.
  const bool ordered = f.request.ordered && f.request.verb != Verb::signal && !options_.faults.ignore_order;
  f.barrier = ordered ? f.sequence : stream.barrier;
  f.previous = stream.last;
  if (stream.last == nobody) {
    stream.first = index;
  } else {
    flight(stream.last).next = index;
  }
  stream.last = index;
  f.waits = flight(stream.first).sequence < f.barrier;
  if (f.waits && stream.first_held == nobody) stream.first_held = index;
}

// Until it lands, its place says that nothing has: whoever reads there too early shall notice. The few words that gin itself
// gets again and again are spared.
void Network::poison(const Flight& f) {
  const Request& r = f.request;
  if (!options_.hostile || f.lost || options_.poison < (r.verb == Verb::value ? 2 : 1)) return;
  if (r.verb == Verb::atomic || (r.verb == Verb::get && r.local_region == 0 && r.bytes == 8)) return;
  if (f.source && overlap(f.source, f.target, r.bytes)) return;
  std::memset(f.target, poison_byte, r.bytes);
}

// -- when it happens ----------------------------------------------------------------------------------------------

uint64_t Network::some_delay() {
  switch (random_.below(4)) {
    case 0:
      return random_.spread(1, 64);
    case 1:
      return random_.spread(1024, 1 << 16);
    default:
      return random_.spread(64, 1 << 12);
  }
}

uint64_t Network::perhaps_delay() { return options_.hostile && random_.one_in(2) ? some_delay() : 0; }

void Network::cut(Flight& f) {
  const uint64_t bytes = f.request.bytes;
  f.pieces = 1;
  if (options_.hostile && bytes > 1 && random_.one_in(2))
    f.pieces = uint8_t(std::min<uint64_t>(bytes, 2 + random_.below(most_pieces - 1)));
  f.cut[f.pieces] = bytes;
  for (uint32_t i = 1; i < f.pieces; ++i) f.cut[i] = random_.below(bytes + 1);
  std::sort(f.cut, f.cut + f.pieces + 1);
}

// What is at the source now, and whether that is what was there when the operation was called.
void Network::sum_up(Flight& f) {
  for (uint32_t i = 0; i < f.pieces; ++i) f.sum[i] = checksum(f.source + f.cut[i], f.cut[i + 1] - f.cut[i]);
  const bool known = f.site.source == f.source && f.site.bytes == f.request.bytes;
  f.changed = known && f.site.sum != checksum(f.source, f.site.bytes);
}

void Network::plan(uint32_t index) {
  Flight& f = flight(index);
  const Verb verb = f.request.verb;
  const bool copies = verb == Verb::put || verb == Verb::get;
  if (copies) {
    cut(f);
  } else {
    f.pieces = 1;
  }
  f.missing = f.pieces;
  f.unread = copies ? f.pieces : 0;
  if (verb == Verb::put && trace_.on()) sum_up(f);
  if (f.target && verb != Verb::atomic) poison(f);
  if (options_.faults.complete_early) complete(index, 0);
  if (options_.hostile) {
    plan_hostile(index);
  } else {
    plan_modelled(index);
  }
}

void Network::plan_hostile(uint32_t index) {
  Flight& f = flight(index);
  const Verb verb = f.request.verb;
  f.early = f.unread && random_.one_in(2);
  // Nothing of a value or a signal is left at its source.
  if ((verb == Verb::value || verb == Verb::signal) && random_.one_in(2)) complete(index, perhaps_delay());
  for (uint32_t i = 0; i < f.pieces; ++i) {
    const uint64_t delay = some_delay();
    if (f.early) schedule(index, read_piece, i, random_.below(delay + 1));
    if (!f.waits) schedule(index, land_piece, i, delay);
  }
}

// Cards send and receive one message after another.
void Network::plan_modelled(uint32_t index) {
  Flight& f = flight(index);
  const Request& r = f.request;
  const bool fetches = r.verb == Verb::get;
  const Link& link = options_.model.link(f.rank, r.peer);
  Host &from = hosts_[fetches ? r.peer : f.rank], &to = hosts_[fetches ? f.rank : r.peer];
  const uint64_t bytes = r.verb == Verb::signal ? 8 : r.bytes, wire_ps = bytes * link.ps_per_byte;
  const uint64_t ready_ps = 1000 * (agenda_.now() + (fetches ? link.latency_ns : 0));
  const uint64_t start_ps = std::max(ready_ps, from.sends_free_ps) + 1000 * link.overhead_ns;
  from.sends_free_ps = start_ps + std::max(wire_ps, link.ps_per_message);
  const uint64_t there_ps = std::max(start_ps + 1000 * link.latency_ns, to.receives_free_ps) + wire_ps;
  to.receives_free_ps = there_ps;
  f.due = (there_ps + 999) / 1000;
  if (!f.waits) schedule(index, land_piece, 0, f.due - agenda_.now());
}

}  // namespace gin::sim

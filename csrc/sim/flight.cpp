// What happens to a request in the network, and the order among those of one context to one peer.
#include <cstdlib>
#include <cstring>

#include "sim/fabric.h"
#include "sim/network.h"

namespace gin::sim {

namespace {

using wire::Atomic;
using wire::Request;
using wire::Verb;

// A value lands in one store where it is aligned.
void store_value(char* to, uint64_t value, uint64_t bytes) {
  const bool aligned = uintptr_t(to) % bytes == 0;
  if (bytes == 8 && aligned) {
    __atomic_store_n(reinterpret_cast<uint64_t*>(to), value, __ATOMIC_RELAXED);
  } else if (bytes == 4 && aligned) {
    __atomic_store_n(reinterpret_cast<uint32_t*>(to), uint32_t(value), __ATOMIC_RELAXED);
  } else {
    std::memcpy(to, &value, bytes);
  }
}

template <class T>
uint64_t apply_atomic(char* word, const Request& r) {
  T old;
  std::memcpy(&old, word, sizeof(T));
  T now = old;
  const T operand = T(r.value);
  switch (r.atomic) {
    case Atomic::fetch_add:
      now = T(old + operand);
      break;
    case Atomic::compare_swap:
      now = old == T(r.compare) ? operand : old;
      break;
    case Atomic::swap:
      now = operand;
      break;
    case Atomic::fetch_and:
      now = old & operand;
      break;
    case Atomic::fetch_or:
      now = old | operand;
      break;
    case Atomic::fetch_xor:
      now = old ^ operand;
      break;
  }
  store_value(word, now, sizeof(T));
  return old;
}

}  // namespace

void Network::schedule(uint32_t index, Stage stage, uint32_t piece, uint64_t delay) {
  Flight& f = flight(index);
  ++f.events;
  agenda_.add(What::stage, index, uint32_t(stage) << 8 | piece, delay, f.priority);
}

Network::Stream& Network::stream_of(const Flight& f) { return f.endpoint->streams_[f.stream]; }

// -- the bytes ----------------------------------------------------------------------------------------------------

// Takes a piece from its source, to be held until it lands.
void Network::read(uint32_t index, uint32_t piece) {
  Flight& f = flight(index);
  if (f.read >> piece & 1 || !f.unread) return;
  f.read |= uint8_t(1u << piece);
  const uint64_t at = f.cut[piece], bytes = f.cut[piece + 1] - at;
  if (f.early && !f.lost && !(f.landed_pieces >> piece & 1)) {
    if (f.held == f.small && f.request.bytes > inline_bytes) f.held = static_cast<char*>(std::malloc(f.request.bytes));
    std::memcpy(f.held + at, f.source + at, bytes);
  }
  if (trace_.on()) {
    Record& record = note(Kind::read_source, f);
    record.piece = uint8_t(piece);
    record.offset += at;
    record.bytes = bytes;
    if (f.request.verb == Verb::put && !f.lost)
      record.value = f.changed || checksum(f.source + at, bytes) != f.sum[piece];
  }
  // A model's put completes when it is acknowledged.
  if (--f.unread == 0 && f.request.verb == Verb::put && options_.hostile) complete(index, perhaps_delay());
}

void Network::land(uint32_t index, uint32_t piece) {
  Flight& f = flight(index);
  if (hosts_[f.request.peer].dead || hosts_[f.rank].dead) {
    peer_lost(index);
    return;
  }
  if (f.landed) return;
  if (f.request.verb == Verb::put || f.request.verb == Verb::get) {
    move(f, piece);
    if (!(f.read >> piece & 1)) read(index, piece);
  } else if (!f.lost) {
    act(f);
  }
  if (trace_.on() && f.request.verb != Verb::signal) {
    Record& record = note(Kind::deliver, f);
    record.piece = uint8_t(piece);
    if (f.request.verb == Verb::put || f.request.verb == Verb::get) {
      record.offset += f.cut[piece];
      record.bytes = f.cut[piece + 1] - f.cut[piece];
    } else {
      record.value = f.request.value;
    }
  }
  if (--f.missing == 0) all_landed(index);
}

void Network::move(Flight& f, uint32_t piece) {
  f.landed_pieces |= uint8_t(1u << piece);
  const uint64_t at = f.cut[piece], bytes = f.cut[piece + 1] - at;
  if (f.lost || !bytes) return;
  const char* from = f.read >> piece & 1 ? f.held : f.source;
  std::memmove(f.target + at, from + at, bytes);
}

// A value is stored, an atomic carried out.
void Network::act(Flight& f) {
  const Request& r = f.request;
  if (r.verb == Verb::value) {
    store_value(f.target, r.value, r.bytes);
  } else if (r.verb == Verb::atomic) {
    const uint64_t old = r.bytes == 8 ? apply_atomic<uint64_t>(f.target, r) : apply_atomic<uint32_t>(f.target, r);
    std::memcpy(f.small, &old, 8);
  }
}

void Network::all_landed(uint32_t index) {
  Flight& f = flight(index);
  f.landed = true;
  listener_.changed(f.request.peer);
  if (f.request.has_signal && !f.lost) {
    let_signal(index);
  } else {
    settle(index);
  }
  const Link& link = options_.model.link(f.rank, f.request.peer);
  // A get that has landed here has nothing more to wait for; others are acknowledged.
  const bool here = options_.hostile || f.request.verb == Verb::get;
  complete(index, perhaps_delay() + (here ? 0 : link.latency_ns));
}

// -- the signal ---------------------------------------------------------------------------------------------------

bool Network::may_signal(const Flight& f, uint32_t index) {
  if (!f.request.ordered || options_.faults.ignore_order || !f.endpoint) return true;
  return stream_of(f).first == index;
}

void Network::let_signal(uint32_t index) {
  Flight& f = flight(index);
  if (f.applying || !may_signal(f, index)) return;
  f.applying = true;
  const uint64_t delay = f.request.verb == Verb::signal ? 0 : perhaps_delay();
  if (delay || agenda_.by_priority()) {
    schedule(index, apply, 0, delay);
  } else {
    add_signal(index);
  }
}

void Network::add_signal(uint32_t index) {
  Flight& f = flight(index);
  if (hosts_[f.request.peer].dead || hosts_[f.rank].dead) {
    peer_lost(index);
    return;
  }
  if (!f.lost) {
    *f.signal += f.request.signal_add * (f.twice ? 2 : 1);
    if (trace_.on()) {
      Record& record = note(Kind::signal, f);
      record.region = f.request.signal_region;
      record.offset = f.request.signal_offset;
      record.bytes = 8;
      record.value = f.request.signal_add;
      record.value2 = *f.signal;
    }
  }
  listener_.changed(f.request.peer);
  settle(index);
}

// -- its ends -----------------------------------------------------------------------------------------------------

// Has it complete at its source, once.
void Network::complete(uint32_t index, uint64_t delay) {
  Flight& f = flight(index);
  if (f.finishing) return;
  f.finishing = true;
  if (delay || agenda_.by_priority()) {
    schedule(index, finish, 0, delay);
  } else {
    finished(index);
  }
}

void Network::finished(uint32_t index) {
  Flight& f = flight(index);
  f.completed = true;
  const Request& r = f.request;
  if (r.verb == Verb::atomic && f.code == Code::ok && f.source && !f.lost) std::memcpy(f.source, f.small, r.bytes);
  if (trace_.on()) note(Kind::complete, f).value = uint64_t(f.code);
  if (!f.endpoint) return;
  if (f.code == Code::ok && !f.settled) {
    f.counted = true;
    ++f.endpoint->unsettled_;
  }
  f.endpoint->done_.push_back({r.token, f.code, r.peer, f.detail});
  listener_.changed(f.rank);
}

void Network::settle(uint32_t index) {
  Flight& f = flight(index);
  if (f.settled) return;
  f.settled = true;
  if (trace_.on()) note(Kind::settle, f);
  if (f.endpoint && f.counted && --f.endpoint->unsettled_ == 0) listener_.changed(f.rank);
  if (f.streamed && f.endpoint) unlink(index);
}

// Its peer, or its own rank, has died before it was over.
void Network::peer_lost(uint32_t index) {
  Flight& f = flight(index);
  if (f.settled) return;
  f.landed = true;
  if (!f.finishing || !f.completed) {
    f.code = Code::remote;
  } else if (f.endpoint && f.code == Code::ok) {
    f.endpoint->done_.push_back({wire::no_request, Code::remote, f.request.peer, 0});
    listener_.changed(f.rank);
  }
  f.unread = 0;
  settle(index);
  complete(index, 0);
}

// -- order --------------------------------------------------------------------------------------------------------

void Network::unlink(uint32_t index) {
  Flight& f = flight(index);
  Stream& stream = stream_of(f);
  (f.previous == nobody ? stream.first : flight(f.previous).next) = f.next;
  (f.next == nobody ? stream.last : flight(f.next).previous) = f.previous;
  if (stream.first_held == index) stream.first_held = f.next;
  if (f.previous == nobody && stream.first != nobody) let_go(stream);
}

// The oldest of a stream has settled: what waited for it goes on.
void Network::let_go(Stream& stream) {
  const uint64_t oldest = flight(stream.first).sequence;
  while (stream.first_held != nobody) {
    const uint32_t index = stream.first_held;
    if (flight(index).waits && flight(index).barrier > oldest) break;
    stream.first_held = flight(index).next;
    if (flight(index).waits) let_land(index);
  }
  const uint32_t first = stream.first;
  if (const Flight& f = flight(first); f.landed && f.request.has_signal && f.request.ordered) let_signal(first);
}

void Network::let_land(uint32_t index) {
  Flight& f = flight(index);
  f.waits = false;
  for (uint32_t i = 0; i < f.pieces; ++i) {
    const uint64_t now = agenda_.now();
    schedule(index, land_piece, i, options_.hostile ? some_delay() : f.due > now ? f.due - now : 0);
  }
}

}  // namespace gin::sim

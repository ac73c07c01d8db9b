// The simulated network of a job: takes requests as a wire does and carries them out in virtual time.
//
// A request is a flight. Its source is read in pieces at or after the post, the pieces land at the target in any order, and
// then its signal is applied; meanwhile it completes at its source. What may happen before what is the contract's, and
// everything else is the seed's: see post.cpp for how times are drawn and flight.cpp for the order between flights.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sim/agenda.h"
#include "sim/options.h"
#include "sim/random.h"
#include "sim/trace.h"
#include "wire/wire.h"

namespace gin::sim {

// Who is told when something has changed that a rank's threads or proxies may wait for, and asked who posts.
class Listener {
 public:
  virtual ~Listener() = default;
  virtual void changed(uint32_t rank) = 0;
  // Where in a kernel's source the operation was called that a rank posts now under this token.
  virtual Site site(uint32_t rank, uint32_t context, uint64_t token) = 0;
};

constexpr uint32_t nobody = 0xffffffffu;

class Network {
 public:
  Network(uint32_t ranks, const Options& options, Agenda& agenda, Random& random, Trace& trace, Listener& listener);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // A rank's wire. The network must outlive it and its endpoints.
  std::shared_ptr<wire::Fabric> fabric(uint32_t rank, uint32_t group);

  // An event of What::stage.
  void happen(uint32_t flight, uint32_t tag);

  // From now on the rank neither sends nor answers.
  void kill(uint32_t rank);
  // The end: nothing that endpoints do from now on reaches the network.
  void let_go() { *lives_ = false; }
  // The memory of the rank's threads is no more: what is in flight must not write there.
  void forget_stacks(uint32_t rank);
  // Nor to these bytes, which no region has any more.
  void forget_memory(const char* from, uint64_t bytes);
  // Whether one of the rank's regions has these bytes.
  bool has(uint32_t rank, const char* from, uint64_t bytes) const;

  uint64_t operations() const { return numbers_; }
  uint64_t in_flight() const { return in_flight_; }
  bool dead(uint32_t rank) const { return hosts_[rank].dead; }
  std::string report() const;

 private:
  friend class Fabric;
  friend class Endpoint;

  struct Region {
    char* base = nullptr;
    uint64_t bytes = 0;
    bool present = false;
  };

  // What is known of a rank. Few bytes, as there may be thousands that never send.
  struct Host {
    std::vector<Region> regions;                       // by number
    std::map<uint32_t, Region> more_regions;           // with large numbers
    uint64_t sends_free_ps = 0, receives_free_ps = 0;  // model: when the card is free again
    bool dead = false;
  };

  // The requests of one context to one peer that have not settled, oldest first.
  struct Stream {
    uint32_t first = nobody, last = nobody;
    uint32_t first_held = nobody;  // those before it do not wait
    uint32_t fences = 0;           // of the endpoint's, seen
    uint64_t next = 1;             // sequence of the next request
    uint64_t barrier = 0;          // requests have to wait until those before this sequence have settled
  };

  static constexpr uint32_t most_pieces = 4, inline_bytes = 16;

  struct Flight {
    wire::Request request;
    class Endpoint* endpoint;  // nullptr once that is gone
    uint64_t number;           // of the request, from 1 on
    uint64_t sequence, barrier;
    uint64_t priority;
    uint64_t due;           // model: when it lands
    char *source, *target;  // of the bytes; the answer and the word of an atomic
    uint64_t* signal;
    char* held;  // bytes that have left the source and not landed
    char small[inline_bytes];
    uint64_t cut[most_pieces + 1];
    uint64_t sum[most_pieces];  // of the source at the post, where there is a trace
    uint32_t rank, stream;
    uint32_t previous, next;  // in the stream
    uint32_t events;          // to come
    Site site;
    uint64_t detail;
    Code code;
    uint8_t pieces, unread, missing, read, landed_pieces;  // the last two: a bit per piece
    bool live, streamed;
    bool waits;      // for those before its barrier
    bool early;      // its source is read before it lands
    bool landed;     // all bytes are there
    bool applying;   // its signal will be added
    bool finishing;  // it will complete
    bool completed, settled;
    bool counted;      // among the endpoint's that have completed and not settled
    bool lost, twice;  // planted defects
    bool stack;        // its answer goes to a thread's stack
    bool changed;      // its source is not what it was when the kernel called the operation
  };

  enum Stage : uint32_t { read_piece, land_piece, apply, finish };
  static uint32_t tag(Stage stage, uint32_t piece = 0) { return stage << 8 | piece; }

  Flight& flight(uint32_t index) { return chunks_[index / chunk][index % chunk]; }
  const Flight& flight(uint32_t index) const { return chunks_[index / chunk][index % chunk]; }

  // post.cpp
  bool accept(class Endpoint& endpoint, const wire::Request& request);
  void accept_fence(class Endpoint& endpoint, const wire::Request& request, uint64_t number);
  Code resolve(Flight& f);
  Code resolve_moved(Flight& f);
  char* place(uint32_t rank, uint32_t region, uint64_t offset, uint64_t bytes) const;
  const Region* region(uint32_t rank, uint32_t number) const;
  void plant(Flight& f);
  void queue_in_stream(uint32_t index);
  void poison(const Flight& f);
  void plan(uint32_t index);
  void plan_hostile(uint32_t index);
  void plan_modelled(uint32_t index);
  void cut(Flight& f);
  void sum_up(Flight& f);
  uint64_t some_delay();
  uint64_t perhaps_delay();

  // flight.cpp
  void schedule(uint32_t index, Stage stage, uint32_t piece, uint64_t delay);
  void read(uint32_t index, uint32_t piece);
  void all_read(uint32_t index);
  void land(uint32_t index, uint32_t piece);
  void move(Flight& f, uint32_t piece);
  void act(Flight& f);
  void all_landed(uint32_t index);
  bool may_signal(const Flight& f, uint32_t index);
  void let_signal(uint32_t index);
  void add_signal(uint32_t index);
  void complete(uint32_t index, uint64_t delay);
  void finished(uint32_t index);
  void settle(uint32_t index);
  void unlink(uint32_t index);
  void let_go(Stream& stream);
  void let_land(uint32_t index);
  void peer_lost(uint32_t index);
  Stream& stream_of(const Flight& f);

  // network.cpp
  uint32_t take_flight();
  void maybe_free(uint32_t index);
  void abandon(Endpoint& endpoint);
  void drop_region(uint32_t rank, uint32_t number);
  void let_go_of(const char* from, uint64_t bytes);
  Record& note(Kind kind, const Flight& f);
  template <class Body>
  void each_live(Body body);

  const Options options_;
  Agenda& agenda_;
  Random& random_;
  Trace& trace_;
  Listener& listener_;
  std::vector<Host> hosts_;
  static constexpr uint32_t chunk = 256;
  std::vector<std::unique_ptr<Flight[]>> chunks_;
  std::vector<uint32_t> free_;
  uint32_t made_ = 0;
  const std::shared_ptr<bool> lives_ = std::make_shared<bool>(true);
  uint64_t numbers_ = 0, in_flight_ = 0, registrations_ = 0;
};

}  // namespace gin::sim

// What a simulation is told: seed, policy, network model, faults.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace gin::sim {

using Texts = std::map<std::string, std::string>;

enum class Policy { random, pct };

// A class of links, as LogGP has it.
struct Link {
  uint64_t latency_ns;      // from the sender's card to the receiver's memory
  uint64_t overhead_ns;     // of each message, on the sender's card
  uint64_t ps_per_byte;     // 1000 / (GB/s), in and out of each card
  uint64_t ps_per_message;  // the least time between two messages of a card: 1e6 / (messages per us)
};

enum class Reach { self, node, network };

struct Model {
  Link links[3] = {{300, 20, 5, 10'000}, {1000, 50, 10, 20'000}, {2500, 100, 40, 50'000}};
  uint32_t ranks_per_node = 1;
  uint64_t post_ns = 100;   // a thread's time for an operation
  uint64_t poll_ns = 50;    // from a change to the thread that waits for it
  uint64_t proxy_ns = 200;  // a step of a proxy that moves something
  uint64_t launch_ns = 3000;

  Reach reach(uint32_t a, uint32_t b) const {
    if (a == b) return Reach::self;
    return a / ranks_per_node == b / ranks_per_node ? Reach::node : Reach::network;
  }
  const Link& link(uint32_t a, uint32_t b) const { return links[uint32_t(reach(a, b))]; }
};

// What goes wrong. The first group is what networks do; the second breaks the library's promises, for tests that have to
// notice.
struct Faults {
  static constexpr uint64_t off = UINT64_MAX;

  uint64_t fail_at = off;    // the request with this number (from 0, of the job) ends in error, before it moves a byte
  uint64_t fail_one_in = 0;  // one request in so many does, by the seed
  uint64_t fail_peer = off;  // each request to this peer does
  uint64_t fail_code = 2;    // a gin::Code
  uint64_t fail_detail = 0;
  uint64_t dead_rank = off;      // dies ...
  uint64_t dead_after = 0;       // ... when the job has posted so many requests
  uint64_t refuse_one_in = 0;    // one post in so many is refused, to be tried again
  uint64_t register_at = off;    // the registration with this number (from 0) fails ...
  uint64_t register_rank = off;  // ... on this rank (off: counted over the job, by rank order of calls)

  uint64_t ignore_order = 0;    // 1: ordered signals are weak and fences nothing
  uint64_t settle_early = 0;    // 1: what has completed is called settled
  uint64_t complete_early = 0;  // 1: requests complete before their source is read
  uint64_t lose_at = off;       // the request with this number completes and settles without having moved a byte
  uint64_t lose_one_in = 0;
  uint64_t signal_twice_at = off;  // the signal of the request with this number is applied twice
  uint64_t signal_twice_one_in = 0;
};

struct Options {
  uint64_t seed = 0;
  Policy policy = Policy::random;
  uint64_t depth = 3;       // pct: preemptions + 1
  uint64_t steps = 10'000;  // pct: the steps among which the preemptions fall
  bool hostile = true;      // deliver as badly as the contract allows; otherwise by the model alone
  // Undelivered ranges: 0 keep their bytes, 1 of puts and gets read as poison, 2 of values as well. A value lands in one
  // store: until then, the one before it is there.
  uint32_t poison = 1;
  bool stalls = true;   // with hostile: ranks, blocks and proxies stall
  bool direct = false;  // ranks may load and store each other's memory
  bool trace = false;
  uint64_t max_message = 1ull << 30;
  uint64_t queue = 4096;            // requests of an endpoint that are taken and not yet polled
  uint32_t max_threads = 0;         // of a launch, resident at once; 0 for as many as there are stacks
  uint64_t patience = 50'000'000;   // steps in a row that change nothing before it counts as stuck
  uint64_t most_steps = 0;          // after which nothing moves any more; 0: none
  uint64_t spin_limit_ms = 10'000;  // processor time that a thread may keep its turn; 0: any
  Model model;
  Faults faults;

  // Throws gin::Error{config} for a name that does not exist and a value that is none.
  static Options parse(const Texts& texts);
  static std::string names();
};

}  // namespace gin::sim

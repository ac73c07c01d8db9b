// The way from one context set of this rank to one peer. Large puts between GPUs, and gets, are copied from here, in streams
// that contexts share; a word per context in the peer's inbox says how far it is. Everything else is a message there: the
// peer copies small puts by itself, in the stream in which it writes signals, so that nobody waits for a copy before the
// signal is on its way.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "nccl_plugin/gpu.h"
#include "nccl_plugin/message.h"
#include "nccl_plugin/region.h"

namespace gin::rma {

class Context;
class Outlet;

// What NCCL tests for. A put is done when its source may be used again, a get when its bytes have landed.
struct Request {
  Context* context = nullptr;
  Outlet* outlet = nullptr;
  uint32_t flow = 0;
  uint64_t mark = 0;     // of the flow's stream; 0 for none
  uint64_t pull = 0;     // of the flow's that the peer copies; 0 for none
  uint64_t missing = 0;  // bytes of a get
  uint64_t token = 0;    // of a get by messages
  bool queued = false;   // part of it is still to be sent
};

struct Signal {
  Region* region = nullptr;  // none: no signal
  uint64_t offset = 0;
  uint64_t add = 0;
  bool strong = false;
};

struct Transfer {
  uint32_t context = 0;
  Region* source = nullptr;  // may be null without bytes, as may target
  uint64_t source_offset = 0;
  Region* target = nullptr;
  uint64_t target_offset = 0;
  uint64_t bytes = 0;
};

class Outlet {
 public:
  // memory  this rank's lane in the peer's inbox
  // head    its first part as the GPU sees it; null without a GPU
  // staged  its chunks, in the same way; null for this rank itself
  // lanes   what contexts copy in, in turn; none without a GPU
  Outlet(uint32_t peer, LaneMemory memory, std::shared_ptr<Pinned> head, std::unique_ptr<Pinned> staged,
         const std::vector<std::shared_ptr<Lane>>& lanes, uint32_t contexts, uint64_t pull);

  void put(const Transfer& transfer, const Signal& signal, Request& request);
  // From the peer's `source` to this rank's `target`.
  void get(const Transfer& transfer, Request& request);
  // Puts what the peer has asked for.
  void answer(const Message& fetch, std::shared_ptr<Region> source);

  bool done(const Request& request) const;

  // Bytes of a get have arrived.
  void landed(uint64_t bytes) { fetching_ -= bytes; }

  // Sends what waits and marks what was copied.
  void pump();

  uint32_t peer() const { return peer_; }
  // Something is not done that the peer, or the GPU, has to do; then `steps` changes in time.
  bool waiting() const;
  uint64_t steps() const;
  bool failed() const { return failed_ || load(memory_.failed()) != 0; }
  void fail();
  void finish(double seconds);

 private:
  struct Item {
    Message message;
    std::shared_ptr<Region> source;  // of bytes that go by chunks
    uint64_t source_offset;
    uint64_t left;
    Request* request;
  };

  // One context's.
  struct Flow {
    std::shared_ptr<Lane> lane;
    uint64_t marked = 0;
    uint64_t pulls = 0;     // that the peer was asked for
    uint32_t unmarked = 0;  // copies after the last mark
    bool active = false;
    std::deque<Item> waiting;
  };

  static constexpr uint32_t most_unmarked = 16;

  void copy(Flow& flow, uint32_t context, Address to, Address from, uint64_t bytes, Copy way = Copy::straight);
  void mark(Flow& flow, uint32_t context);
  uint64_t settled_by(Flow& flow, uint32_t context);
  void activate(Flow& flow, uint32_t context);
  Message message(Content content, const Transfer& transfer, const Signal& signal) const;
  bool can_pull(const Transfer& transfer) const;
  void put_directly(const Transfer& transfer, const Signal& signal, Request& request);
  void enqueue(Item item);
  bool send(Item& item);
  bool send_chunk(Item& item);
  bool push(const Message& message);
  bool room();
  uint64_t taken() const { return load(memory_.taken()); }
  int free_chunk() const;
  Address mark_address(uint32_t context) const { return head_->device(memory_.mark(context)); }

  uint32_t peer_;
  LaneMemory memory_;
  std::shared_ptr<Pinned> head_;
  std::unique_ptr<Pinned> chunks_;
  uint64_t pull_;
  std::vector<Flow> flows_;
  std::vector<uint32_t> active_;  // contexts with something waiting or not marked
  uint64_t sent_ = 0, taken_ = 0;
  uint64_t waiting_ = 0;   // items
  uint64_t fetching_ = 0;  // bytes
  bool failed_ = false;
};

}  // namespace gin::rma

// What one peer has sent to one context set of this rank: messages are applied in their order per context, once the copies
// that they cover have settled.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "nccl_plugin/comm.h"
#include "nccl_plugin/message.h"

namespace gin::rma {

class Inlet {
 public:
  // What a message can ask of the context set.
  class Owner {
   public:
    virtual void fetched(uint32_t peer, const Message& fetch, std::shared_ptr<Region> source) = 0;
    virtual void landed(uint64_t token, uint64_t bytes) = 0;

   protected:
    ~Owner() = default;
  };

  // memory  the peer's lane in this rank's inbox
  // heads   the inbox's first part as the GPU sees it; null without a GPU
  // staged  the lane's chunks, in the same way; null for this rank itself
  Inlet(uint32_t peer, LaneMemory memory, std::shared_ptr<Pinned> heads, std::unique_ptr<Pinned> staged,
        uint32_t contexts, Comm& comm, Owner& owner);

  ~Inlet();  // with the words locked
  Inlet(const Inlet&) = delete;
  Inlet& operator=(const Inlet&) = delete;

  // Applies what can be applied. Throws gin::Error when the peer asks for what it may not.
  void poll();

  bool failed() const { return load(memory_.failed()) != 0; }
  void fail();

 private:
  using Queue = std::deque<Message>;

  // A chunk that the GPU is reading.
  struct Landing {
    uint64_t number;
    uint32_t chunk;
    uint64_t token;  // of a get
    uint64_t bytes;
    bool answer;
  };

  // What this rank's GPU does for one context.
  struct Work {
    uint64_t pulls = 0;     // that it was given
    bool unmarked = false;  // something that it was given is not before `number`
    uint64_t number = 0;    // when it has passed this
  };

  bool apply(Message& message, const Queue* owner);
  bool settled(const Message& message) const;
  void land(const Message& message);
  void land_chunk(const Message& message, Region& target);
  bool landed_before(uint32_t context);
  void pull(const Message& message, Region& target);
  void mark_pulls();
  void reap();
  std::shared_ptr<Region> region(uint32_t number, uint64_t offset, uint64_t bytes);

  uint32_t peer_;
  LaneMemory memory_;
  std::shared_ptr<Pinned> heads_;
  std::unique_ptr<Pinned> chunks_;
  Comm& comm_;
  Owner& owner_;
  std::vector<Queue> queues_;     // by context: what waits
  std::vector<uint32_t> active_;  // contexts whose queue is not empty
  std::deque<Landing> landings_;
  std::vector<Work> gpu_;         // by context
  std::vector<uint32_t> pulled_;  // contexts whose pulls are not marked
  uint64_t taken_ = 0;
};

}  // namespace gin::rma

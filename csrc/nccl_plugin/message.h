// What ranks of one communicator say to one another in memory they share. Each context set of a rank has one inbox, a
// segment that all ranks map, with one lane per sender: a ring of messages, words that say how far the sender's copies are,
// and chunks for bytes that cannot go straight to their target.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstring>

namespace gin::rma {

enum class Content : uint32_t {
  bytes,   // `data` holds them
  chunk,   // a chunk of the lane holds them
  signal,  // nothing, or what the sender's GPU copies
  pull,    // memory of the sender's GPU holds them: at `token` of region `chunk`
  fetch,   // asks for `bytes` of `region` at `offset`, to be put to `signal_region` at `signal_offset` of the asker
};

constexpr uint32_t has_signal = 1;
constexpr uint32_t answer = 2;  // of a fetch, whose number is `token`

constexpr uint64_t most_inline = 48;
constexpr uint64_t ring = 256, chunks = 8, chunk_bytes = 512 << 10;
constexpr uint64_t line = 64;

// What a GPU is given is whole pages of this size: the same on all ranks, which are on one host.
inline uint64_t page() { return uint64_t(sysconf(_SC_PAGESIZE)); }

struct Message {
  Content content;
  uint32_t context;
  uint32_t region;
  uint32_t flags;
  uint64_t offset;
  uint64_t bytes;
  uint32_t signal_region;
  uint32_t chunk;
  uint64_t signal_offset;
  uint64_t signal_add;
  uint64_t after;  // the mark that the sender's copies have to have passed
  uint64_t token;
  char data[most_inline];
};

struct Slot {
  Message message;
  uint64_t turn;  // the message's number, from 1, once it is there
};
static_assert(sizeof(Slot) == 128);

inline uint64_t load(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
inline void store(uint64_t* word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

// One sender's lane in an inbox.
class LaneMemory {
 public:
  LaneMemory() = default;
  LaneMemory(void* inbox, uint32_t sender, uint32_t senders, uint32_t contexts)
      : base_(static_cast<char*>(inbox) + sender * head_bytes(contexts)),
        chunks_(static_cast<char*>(inbox) + senders * head_bytes(contexts) + sender * chunks * chunk_bytes),
        contexts_(contexts) {}

  static uint64_t head_bytes(uint32_t contexts) {
    const uint64_t bytes = (2 + chunks + 2 * uint64_t(contexts)) * line + ring * sizeof(Slot);
    return (bytes + page() - 1) / page() * page();
  }
  static uint64_t inbox_bytes(uint32_t senders, uint32_t contexts) {
    return senders * (head_bytes(contexts) + chunks * chunk_bytes);
  }

  char* head() const { return base_; }
  uint64_t* taken() const { return word(0); }   // messages that the receiver has taken
  uint64_t* failed() const { return word(1); }  // nonzero: one side cannot go on
  uint64_t* busy(uint64_t chunk) const { return word(2 + chunk); }
  uint64_t* mark(uint64_t context) const { return word(2 + chunks + context); }  // copies of the sender
  uint64_t* pulled(uint64_t context) const { return word(2 + chunks + contexts_ + context); }
  Slot* slot(uint64_t number) const {
    return reinterpret_cast<Slot*>(base_ + (2 + chunks + 2 * uint64_t(contexts_)) * line) + number % ring;
  }
  char* chunk(uint64_t index) const { return chunks_ + index * chunk_bytes; }

 private:
  uint64_t* word(uint64_t index) const { return reinterpret_cast<uint64_t*>(base_ + index * line); }

  char* base_ = nullptr;
  char* chunks_ = nullptr;
  uint32_t contexts_ = 0;
};

}  // namespace gin::rma

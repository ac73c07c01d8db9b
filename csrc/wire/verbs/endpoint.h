// One thread's queue pairs, one per peer, and the completion queue that they share. Nothing of the data path allocates
// or locks.
#pragma once

#include <memory>
#include <vector>

#include "wire/completions.h"
#include "wire/verbs/queue.h"
#include "wire/verbs/thread_domain.h"
#include "wire/wire.h"

namespace gin::wire::verbs {

class VerbsEndpoint final : public Endpoint {
 public:
  explicit VerbsEndpoint(std::shared_ptr<Core> core);
  ~VerbsEndpoint() override;

  size_t post(const Request* requests, size_t count) override;
  size_t poll(Completion* completions, size_t count) override;
  bool settled() override;
  void abandon(uint32_t peer) override;

  uint32_t device() const { return device_; }

  // For the fabric, while no other thread uses the endpoint.
  Queue& queue(uint32_t peer) { return queues_[peer]; }
  bool probe(uint32_t peer, uint64_t bytes);  // writes to the peer's board, whether it could
  bool say_goodbye(uint32_t peer);

 private:
  static constexpr uint32_t chain_length = 256, most_slots = 64;
  static constexpr uint64_t number_bits = 48, number_mask = (uint64_t(1) << number_bits) - 1;

  static constexpr uint16_t no_slot = 0xffff;

  // An atomic under way: the device's answer comes back in a word of its own. What the device cannot do is done by
  // comparing and swapping the aligned 8 bytes around the target until nobody was faster. Of several such atomics on the
  // same 8 bytes one at a time is posted, the first, and does the work of all that had come by then: they would only fail
  // one another.
  struct Slot {
    uint64_t token;
    Atomic atomic;
    uint8_t bytes, shift;  // of the target in its 8 bytes
    Queue* queue;
    char* result;
    uint64_t operand, compare;
    uint64_t expected;  // what the 8 bytes are taken to be
    uint64_t target;
    uint32_t key;
    uint16_t follower;               // whose work is done with this one's, after it
    uint16_t waiting, last_waiting;  // of the first: those that came after it was posted

    bool native() const { return bytes == 8 && (atomic == Atomic::fetch_add || atomic == Atomic::compare_swap); }
    uint64_t part(uint64_t word) const { return bytes == 8 ? word : word >> shift & 0xffffffffu; }
    uint64_t desired(uint64_t word) const;
  };

  // from requests to work requests
  bool take(const Request& r);
  bool take_atomic(const Request& r, Queue& q);
  bool has_room(const Queue& q, uint32_t requests) const;
  const Board& board(uint32_t peer) const { return core_->peers[peer].boards[device_]; }
  bool end(const Request& r, Code code, uint64_t detail);
  ibv_send_wr& chain(Queue& q, ibv_wr_opcode opcode, uint64_t target, uint32_t key, Entry entry);
  void write(Queue& q, const Request& r, const LocalRegion* local, const RemoteRegion& remote, Entry entry);
  void read(Queue& q, const Request& r, const LocalRegion& local, const RemoteRegion& remote, Entry entry);
  void add(Queue& q, uint64_t target, uint32_t key, uint64_t value, Entry entry);
  bool write_board(uint32_t peer, uint64_t target, uint64_t bytes);
  void read_back(Queue& q);
  bool join(uint16_t slot);
  bool waits_for_writes(const Queue& q) const;
  void post_slot(uint16_t slot);
  void post_again(uint16_t slot);
  void release_held();
  uint64_t joint(uint16_t slot, uint64_t word) const;
  bool starts_fenced(Queue& q);
  bool keep_fence(Queue& q);
  void ring();
  void refused(Queue& q, int error);
  void give_up(Queue& q, uint64_t syndrome);
  int shut(Queue& q);

  // from completions to completions
  void collect();
  size_t hand_out(Completion* completions, size_t count);
  bool retire(Queue& q, Completion* completions, size_t count, size_t& got);
  void note_landed(Queue& q);
  void finish_slot(uint16_t slot, bool failed);
  void hand_back(uint16_t first, uint64_t found, bool failed);
  void make_ready(Queue& q);
  void lose(Queue& q, uint64_t from, uint64_t syndrome);

  const std::shared_ptr<Core> core_;
  const uint32_t number_, device_;  // of this endpoint, and of the device that it is on
  const uint32_t depth_, inline_bytes_;
  const bool soft_;       // the device is Soft-RoCE
  const bool relaxed_;    // writes may overtake each other on their way to memory
  CompletionQueue done_;  // of requests that needed no work request
  size_t taken_ = 0;      // requests that were taken and not yet handed back
  size_t most_taken_;
  size_t in_flight_ = 0, most_in_flight_ = 0;  // work requests that may still need room in the completion queue
  uint64_t fences_ = 0;

  Pages words_;  // one that nobody reads, one per slot, then a page to send from
  std::vector<Slot> slots_;
  std::vector<uint16_t> free_slots_;
  std::vector<uint16_t> swapping_;  // those that are posted and may do the work of others
  std::vector<uint16_t> held_;      // those to be posted once the writes before them have completed
  std::vector<Entry> entries_;

  std::vector<ibv_send_wr> requests_;
  std::vector<ibv_sge> pieces_;
  std::vector<uint64_t> values_;
  uint32_t chained_ = 0;
  bool settling_ = false;                            // `settled` was asked, and has not been true since
  std::vector<Queue*> touched_, ready_, unsettled_;  // with room for all queues

  const ThreadDomain domain_;
  CqHandle completions_;
  std::vector<Queue> queues_;  // after what their queue pairs use
};

}  // namespace gin::wire::verbs

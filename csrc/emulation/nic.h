// The network card of an emulated library: numbers what is posted, tells what has completed and settled, in order.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "gin/comm.h"
#include "wire/wire.h"

namespace gin::emulation {

// Posted to and asked by the one OS thread that runs the kernels.
class Nic {
 public:
  // Failures go to `record`, the first one wins.
  Nic(wire::Fabric& fabric, uint32_t contexts, Record* record);

  // The operation's number within its context, from 1 on; 0 when the wire takes nothing now. On completion adds 1 to
  // *counter, if there is one.
  uint64_t post(const wire::Request& request, uint64_t* counter);
  bool completed(uint32_t context, uint64_t number);
  bool settled(uint32_t context, uint64_t number);
  uint64_t posted(uint32_t context) const { return streams_[context].issued; }
  void progress(uint32_t context);

  // Records that a wait for this card has passed its deadline.
  void overdue(uint32_t context, Operation operation, uint64_t timeout_ns);

 private:
  // Where an atomic's old value goes: the wire writes to the card, which passes it on while the job is well. Otherwise the
  // thread that asked may have gone, and its stack with it.
  struct Answer {
    uint64_t value = 0;
    void* to = nullptr;
    uint64_t bytes = 0;
  };
  struct Slot {
    uint64_t* counter;
    Answer* answer;
    Operation operation;
    bool done;
  };
  struct Stream {
    std::unique_ptr<wire::Endpoint> endpoint;
    std::vector<Slot> slots;  // of the operations retired + 1 to issued; a power of two of them
    uint64_t issued = 0, retired = 0;
    uint64_t settled = 0, asked = 0;  // of those retired; the wire was first asked about so many
    std::deque<Answer> answers;
    std::vector<Answer*> free_answers;
  };

  static Answer* take_answer(Stream& stream, wire::Request& request);
  void pass_on(Stream& stream, Answer& answer, bool ok);
  void complete(uint32_t context, Stream& stream, const wire::Completion& completion);

  std::vector<Stream> streams_;
  Record* record_;
};

}  // namespace gin::emulation

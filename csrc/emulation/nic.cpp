#include "emulation/nic.h"

#include <cstring>

#include "proxy/record.h"

namespace gin::emulation {

namespace {

Operation operation_of(wire::Verb verb) {
  switch (verb) {
    case wire::Verb::put:
      return Operation::put;
    case wire::Verb::get:
      return Operation::get;
    case wire::Verb::value:
      return Operation::put_value;
    case wire::Verb::signal:
      return Operation::signal;
    case wire::Verb::atomic:
      return Operation::atomic;
    case wire::Verb::fence:
      return Operation::fence;
  }
  return Operation::none;
}

}  // namespace

Nic::Nic(wire::Fabric& fabric, uint32_t contexts, Record* record) : streams_(contexts), record_(record) {
  for (Stream& stream : streams_) {
    stream.endpoint = fabric.endpoint();
    stream.slots.resize(8);
  }
}

uint64_t Nic::post(const wire::Request& request, uint64_t* counter) {
  Stream& stream = streams_[request.context];
  if (stream.issued - stream.retired == stream.slots.size()) {
    progress(request.context);
    if (stream.issued - stream.retired == stream.slots.size()) {
      std::vector<Slot> wider(2 * stream.slots.size());
      for (uint64_t number = stream.retired + 1; number <= stream.issued; ++number) {
        wider[number & (wider.size() - 1)] = stream.slots[number & (stream.slots.size() - 1)];
      }
      stream.slots.swap(wider);
    }
  }
  const uint64_t number = stream.issued + 1;
  wire::Request numbered = request;
  numbered.token = number;
  Answer* answer = nullptr;
  if (request.verb == wire::Verb::atomic && request.local_region == wire::local_address)
    answer = take_answer(stream, numbered);
  stream.slots[number & (stream.slots.size() - 1)] = {counter, answer, operation_of(request.verb), false};
  if (stream.endpoint->post(&numbered, 1) == 0) {
    if (answer) stream.free_answers.push_back(answer);
    progress(request.context);
    return 0;
  }
  stream.issued = number;
  return number;
}

Nic::Answer* Nic::take_answer(Stream& stream, wire::Request& request) {
  if (stream.free_answers.empty()) {
    stream.answers.emplace_back();
    stream.free_answers.push_back(&stream.answers.back());
  }
  Answer* answer = stream.free_answers.back();
  stream.free_answers.pop_back();
  answer->to = reinterpret_cast<void*>(request.local_offset);
  answer->bytes = request.bytes;
  request.local_offset = reinterpret_cast<uint64_t>(&answer->value);
  return answer;
}

void Nic::pass_on(Stream& stream, Answer& answer, bool ok) {
  if (ok && !proxy::has_failed(*record_)) std::memcpy(answer.to, &answer.value, answer.bytes);
  stream.free_answers.push_back(&answer);
}

void Nic::complete(uint32_t context, Stream& stream, const wire::Completion& completion) {
  if (completion.token == wire::no_request) {
    proxy::Failure failure;
    failure.code = completion.code;
    failure.operation = Operation::quiet;
    failure.peer = int32_t(completion.peer);
    failure.context = context;
    failure.detail = completion.detail;
    proxy::fail(*record_, failure);
    return;
  }
  Slot& slot = stream.slots[completion.token & (stream.slots.size() - 1)];
  slot.done = true;
  if (slot.answer) pass_on(stream, *slot.answer, completion.code == Code::ok);
  if (completion.code != Code::ok) {
    proxy::Failure failure;
    failure.code = completion.code;
    failure.operation = slot.operation;
    failure.peer = int32_t(completion.peer);
    failure.context = context;
    failure.detail = completion.detail;
    proxy::fail(*record_, failure);
  } else if (slot.counter) {
    __atomic_fetch_add(slot.counter, 1, __ATOMIC_RELEASE);
  }
}

void Nic::progress(uint32_t context) {
  Stream& stream = streams_[context];
  wire::Completion completions[32];
  while (const size_t count = stream.endpoint->poll(completions, 32)) {
    for (size_t i = 0; i < count; ++i) complete(context, stream, completions[i]);
  }
  while (stream.retired < stream.issued && stream.slots[(stream.retired + 1) & (stream.slots.size() - 1)].done) {
    ++stream.retired;
  }
}

void Nic::overdue(uint32_t context, Operation operation, uint64_t timeout_ns) {
  proxy::Failure failure;
  failure.code = Code::timeout;
  failure.operation = operation;
  failure.context = context;
  failure.expected = streams_[context].issued;
  failure.seen = streams_[context].retired;
  failure.detail = timeout_ns;
  proxy::fail(*record_, failure);
}

bool Nic::completed(uint32_t context, uint64_t number) {
  if (streams_[context].retired < number) progress(context);
  return streams_[context].retired >= number;
}

bool Nic::settled(uint32_t context, uint64_t number) {
  Stream& stream = streams_[context];
  if (stream.settled >= number) return true;
  progress(context);
  if (stream.retired < number) return false;
  while (stream.settled < number) {  // once more when the answer was about less
    if (stream.asked == stream.settled) stream.asked = stream.retired;
    if (!stream.endpoint->settled()) return false;
    stream.settled = stream.asked;
  }
  return true;
}

}  // namespace gin::emulation

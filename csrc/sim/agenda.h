// What is to happen, in order: by virtual time, or, for the priority-based policy, by priority.
#pragma once

#include <cstdint>
#include <vector>

namespace gin::sim {

enum class What : uint8_t {
  task,   // index: a task that gets its turn. tag: its generation
  look,   // index: a parked task that looks again because time has passed
  stage,  // index: a flight. tag: what happens to it
  nudge,  // index: a rank whose tasks look again
  kill,   // index: a rank that dies
};

struct Event {
  uint64_t key;
  uint64_t order;  // events of one key happen in the order of their making
  uint32_t index;
  uint32_t tag : 24;
  uint32_t what : 8;
};
static_assert(sizeof(Event) == 24);

// A heap with four children per node.
class Heap {
 public:
  bool empty() const { return events_.empty(); }
  size_t size() const { return events_.size(); }
  const Event& top() const { return events_.front(); }

  void push(const Event& event) {
    size_t at = events_.size();
    events_.push_back(event);
    while (at > 0) {
      const size_t parent = (at - 1) / 4;
      if (!before(event, events_[parent])) break;
      events_[at] = events_[parent];
      at = parent;
    }
    events_[at] = event;
  }

  Event pop() {
    const Event first = events_.front(), last = events_.back();
    events_.pop_back();
    if (!events_.empty()) sink(last);
    return first;
  }

 private:
  static bool before(const Event& a, const Event& b) { return a.key != b.key ? a.key < b.key : a.order < b.order; }

  void sink(const Event& event) {
    const size_t size = events_.size();
    size_t at = 0;
    for (;;) {
      size_t least = 4 * at + 1;
      if (least >= size) break;
      const size_t end = least + 4 < size ? least + 4 : size;
      for (size_t child = least + 1; child < end; ++child)
        if (before(events_[child], events_[least])) least = child;
      if (!before(events_[least], event)) break;
      events_[at] = events_[least];
      at = least;
    }
    events_[at] = event;
  }

  std::vector<Event> events_;
};

// Virtual time and the events to come. By priority, time only moves by what happens, and looks wait until nothing else is
// left.
class Agenda {
 public:
  explicit Agenda(bool by_priority) : by_priority_(by_priority) {}

  uint64_t now() const { return now_; }
  void advance(uint64_t ns) { now_ += ns; }
  bool by_priority() const { return by_priority_; }

  // In `delay` ns; by priority, smaller first, the delay then only orders what has the same priority.
  void add(What what, uint32_t index, uint32_t tag, uint64_t delay, uint64_t priority) {
    constexpr uint64_t most = (1u << 24) - 1;
    const uint64_t key = by_priority_ ? priority << 24 | (delay < most ? delay : most) : now_ + delay;
    events_.push({key, order_++, index, tag, uint32_t(what)});
    ++pressing_;
  }

  void add_look(uint32_t index, uint32_t tag, uint64_t time) {
    (by_priority_ ? looks_ : events_).push({time, order_++, index, tag, uint32_t(What::look)});
  }

  bool empty() const { return events_.empty() && looks_.empty(); }
  // Whether anything but looks is to come.
  bool pressing() const { return pressing_ != 0; }

  // Whether nothing is to come up to that time.
  bool idle_until(uint64_t time) const {
    if (by_priority_ && !events_.empty()) return now_ > time;
    const Heap& heap = by_priority_ ? looks_ : events_;
    return !heap.empty() && heap.top().key > time;
  }

  Event pop() {
    const bool look = events_.empty();
    const Event event = look ? looks_.pop() : events_.pop();
    if (look || !by_priority_) now_ = event.key > now_ ? event.key : now_;
    if (What(event.what) != What::look) --pressing_;
    return event;
  }

  // Back to an earlier time, when all that happened since was looking in vain.
  void rewind(uint64_t time) { now_ = time; }

 private:
  const bool by_priority_;
  uint64_t now_ = 0, order_ = 0, pressing_ = 0;
  Heap events_, looks_;
};

}  // namespace gin::sim

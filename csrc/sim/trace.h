// What has happened in a run, for those who have to explain it.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "gin/status.h"
#include "wire/request.h"

namespace gin::sim {

enum class Kind : uint8_t {
  launch,       // value: the launch's number on its rank
  end,          // ... has ended. value2: 1 when with an error
  post,         // a request was taken by the network
  read_source,  // bytes left the source. value: 1 when they are not what was there when the operation was called
  deliver,      // bytes have landed at the target
  signal,       // an addition to a signal word was applied. value: what was added. value2: the word after it
  complete,     // a request is complete at its source. value: a gin::Code
  settle,       // ... and at its target
  wait,         // a wait begins. id; value: what is waited for
  met,          // ... is satisfied. value2: what was seen
  overdue,      // ... has passed its deadline
  read,         // a signal or counter was read. value2: what was seen
  reset,        // a signal was reset. value: what was taken off
  kill,         // a rank died
  stall,        // a rank does nothing for a while. value: ns
};
const char* name_of(Kind kind);

// A place in a kernel's source, and what its put would have read there and then.
struct Site {
  const char* file = nullptr;
  uint32_t line = 0;
  const char* source = nullptr;
  uint64_t bytes = 0, sum = 0;
};

uint64_t checksum(const char* from, uint64_t bytes);

// The sites of operations on their way to whoever posts them, by ascending token.
class Sites {
 public:
  void keep(uint64_t token, Site site) {
    // Those of operations that were refused on the way are never taken.
    while (slots_.empty() || (at(token).kept && at(token).token != token && slots_.size() < most)) grow();
    at(token) = {token, site, true};
  }
  Site take(uint64_t token) {
    if (slots_.empty() || !at(token).kept || at(token).token != token) return {};
    at(token).kept = false;
    return at(token).site;
  }

 private:
  static constexpr size_t most = 1 << 16;

  struct Slot {
    uint64_t token = 0;
    Site site;
    bool kept = false;
  };

  Slot& at(uint64_t token) { return slots_[token & (slots_.size() - 1)]; }
  void grow() {
    std::vector<Slot> before(slots_.empty() ? 64 : 2 * slots_.size());
    before.swap(slots_);
    for (const Slot& slot : before)
      if (slot.kept) at(slot.token) = slot;
  }

  std::vector<Slot> slots_;  // a power of two of them
};

struct Record {
  uint64_t time;
  uint64_t number;  // of the request, from 1 on; 0 for none
  uint64_t offset, bytes;
  uint64_t value, value2;
  uint32_t rank;
  int32_t peer;
  uint32_t region;
  uint32_t line;
  uint16_t context;
  uint16_t file;  // index into Trace::files(), 0 for none
  uint8_t piece;
  Kind kind;
  uint8_t op;  // of a request: 1 + wire::Verb. of a wait: gin::Operation
};
static_assert(sizeof(Record) == 72, "a run has many");

// Several a request: never copied.
using Records = std::deque<Record>;

class Trace {
 public:
  bool on() const { return on_; }
  void turn(bool on) { on_ = on; }
  void clear() { records_.clear(); }

  Record& add(uint64_t time, Kind kind, uint32_t rank) {
    Record& record = records_.emplace_back();
    record.time = time;
    record.kind = kind;
    record.rank = rank;
    record.peer = -1;
    return record;
  }

  // The file's index. Text that is the same has the same one.
  uint16_t file(const char* name) {
    if (!name) return 0;
    if (name == last_name_) return last_;
    const auto [found, fresh] = index_.try_emplace(name, uint16_t(files_.size()));
    if (fresh) files_.push_back(name);
    last_name_ = name;
    return last_ = found->second;
  }
  // Text at addresses seen so far may change.
  void forget_addresses() { last_name_ = nullptr; }

  const Records& records() const { return records_; }
  const std::vector<std::string>& files() const { return files_; }

 private:
  bool on_ = false;
  Records records_;
  std::vector<std::string> files_{""};
  std::unordered_map<std::string, uint16_t> index_;
  const char* last_name_ = nullptr;
  uint16_t last_ = 0;
};

}  // namespace gin::sim

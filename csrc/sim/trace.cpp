#include "sim/trace.h"

namespace gin::sim {

const char* name_of(Kind kind) {
  static constexpr const char* names[] = {"launch",  "end",      "post",   "read_source", "deliver",
                                          "signal",  "complete", "settle", "wait",        "met",
                                          "overdue", "read",     "reset",  "kill",        "stall"};
  return names[uint32_t(kind)];
}

}  // namespace gin::sim

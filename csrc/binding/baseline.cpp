#include "baseline/baseline.h"

#include <nanobind/stl/vector.h>

#include "binding/binding.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace gin::binding {

void register_baseline(nb::module_& m) {
  nb::module_ b = m.def_submodule("baseline", "What this machine does without gin.");
  using Release = nb::call_guard<nb::gil_scoped_release>;
  b.def("flag_pingpong", &baseline::flag_pingpong, "iterations"_a, "warmup"_a = 1000, "deadline_s"_a = 30.0, Release(),
        "Half the round trip of a flag between two processes, in nanoseconds, one sample per iteration.");
  b.def(
      "memcpy_between", &baseline::memcpy_between, "bytes"_a, "slots"_a, "touched"_a, "iterations"_a, "warmup"_a = 10,
      "deadline_s"_a = 30.0, Release(),
      "Nanoseconds per memcpy of `bytes` into another process's memory, `slots` of them in each iteration; `touched`: "
      "written before and read by the other process after each iteration.");
  b.def("ring_rate", &baseline::ring_rate, "count"_a, "depth"_a = 1024, "deadline_s"_a = 30.0, Release(),
        "Descriptors of 32 bytes per second through a bare ring between two threads.");
}

}  // namespace gin::binding

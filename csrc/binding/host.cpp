// The host platform: gin._core.Module and gin._core.Stream.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "binding/binding.h"
#include "binding/launch.h"
#include "error.h"
#include "host/arena.h"
#include "host/stream.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace gin::binding {
namespace {

struct Stream : host::Stream {
  using host::Stream::Stream;
  ~Stream() {
    nb::gil_scoped_release release;
    close();
  }
};

using Clock = std::chrono::steady_clock;

constexpr auto signal_interval = std::chrono::milliseconds(50);

const char* kind_name(host::Kind kind) {
  static constexpr const char* names[] = {"comm", "window", "signed", "unsigned", "float", "bool", "pointer", "struct"};
  return names[uint32_t(kind)];
}

std::vector<std::tuple<std::string, uint32_t, uint32_t>> params(const Module& module) {
  std::vector<std::tuple<std::string, uint32_t, uint32_t>> list;
  for (const host::Param& p : module.loaded->params()) list.emplace_back(kind_name(p.kind), p.size, p.align);
  return list;
}

uint32_t number(const char* what, int64_t value) {
  if (value < 0 || value > 0xffffffff) {
    throw Error(Error::Kind::argument, std::string(what) + " " + std::to_string(value) + " is out of range");
  }
  return uint32_t(value);
}

host::Index3 index(const char* what, const Dim& d) {
  return {number(what, std::get<0>(d)), number(what, std::get<1>(d)), number(what, std::get<2>(d))};
}

void launch(Stream& stream, const Module& module, const std::vector<nb::bytes>& args, const Dim& grid, const Dim& block,
            int64_t shared, uint64_t library, std::string name) {
  stream.launch(make_launch(module, args, grid, block, shared, library, std::move(name)));
}

// Waits without the interpreter, which gets to handle signals in between. False when the time is up first.
bool wait(Stream& stream, double seconds) {
  const auto start = Clock::now();
  for (;;) {
    auto slice = std::chrono::nanoseconds(signal_interval);
    if (seconds >= 0 && std::isfinite(seconds)) {
      const std::chrono::duration<double> left = std::chrono::duration<double>(seconds) - (Clock::now() - start);
      if (left < slice) slice = std::chrono::nanoseconds(std::max<int64_t>(0, int64_t(left.count() * 1e9)));
    }
    bool done;
    {
      nb::gil_scoped_release release;
      done = stream.synchronize(slice);
    }
    if (done) return true;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (seconds >= 0 && Clock::now() - start >= std::chrono::duration<double>(seconds)) return false;
  }
}

[[noreturn]] void throw_timeout(Stream& stream, double seconds) {
  std::string where;
  {
    nb::gil_scoped_release release;
    where = stream.where();
  }
  throw Error(Error::Kind::timeout, "kernels have not ended within " + std::to_string(seconds) + " s\n" + where);
}

void synchronize(Stream& stream, double seconds) {
  if (!wait(stream, seconds)) throw_timeout(stream, seconds);
}

void close(Stream& stream, double seconds) {
  try {
    if (!wait(stream, seconds)) throw_timeout(stream, seconds);
  } catch (...) {
    nb::gil_scoped_release release;
    stream.close();
    throw;
  }
  nb::gil_scoped_release release;
  stream.close();
}

}  // namespace

host::Launch make_launch(const Module& module, const std::vector<nb::bytes>& args, const Dim& grid, const Dim& block,
                         int64_t shared, uint64_t library, std::string name) {
  std::vector<std::string> bytes;
  for (const nb::bytes& a : args) bytes.emplace_back(a.c_str(), a.size());
  host::Launch l;
  l.arguments = host::Arguments(*module.loaded, bytes);
  l.module = module.loaded;
  l.name = std::move(name);
  l.grid = index("grid", grid);
  l.block = index("block", block);
  l.shared = number("shared", shared);
  l.library = reinterpret_cast<void*>(library);
  return l;
}

void register_host(nb::module_& m) {
  using Release = nb::call_guard<nb::gil_scoped_release>;
  m.attr("host_abi") = uint64_t(host::abi_stamp);
  m.attr("host_max_threads") = uint32_t(host::Arena::slots);

  nb::class_<Module>(m, "Module", "A kernel compiled for the host platform.")
      .def(nb::init<const std::string&>(), "path"_a,
           "Loads the shared object. Raises gin.ConfigError, gin.CompileError or, for another version's, "
           "gin.UnsupportedError.")
      .def_prop_ro("params", &params, "One (kind, size, alignment) for each parameter of the kernel; bytes.")
      .def_prop_ro("name", [](const Module& module) { return module.loaded->entry().name; })
      .def_prop_ro("path", [](const Module& module) { return module.loaded->path(); })
      .def_prop_ro(
          "static_shared", [](const Module& module) { return module.loaded->static_bytes(); },
          "Shared memory that every block has, in bytes, with what alignment adds.");

  nb::class_<Stream>(m, "Stream", "Runs launches in order, on an OS thread of its own.")
      .def(
          "__init__",
          [](Stream* self, uint32_t spins, uint32_t yields, uint32_t sleep_ns, uint32_t max_threads) {
            new (self) Stream(host::StreamOptions{{spins, yields, sleep_ns}, max_threads});
          },
          "spins"_a = host::Backoff().spins, "yields"_a = host::Backoff().yields,
          "sleep_ns"_a = host::Backoff().sleep_ns, "max_threads"_a = 0,
          "spins, yields, sleep_ns: what polling does in turn: pauses, sched_yield, sleeps of at most so long.\n"
          "max_threads: resident at once; 0 for the most there can be.")
      .def("launch", &launch, "module"_a, "args"_a, "grid"_a, "block"_a, "shared"_a, "library"_a, "name"_a,
           "Starts a kernel and returns. args: the bytes of each argument. Raises gin.ArgumentError for a shape beyond "
           "CUDA's limits. After a failure, launches do nothing until synchronize has raised it.")
      .def("synchronize", &synchronize, "timeout"_a = -1.0,
           "Waits until all launches have ended and raises the first failure since the last call. timeout: seconds, "
           "negative for none; gin.TimeoutError when it is over, and the kernels go on. Signals are handled meanwhile.")
      .def(
          "abandon", [](Stream& stream) { stream.abandon(); }, Release(),
          "Stops the running kernel at its next poll or barrier.")
      .def(
          "where", [](Stream& stream) { return stream.where(); }, Release(),
          "Where the threads of the running kernel stand.")
      .def(
          "captured", [](const Stream& stream) { return stream.captured(); }, Release(),
          "Where the threads of the last kernel with a failed wait stood at that moment; empty without.")
      .def_prop_ro(
          "pending", [](const Stream& stream) { return stream.pending(); }, "Launches that have not ended.")
      .def("close", &close, "timeout"_a,
           "Waits like synchronize, then ends the stream in any case, within a second: a kernel that still runs is "
           "stopped; if it does not poll, its thread is left behind.")
      .def(
          "end",
          [](Stream& stream) {
            stream.close();
            return stream.pending() == 0;
          },
          Release(),
          "Ends the stream without waiting first, and raises nothing; returns whether no kernel is left behind.");
}

}  // namespace gin::binding

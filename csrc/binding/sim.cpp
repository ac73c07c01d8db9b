// The simulator: gin._core.Simulation.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "binding/binding.h"
#include "binding/launch.h"
#include "sim/rate.h"
#include "sim/simulation.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace gin::binding {
namespace {

using sim::Simulation;

constexpr uint64_t steps_per_look = 1 << 18;  // between two looks at signals to this process

sim::Options options_of(const nb::dict& options) {
  sim::Texts texts;
  for (auto [key, value] : options) texts[nb::cast<std::string>(key)] = nb::cast<std::string>(nb::str(value));
  return sim::Options::parse(texts);
}

void launch(Simulation& simulation, uint32_t rank, const Module& module, const std::vector<nb::bytes>& args,
            const Dim& grid, const Dim& block, int64_t shared, uint64_t library, std::string name) {
  simulation.launch(rank, make_launch(module, args, grid, block, shared, library, std::move(name)));
}

void look_at_signals() {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

int64_t run(Simulation& simulation, const std::vector<uint32_t>& ranks, uint64_t turns, uint64_t ns) {
  const uint64_t until = ns ? simulation.now() + ns : UINT64_MAX;
  bool goes_on = false;
  for (uint64_t left = turns ? turns : UINT64_MAX;;) {
    const uint64_t most = std::min(left, steps_per_look);
    const uint64_t before = simulation.steps();
    const int64_t found = goes_on ? simulation.resume(ranks, most, until) : simulation.run(ranks, most, until);
    goes_on = true;
    left -= most;
    if (found != Simulation::interrupted_run || left == 0 || simulation.steps() - before < most) return found;
    look_at_signals();
  }
}

void drain(Simulation& simulation) {
  while (!simulation.drain(steps_per_look)) look_at_signals();
}

const char* op_name(const sim::Record& record) {
  static constexpr const char* verbs[] = {"put", "get", "put_value", "signal", "atomic", "fence"};
  static constexpr const char* operations[] = {"",       "put",          "put_value", "get",         "signal",
                                               "wait",   "wait_counter", "flush",     "fence",       "quiet",
                                               "atomic", "barrier",      "launch",    "peer_pointer"};
  if (record.number) return verbs[record.op - 1];
  return record.op < std::size(operations) ? operations[record.op] : "";
}

nb::tuple rate(uint64_t count, uint32_t ranks, const nb::dict& options) {
  const sim::Options parsed = options_of(options);
  sim::Rate measured;
  {
    nb::gil_scoped_release release;
    measured = sim::rate(count, ranks, parsed);
  }
  return nb::make_tuple(measured.operations_per_second, measured.steps_per_operation);
}

nb::object crash(Simulation& simulation, uint32_t rank) {
  const host::Crash& crash = simulation.crash(rank);
  if (crash.kind == host::Crash::Kind::none) return nb::none();
  const char* kind = crash.kind == host::Crash::spin ? "spin" : "fault";
  return nb::make_tuple(kind, crash.module->path(), crash.offset);
}

nb::list events(Simulation& simulation) {
  const sim::Trace& trace = simulation.trace();
  std::vector<nb::object> files;
  for (const std::string& file : trace.files()) files.push_back(nb::str(file.c_str()));
  nb::list all;
  for (const sim::Record& r : trace.records())
    all.append(nb::make_tuple(r.time, sim::name_of(r.kind), r.rank, r.peer, r.context, op_name(r), r.region, r.offset,
                              r.bytes, r.value, r.value2, r.number, r.piece, files[r.file], r.line));
  return all;
}

}  // namespace

void register_sim(nb::module_& m) {
  nb::class_<Simulation>(m, "Simulation", "All ranks of a job in one OS thread, in virtual time.")
      .def(
          "__init__",
          [](Simulation* self, uint32_t ranks, const nb::dict& options) {
            new (self) Simulation(ranks, options_of(options));
          },
          "ranks"_a, "options"_a = nb::dict())
      .def("fabric", &Simulation::fabric, "rank"_a, "group"_a = 0, nb::keep_alive<0, 1>(),
           "The rank's wire in one communicator, the group: regions are numbered within it.")
      .def("launch", &launch, "rank"_a, "module"_a, "args"_a, "grid"_a, "block"_a, "shared"_a, "library"_a, "name"_a,
           "Queues a kernel on the rank, as Stream.launch does.")
      .def("add_proxy", &Simulation::add_proxy, "rank"_a, "proxy"_a,
           "A Proxy that has not been started: the simulation steps it until remove_proxy.")
      .def("remove_proxy", &Simulation::remove_proxy, "rank"_a, "proxy"_a)
      .def("pending", &Simulation::pending, "rank"_a, "Launches of the rank that have not ended.")
      .def("run", &run, "ranks"_a, "turns"_a = 0, "ns"_a = 0,
           "Goes on until one of the ranks has no pending launch and returns it; -1 when nothing can move any more, -2 "
           "after "
           "so many turns, or so much virtual time (0: no limit).")
      .def("close", &Simulation::close,
           "Stops all kernels and forgets all proxies; from now on nothing touches the ranks' memory, and nothing may "
           "be "
           "run.")
      .def("set_direct", &Simulation::set_direct, "Ranks may load and store each other's memory from now on.")
      .def("dead", &Simulation::dead, "rank"_a)
      .def_prop_ro("exhausted", &Simulation::exhausted,
                   "Whether it has made `most_steps` steps: nothing moves any more.")
      .def(
          "forget_memory",
          [](Simulation& s, uintptr_t address, uint64_t nbytes) {
            s.forget_memory(reinterpret_cast<const char*>(address), nbytes);
          },
          "address"_a, "nbytes"_a, "These bytes are about to be given back: what is in flight does not touch them.")
      .def("drain", &drain, "Lets proxies and network go on until nothing is in flight.")
      .def("raise_error", &Simulation::raise_error, "rank"_a,
           "Raises the first error of the rank's launches since the last call.")
      .def(
          "crash", &crash, "rank"_a,
          "(\"fault\" or \"spin\", the module's path, the offset in it) where the rank's last error ended a thread so; "
          "otherwise None.")
      .def("captured", &Simulation::captured, "rank"_a,
           "Where the threads of the rank's last kernel with a failed wait stood at that moment; empty without.")
      .def("report", &Simulation::report, "Where the threads of all ranks stand.")
      .def("kill", &Simulation::kill, "rank"_a, "The rank dies: its kernels stop, and nobody reaches it any more.")
      .def_prop_ro("now_ns", &Simulation::now, "Virtual time since the beginning.")
      .def_prop_ro("operations", &Simulation::operations, "Requests that the network has taken.")
      .def_prop_ro("steps", &Simulation::steps, "Turns of threads and proxies, and events of the network.")
      .def(
          "trace", [](Simulation& s, bool on) { s.trace().turn(on); }, "on"_a)
      .def("events", &events,
           "What was traced: (time_ns, kind, rank, peer, context, op, region, offset, bytes, value, value2, request, "
           "piece, "
           "file, line).")
      .def("clear_events", [](Simulation& s) { s.trace().clear(); });
  m.def("sim_rate", &rate, "count"_a, "ranks"_a = 2, "options"_a = nb::dict(),
        "Operations per second through rings, engines and the simulated network, without kernels; and steps per "
        "operation, which do not depend on the machine.");
  m.def("set_last_words", &host::set_last_words, "text"_a,
        "What this process writes last when a kernel's fault ends it and not the launch alone.");
  m.def("sim_options", &sim::Options::names, "The options that Simulation takes, separated by commas.");
}

}  // namespace gin::binding

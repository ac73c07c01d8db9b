// The plain-data handles of the device API, made in Python's hands as the bytes that a kernel takes.
#include "gin/comm.h"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <vector>

#include "binding/binding.h"

namespace nb = nanobind;

namespace gin::binding {
namespace {

template <class T>
T* at(uint64_t address) {
  return reinterpret_cast<T*>(address);
}

template <class T>
nb::bytes bytes_of(const T& value) {
  return nb::bytes(reinterpret_cast<const char*>(&value), sizeof(T));
}

Window make_window(uint64_t base, uint64_t bytes, uint64_t handle, uint64_t peers, const std::vector<uint64_t>& near) {
  Window window{at<void>(base), bytes, handle, at<const PeerWindow>(peers), {}};
  const size_t count = std::min<size_t>(near.size(), near_ranks);
  std::transform(near.begin(), near.begin() + count, window.near, at<void>);
  return window;
}

template <class T>
T field(const nb::dict& fields, const char* name) {
  return nb::cast<T>(fields[name]);
}

nb::bytes comm_bytes(const nb::dict& fields) {
  Comm comm{};
  comm.rank = field<uint32_t>(fields, "rank");
  comm.size = field<uint32_t>(fields, "size");
  comm.contexts = field<uint32_t>(fields, "contexts");
  comm.signals = field<uint32_t>(fields, "signals");
  comm.counters = field<uint32_t>(fields, "counters");
  comm.barriers = field<uint32_t>(fields, "barriers");
  comm.rounds = field<uint32_t>(fields, "rounds");
  comm.flags = field<uint32_t>(fields, "flags");
  comm.timeout_ns = field<uint64_t>(fields, "timeout_ns");
  comm.max_message = field<uint64_t>(fields, "max_message");
  comm.record = at<Record>(field<uint64_t>(fields, "record"));
  comm.failed = at<uint32_t>(field<uint64_t>(fields, "failed"));
  comm.epoch = at<uint64_t>(field<uint64_t>(fields, "epoch"));
  comm.base = at<uint64_t>(field<uint64_t>(fields, "base"));
  comm.entered = at<uint64_t>(field<uint64_t>(fields, "entered"));
  comm.counter = at<uint64_t>(field<uint64_t>(fields, "counter"));
  comm.counter_base = at<uint64_t>(field<uint64_t>(fields, "counter_base"));
  const auto control = nb::cast<nb::tuple>(fields["control"]);
  comm.control =
      make_window(nb::cast<uint64_t>(control[0]), nb::cast<uint64_t>(control[1]), nb::cast<uint64_t>(control[2]),
                  nb::cast<uint64_t>(control[3]), nb::cast<std::vector<uint64_t>>(control[4]));
  comm.backend = at<const void>(field<uint64_t>(fields, "backend"));
  return bytes_of(comm);
}

}  // namespace

void register_comm(nb::module_& m) {
  m.def(
      "keep",
      [](nb::object thing) {
        thing.release();
        nb::set_leak_warnings(false);  // which would be about this one
      },
      nb::arg("thing"),
      "Never lets go of an object, not even when the interpreter ends: a kernel that cannot be stopped may reach it.");
  m.def("comm_bytes", &comm_bytes, nb::arg("fields"), "gin::Comm from its fields by name; addresses as integers.");
  m.def(
      "window_bytes",
      [](uint64_t base, uint64_t bytes, uint64_t handle, uint64_t peers, const std::vector<uint64_t>& near) {
        return bytes_of(make_window(base, bytes, handle, peers, near));
      },
      nb::arg("base"), nb::arg("bytes"), nb::arg("handle"), nb::arg("peers"), nb::arg("near"),
      "gin::Window; `peers` is the address of one (pointer, bytes) pair of 64-bit words per rank, `near` the pointers "
      "of the "
      "first near_ranks ranks.");
  m.def(
      "control_bytes",
      [](uint32_t contexts, uint32_t ids, uint32_t size) { return ControlLayout{contexts, ids, size}.bytes(); },
      nb::arg("contexts"), nb::arg("ids"), nb::arg("size"), "Size in bytes of the control window.");
  m.attr("record_bytes") = sizeof(Record);
  m.attr("native_only") = +Comm::native_only;
  m.attr("all_direct") = +Comm::all_direct;
  m.attr("mixed") = +Comm::mixed;
  m.attr("peers_fail") = +Comm::peers_fail;
  m.attr("few") = +Comm::few;
  m.attr("near_ranks") = near_ranks;
}

}  // namespace gin::binding

// Shared memory: gin._core.Segment.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "binding/binding.h"
#include "error.h"
#include "memory/available.h"
#include "memory/host_id.h"
#include "memory/segment.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace gin::binding {
namespace {

using memory::Segment;
using Bytes = nb::ndarray<uint8_t, nb::numpy, nb::ndim<1>>;

// A view keeps the segment alive through its owner.
Bytes view(nb::handle self, uint64_t offset, std::optional<uint64_t> nbytes) {
  Segment& segment = nb::cast<Segment&>(self);
  const uint64_t length = nbytes.value_or(segment.bytes() - std::min(segment.bytes(), offset));
  if (offset > segment.bytes() || length > segment.bytes() - offset)
    throw Error(Error::Kind::config, "bytes " + std::to_string(offset) + " to " + std::to_string(offset) + " + " +
                                         std::to_string(length) + " are not in segment '" + segment.name() + "' of " +
                                         std::to_string(segment.bytes()) + " bytes");
  return Bytes(static_cast<uint8_t*>(segment.address()) + offset, {size_t(length)}, self);
}

}  // namespace

void register_memory(nb::module_& m) {
  using Release = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<Segment>(m, "Segment",
                      "Zeroed memory that other processes of this host can map. It has no name in any file system.")
      .def(nb::new_([](uint64_t nbytes, const std::string& name) { return Segment::create(nbytes, name); }), "nbytes"_a,
           "name"_a, "Raises gin.OutOfMemoryError when the machine cannot give it all.")
      .def_static("open", &Segment::open, "exported"_a, Release(),
                  "Maps another rank's segment from what its export() returned.")
      .def("export", &Segment::export_name, "What peers hand to open(); until seal().")
      .def("seal", &Segment::seal, "Nobody can open the segment from now on; those who did keep it.")
      .def("view", &view, "offset"_a = 0, "nbytes"_a = nb::none(),
           "Bytes of it as a NumPy array that keeps it alive; by default all after `offset`.")
      .def_prop_ro("address", [](const Segment& s) { return reinterpret_cast<uint64_t>(s.address()); })
      .def_prop_ro("nbytes", &Segment::bytes)
      .def_prop_ro("name", &Segment::name)
      .def("__len__", &Segment::bytes);
  m.def("host_id", &memory::host_id, "Equal in two processes exactly when they can share memory.");
  m.def("live_segments", &Segment::live, "Segments that this process has mapped.");
  m.def(
      "available_memory",
      [] {
        const memory::Available found = memory::available();
        return nb::make_tuple(found.bytes, found.limit);
      },
      "Bytes that this process can still get, and what limits them.");
}

}  // namespace gin::binding

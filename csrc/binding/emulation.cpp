// The emulated libraries' state: a card on a wire, and what NVSHMEM's and NCCL's device code finds behind its handles.
#include <nanobind/stl/vector.h>
#include <sys/mman.h>

#include <memory>
#include <new>

#include "binding/binding.h"
#include "emulation/include/card.h"
#include "emulation/nic.h"
#include "gin/backends/nccl_gin/state.h"
#include "wire/wire.h"

namespace nb = nanobind;

namespace gin::binding {
namespace {

using emulation::Card;
using emulation::Nic;

template <class T>
T* at(uint64_t address) {
  return reinterpret_cast<T*>(address);
}

// What both libraries are given: who is who, the signal words, and where failures go.
struct Setup {
  uint32_t rank, size, contexts, ids;
  Window control;
  uint64_t record, failed, timeout_ns;
};

Setup read_setup(const nb::dict& fields) {
  Setup setup{};
  setup.rank = nb::cast<uint32_t>(fields["rank"]);
  setup.size = nb::cast<uint32_t>(fields["size"]);
  setup.contexts = nb::cast<uint32_t>(fields["contexts"]);
  setup.ids = nb::cast<uint32_t>(fields["ids"]);
  const auto control = nb::cast<nb::tuple>(fields["control"]);
  setup.control = {at<void>(nb::cast<uint64_t>(control[0])),
                   nb::cast<uint64_t>(control[1]),
                   nb::cast<uint64_t>(control[2]),
                   at<const PeerWindow>(nb::cast<uint64_t>(control[3])),
                   {}};
  setup.record = nb::cast<uint64_t>(fields["record"]);
  setup.failed = nb::cast<uint64_t>(fields["failed"]);
  setup.timeout_ns = nb::cast<uint64_t>(fields["timeout_ns"]);
  return setup;
}

Card make_card(Nic* nic, const Setup& setup) {
  Card card{};
  card.nic = nic;
  card.post = [](void* self, const wire::Request* request, uint64_t* counter) {
    return static_cast<Nic*>(self)->post(*request, counter);
  };
  card.completed = [](void* self, uint32_t context, uint64_t number) {
    return static_cast<Nic*>(self)->completed(context, number);
  };
  card.settled = [](void* self, uint32_t context, uint64_t number) {
    return static_cast<Nic*>(self)->settled(context, number);
  };
  card.posted = [](void* self, uint32_t context) { return static_cast<Nic*>(self)->posted(context); };
  card.progress = [](void* self, uint32_t context) { static_cast<Nic*>(self)->progress(context); };
  card.overdue = [](void* self, uint32_t context, Operation operation, uint64_t timeout_ns) {
    static_cast<Nic*>(self)->overdue(context, operation, timeout_ns);
  };
  card.timeout_ns = setup.timeout_ns;
  card.failed = at<const uint32_t>(setup.failed);
  card.rank = setup.rank;
  card.size = setup.size;
  card.layout = {setup.contexts, setup.ids, setup.size};
  card.control = setup.control;
  return card;
}

class Nvshmem {
 public:
  Nvshmem(wire::Fabric& fabric, const nb::dict& fields, uint64_t heap, uint64_t heap_bytes,
          const std::vector<uint64_t>& peers)
      : setup_(read_setup(fields)), nic_(fabric, setup_.contexts, at<Record>(setup_.record)) {
    for (uint64_t peer : peers) peers_.push_back(at<char>(peer));
    state_ = {make_card(&nic_, setup_), at<char>(heap), heap_bytes, peers_.data()};
  }
  Nvshmem(const Nvshmem&) = delete;
  Nvshmem& operator=(const Nvshmem&) = delete;
  uint64_t address() const { return reinterpret_cast<uint64_t>(&state_); }

 private:
  Setup setup_;
  Nic nic_;
  std::vector<char*> peers_;
  emulation::Nvshmem state_{};
};

// Zeroed words that take memory where they are used: most ranks of a large job talk to few peers.
class Pages {
 public:
  explicit Pages(uint64_t words) : bytes_(words * sizeof(uint64_t)) {
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~Pages() { munmap(memory_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  uint64_t* data() const { return static_cast<uint64_t*>(memory_); }

 private:
  uint64_t bytes_;
  void* memory_;
};

class Nccl {
 public:
  Nccl(wire::Fabric& fabric, const nb::dict& fields, uint32_t counters, uint32_t near_first, uint32_t near_size)
      : setup_(read_setup(fields)),
        nic_(fabric, setup_.contexts, at<Record>(setup_.record)),
        counters_(uint64_t(setup_.contexts) * counters),
        settles_(setup_.contexts),
        card_(make_card(&nic_, setup_)),
        near_first_(near_first),
        control_{0, near(setup_.control)} {
    ncclDevComm dev{};
    dev.rank = int(setup_.rank);
    dev.nRanks = int(setup_.size);
    dev.lsaRank = int(setup_.rank - near_first);
    dev.lsaSize = int(near_size);
    dev.counters = counters_.data();
    dev.countersPerContext = counters;
    dev.card = &card_;
    state_ = {dev, &control_, settles_.data()};
  }
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;
  uint64_t address() const { return reinterpret_cast<uint64_t>(&state_); }
  uint64_t control() const { return reinterpret_cast<uint64_t>(&control_); }

  // The library's name for a region; valid as long as this object.
  uint64_t window(uint32_t region, uint64_t base, uint64_t bytes, uint64_t peers) {
    const Window window = near({at<void>(base), bytes, 0, at<const PeerWindow>(peers), {}});
    windows_.push_back(std::make_unique<ncclWindow_vidmem>(ncclWindow_vidmem{region, window}));
    return reinterpret_cast<uint64_t>(windows_.back().get());
  }

 private:
  // The library counts load/store peers from the first of them.
  Window near(Window window) const {
    window.peers += near_first_;
    return window;
  }

  Setup setup_;
  Nic nic_;
  std::vector<uint64_t> counters_;
  Pages settles_;
  Card card_;
  uint32_t near_first_;
  ncclWindow_vidmem control_;
  std::vector<std::unique_ptr<ncclWindow_vidmem>> windows_;
  nccl::State state_{};
};

}  // namespace

void register_emulation(nb::module_& m) {
  nb::class_<Nvshmem>(m, "EmulatedNvshmem")
      .def(nb::init<wire::Fabric&, const nb::dict&, uint64_t, uint64_t, const std::vector<uint64_t>&>(),
           nb::keep_alive<1, 2>(), nb::arg("fabric"), nb::arg("setup"), nb::arg("heap"), nb::arg("heap_bytes"),
           nb::arg("peers"))
      .def_prop_ro("address", &Nvshmem::address);
  nb::class_<Nccl>(m, "EmulatedNccl")
      .def(nb::init<wire::Fabric&, const nb::dict&, uint32_t, uint32_t, uint32_t>(), nb::keep_alive<1, 2>(),
           nb::arg("fabric"), nb::arg("setup"), nb::arg("counters"), nb::arg("near_first"), nb::arg("near_size"))
      .def("window", &Nccl::window, nb::arg("region"), nb::arg("base"), nb::arg("bytes"), nb::arg("peers"))
      .def_prop_ro("control", &Nccl::control)
      .def_prop_ro("address", &Nccl::address);
}

}  // namespace gin::binding

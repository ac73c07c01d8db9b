// Wires, the proxy and failure records: gin._core.Fabric, Proxy, read_record, fail.
#include "proxy/proxy.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <thread>

#include "binding/binding.h"
#include "error.h"
#include "proxy/ring_rate.h"
#include "wire/cma.h"
#include "wire/cuda_driver.h"
#include "wire/faulty.h"
#include "wire/registry.h"
#include "wire/verbs/verbs.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace gin::binding {
namespace {

template <class T>
T* at(uint64_t address) {
  return reinterpret_cast<T*>(address);
}

// Option values may be given as numbers.
wire::Options text_options(const nb::dict& options) {
  wire::Options texts;
  for (auto [key, value] : options) texts[nb::cast<std::string>(key)] = nb::cast<std::string>(nb::str(value));
  return texts;
}

std::shared_ptr<wire::Fabric> make_fabric(const std::string& wire, uint32_t rank, uint32_t size,
                                          const nb::dict& options) {
  return wire::make_fabric(wire, rank, size, text_options(options));
}

nb::bytes add_region(wire::Fabric& fabric, uint32_t region, uint64_t address, uint64_t nbytes) {
  const std::string exported = fabric.add_region(region, at<void>(address), nbytes);
  return nb::bytes(exported.data(), exported.size());
}

void import_region(wire::Fabric& fabric, uint32_t region, uint32_t peer, const nb::bytes& exported, uint64_t mapped) {
  fabric.import_region(region, peer, std::string(exported.c_str(), exported.size()), at<void>(mapped));
}

nb::bytes fabric_address(wire::Fabric& fabric, uint32_t peer) {
  const std::string address = fabric.address(peer);
  return nb::bytes(address.data(), address.size());
}

void connect(wire::Fabric& fabric, uint32_t peer, const nb::bytes& address) {
  const std::string text(address.c_str(), address.size());
  nb::gil_scoped_release release;
  fabric.connect(peer, text);
}

nb::list verbs_ports(const nb::dict& options) {
  nb::list all;
  for (const wire::VerbsPort& port : wire::verbs_ports(text_options(options))) {
    nb::dict d;
    d["device"] = port.device;
    d["port"] = port.port;
    d["usable"] = port.usable;
    d["reason"] = port.reason;
    d["link"] = port.link;
    d["gid_index"] = port.gid_index;
    d["gid"] = port.gid;
    d["gid_type"] = port.gid_type;
    d["mtu"] = port.mtu;
    d["atomics"] = port.atomics;
    d["max_bytes"] = port.max_bytes;
    all.append(d);
  }
  return all;
}

nb::list verbs_used(const nb::dict& options) {
  nb::list all;
  for (const wire::VerbsUse& use : wire::verbs_used(text_options(options)))
    all.append(nb::make_tuple(use.port, use.why));
  return all;
}

nb::dict verbs_live() {
  const wire::VerbsLive live = wire::verbs_live();
  nb::dict d;
  d["devices"] = live.devices;
  d["regions"] = live.regions;
  d["completion_queues"] = live.completion_queues;
  d["queue_pairs"] = live.queue_pairs;
  return d;
}

void set_faults(wire::Fabric& fabric, const nb::dict& faults) {
  wire::Faults* found = wire::faults_of(fabric);
  if (!found)
    throw Error(Error::Kind::config,
                "this wire was made without faults; give at least one fault.* option when making it");
  wire::set_faults(*found, text_options(faults));
}

template <class T>
void take(const nb::dict& options, const char* key, T& value) {
  if (options.contains(key)) value = nb::cast<T>(options[key]);
}

proxy::ProxyOptions proxy_options(const nb::dict& options) {
  proxy::ProxyOptions o;
  take(options, "depth", o.depth);
  take(options, "threads", o.threads);
  take(options, "spin", o.thread.spin);
  take(options, "yield", o.thread.yield);
  take(options, "sleep_us", o.thread.sleep_us);
  take(options, "cpu", o.thread.cpu);
  for (auto [key, value] : options) {
    const std::string name = nb::cast<std::string>(key);
    if (name != "depth" && name != "threads" && name != "spin" && name != "yield" && name != "sleep_us" &&
        name != "cpu")
      throw Error(Error::Kind::config, "the proxy has no option '" + name +
                                           "'; it takes depth, threads, spin, yield, "
                                           "sleep_us and cpu");
  }
  return o;
}

using Layout = std::tuple<uint32_t, uint32_t, uint32_t>;

void make_proxy(proxy::Proxy* self, std::shared_ptr<wire::Fabric> fabric, const Layout& layout, uint32_t counters,
                uint64_t record, const nb::dict& options, uint64_t failed, uint64_t signals, uint64_t device_words,
                uint64_t lost, uint64_t losses) {
  const auto [contexts, ids, size] = layout;
  proxy::ProxyOptions proxy_options = binding::proxy_options(options);
  proxy_options.signals = at<const char>(signals);
  proxy_options.losses = {at<uint32_t>(lost), at<Record>(losses)};
  if (device_words) {
    proxy_options.device.words = at<char>(device_words);
    proxy_options.device.raise = [writer = std::make_shared<wire::cuda::WordWriter>(), word = at<uint32_t>(failed)] {
      writer->write(word, 1);
    };
  }
  new (self) proxy::Proxy(std::move(fabric), {contexts, ids, size}, counters, *at<Record>(record), at<uint32_t>(failed),
                          proxy_options);
}

bool await_settled(const proxy::Proxy& p, double seconds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!p.settled()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

nb::bytes rings(const proxy::Proxy& p) {
  return nb::bytes(reinterpret_cast<const char*>(p.rings().data()), p.rings().size() * sizeof(ibrc::Ring));
}

nb::tuple proxy_memory(const proxy::Proxy& p) {
  const auto [address, bytes] = p.memory();
  return nb::make_tuple(reinterpret_cast<uint64_t>(address), bytes);
}

nb::dict stats(const proxy::Proxy& p) {
  const proxy::Stats s = p.stats();
  nb::dict d;
  d["descriptors"] = s.descriptors;
  d["batches"] = s.batches;
  d["failures"] = s.failures;
  d["max_depth"] = s.max_depth;
  return d;
}

nb::object read_record(uint64_t address) {
  const Record& record = *at<Record>(address);
  if (!proxy::has_failed(record)) return nb::none();
  nb::dict d;
  d["code"] = uint32_t(record.code);
  d["operation"] = uint32_t(record.operation);
  d["peer"] = record.peer;
  d["context"] = record.context;
  d["id"] = record.id;
  d["expected"] = record.expected;
  d["seen"] = record.seen;
  d["detail"] = record.detail;
  d["block"] = nb::make_tuple(record.block[0], record.block[1], record.block[2]);
  d["thread"] = nb::make_tuple(record.thread[0], record.thread[1], record.thread[2]);
  return d;
}

bool fail(uint64_t address, uint32_t code, int32_t peer, uint32_t operation, uint64_t detail) {
  proxy::Failure failure;
  failure.code = Code(code);
  failure.operation = Operation(operation);
  failure.peer = peer;
  failure.detail = detail;
  return proxy::fail(*at<Record>(address), failure);
}

void register_records(nb::module_& m) {
  m.def("read_record", &read_record, "address"_a, "A failure record's fields, or None while there is no failure.");
  m.def("fail", &fail, "address"_a, "code"_a, "peer"_a = -1, "operation"_a = 0, "detail"_a = 0,
        "Records a failure unless there is one; returns whether this one stands.");
  m.attr("code_ok") = uint32_t(Code::ok);
  m.attr("code_timeout") = uint32_t(Code::timeout);
  m.attr("code_remote") = uint32_t(Code::remote);
  m.attr("code_range") = uint32_t(Code::range);
  m.attr("code_unsupported") = uint32_t(Code::unsupported);
  m.attr("code_internal") = uint32_t(Code::internal);
}

}  // namespace

void register_proxy(nb::module_& m) {
  using Release = nb::call_guard<nb::gil_scoped_release>;
  m.def("allow_attach", &wire::cma::allow,
        "Lets the user's other processes copy from and to memory of this one that is not mapped.");
  m.def("wires", &wire::names, "The names that Fabric takes.");
  nb::class_<wire::Fabric>(m, "Fabric", "One job's memory and peers over one kind of wire.")
      .def(nb::new_(&make_fabric), "wire"_a, "rank"_a, "size"_a, "options"_a = nb::dict())
      .def("add_region", &add_region, "region"_a, "address"_a, "nbytes"_a,
           "Names this rank's memory; returns what every peer hands to import_region.")
      .def("import_region", &import_region, "region"_a, "peer"_a, "exported"_a, "mapped"_a = 0,
           "Makes a peer's region reachable; `mapped` is where it is mapped here, 0 for nowhere.")
      .def("remove_region", &wire::Fabric::remove_region, "region"_a)
      .def("address", &fabric_address, "peer"_a,
           "What rank `peer` hands to its connect, once all endpoints exist; empty for wires without connections.")
      .def("connect", &connect, "peer"_a, "address"_a)
      .def(
          "probe", &wire::Fabric::probe, "seconds"_a, Release(),
          "Proves that every peer is reached, once all ranks have connected; raises gin.RemoteError naming the others.")
      .def("leave", &wire::Fabric::leave, "seconds"_a, Release(),
           "Says that nothing more comes from here and waits for the peers to say so; returns whether all did.")
      .def_prop_ro("about", &wire::Fabric::about, "What this rank uses, in words.")
      .def("set_faults", &set_faults, "faults"_a, "Changes fault.* options of a wire made with some. For tests.")
      .def_prop_ro("max_message", &wire::Fabric::max_message);

  nb::class_<proxy::Proxy>(m, "Proxy", "Descriptor rings, one per context, and the progress threads that serve them.")
      .def("__init__", &make_proxy, "fabric"_a, "layout"_a, "counters"_a, "record"_a, "options"_a = nb::dict(),
           "failed"_a = 0, "signals"_a = 0, "device_words"_a = 0, "lost"_a = 0, "losses"_a = 0,
           "layout is (contexts, ids, size); the addresses must outlive the proxy. Where kernels run on a GPU, "
           "device_words is memory of it and failed a word of it. lost is Comm::lost(), losses one record for each "
           "rank; "
           "without them the loss of a peer is the job's failure.")
      .def_prop_ro("rings", &rings, "One gin::ibrc::Ring per context.")
      .def_prop_ro("memory", &proxy_memory, "Address and size of what kernels have to reach.")
      .def_prop_ro("device_state", [](const proxy::Proxy& p) { return reinterpret_cast<uint64_t>(p.device_state()); })
      .def("start", &proxy::Proxy::start)
      .def("stop", &proxy::Proxy::stop, "timeout"_a = 1.0, Release(),
           "Ends the threads when the rings are empty, or after `timeout` seconds; returns whether they were empty.")
      .def("settled", &await_settled, "timeout"_a, Release(),
           "Waits until what kernels have sent has settled, when none runs; returns whether it has.")
      .def("step", &proxy::Proxy::step, "One step without threads; returns whether anything moved.")
      .def("give_up", &proxy::Proxy::give_up, "peer"_a, "Operations to that peer end at once from now on.")
      .def_prop_ro("running", &proxy::Proxy::running)
      .def_prop_ro("stats", &stats)
      .def_prop_ro("affinity", &proxy::Proxy::affinity, "The CPUs that each progress thread may run on.");
  m.attr("proxy_device_words") = +proxy::ProducerDevice::words_bytes;
  m.def("verbs_ports", &verbs_ports, "options"_a = nb::dict(),
        "Every port of every RDMA device, whether it is usable or why not; UnsupportedError without libibverbs.");
  m.def("verbs_used", &verbs_used, "options"_a = nb::dict(),
        "The ports that a rank with these options uses, each with the reason.");
  m.def("verbs_live", &verbs_live, "Devices, regions, completion queues and queue pairs that this process has open.");
  m.def("verbs_detail", &wire::verbs_detail, "detail"_a, "The detail of a failed completion in words.");
  m.attr("max_windows") = +ibrc::max_windows;
  m.attr("max_ids") = +ibrc::max_ids;
  m.attr("max_counters") = +ibrc::max_counters;
  m.def("ring_rate", &proxy::ring_rate, "count"_a, "depth"_a = 1024, "deadline_s"_a = 30.0, Release(),
        "Descriptors per second through a ring, its engine and the null wire.");
  register_records(m);
}

}  // namespace gin::binding

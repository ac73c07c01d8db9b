#include "wire/verbs/device.h"

#include <arpa/inet.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "error.h"
#include "wire/verbs/nearness.h"
#include "wire/verbs/registration.h"

namespace gin::wire {
namespace verbs {
namespace {

using Kind = Error::Kind;

constexpr uint32_t fewest_mtu = 256;

std::string reason(int error) { return std::strerror(error); }

// The library's list of devices, freed when it goes.
class DeviceList {
 public:
  DeviceList() : list_(Library::get().get_device_list(&count_)) {
    if (!list_) count_ = 0;
  }
  ~DeviceList() {
    if (list_) Library::get().free_device_list(list_);
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;
  ibv_device** begin() const { return list_; }
  ibv_device** end() const { return list_ + count_; }

 private:
  int count_ = 0;
  ibv_device** list_;
};

bool allowed(const Settings& s, const std::string& device, uint32_t port) {
  if (s.port && s.port != port) return false;
  return s.devices.empty() || std::any_of(s.devices.begin(), s.devices.end(), [&](const std::string& name) {
           return name == device || name == device + ":" + std::to_string(port);
         });
}

// "RoCE v2", "IB/RoCE v1", or empty where the table has no such entry.
std::string gid_type(const std::string& device, uint32_t port, int index) {
  std::ifstream file("/sys/class/infiniband/" + device + "/ports/" + std::to_string(port) + "/gid_attrs/types/" +
                     std::to_string(index));
  std::string type;
  std::getline(file, type);
  return type;
}

bool is_null(const ibv_gid& gid) { return gid.global.interface_id == 0 && gid.global.subnet_prefix == 0; }

bool is_ipv4(const ibv_gid& gid) {
  static constexpr uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.raw, mapped, sizeof(mapped)) == 0;
}

bool is_link_local(const ibv_gid& gid) { return gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80; }

// How willingly a RoCE port is known by the address: routable and IPv4 first.
int preference(const ibv_gid& gid, const std::string& type) {
  return (type == "RoCE v2" ? 4 : 0) + (is_ipv4(gid) ? 2 : is_link_local(gid) ? 0 : 1);
}

// Chooses the port's GID; returns what is wrong, or nothing.
std::string choose_gid(Device& d, const ibv_port_attr& port, const Settings& s) {
  const Library& lib = Library::get();
  int best = -1;
  for (int i = 0; i < port.gid_tbl_len; ++i) {
    if (s.gid_index >= 0 && i != s.gid_index) continue;
    ibv_gid gid{};
    if (lib.query_gid(d.context.get(), uint8_t(d.about.port), i, &gid) != 0 || is_null(gid)) continue;
    const std::string type = gid_type(d.about.device, d.about.port, i);
    const int now = preference(gid, type);
    if (now <= best) continue;
    best = now;
    d.about.gid_index = i;
    d.about.gid_type = type;
    d.about.gid = text(gid);
    d.address.gid = gid;
  }
  if (best >= 0) return "";
  if (s.gid_index >= 0) return "GID " + std::to_string(s.gid_index) + " (GIN_IB_GID_INDEX) is empty or does not exist";
  return d.address.global ? "it has no GID: give its network interface an address" : "";
}

// Whether a queue pair can be made: on some machines everything before it works and this does not.
std::string try_queue_pair(const Device& d, const Settings& s) {
  const Library& lib = Library::get();
  CqHandle cq(lib.create_cq(d.context.get(), 16, nullptr, nullptr, 0));
  if (!cq) {
    const int error = errno;
    return "it makes no completion queue: " + reason(error) + limit_advice(error);
  }
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = cq.get();
  init.qp_type = IBV_QPT_RC;
  init.cap = {8, 1, 1, 1, s.inline_bytes};
  QpHandle qp(lib.create_qp(d.domain.get(), &init));
  if (qp) return "";
  const int error = errno;
  return "it makes no RC queue pair with " + std::to_string(s.inline_bytes) +
         " inline bytes (GIN_IB_INLINE): " + reason(error) + limit_advice(error);
}

std::string inspect_port(Device& d, const ibv_device_attr& attr, const ibv_port_attr& port, const Settings& s) {
  const bool ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
  d.about.link = ethernet ? "Ethernet" : "InfiniBand";
  d.about.mtu = 128u << port.active_mtu;
  d.about.max_bytes = port.max_msg_sz;
  d.about.atomics = uint32_t(std::min(attr.max_qp_rd_atom, attr.max_qp_init_rd_atom));
  d.address.lid = port.lid;
  d.address.mtu = s.mtu ? std::min(s.mtu, d.about.mtu) : d.about.mtu;
  d.address.atomics = uint32_t(attr.max_qp_rd_atom);
  d.address.global = ethernet;
  d.initiated = uint32_t(attr.max_qp_init_rd_atom);
  d.most_completions = uint32_t(attr.max_cqe);
  d.most_requests = uint32_t(attr.max_qp_wr);
  if (port.state != IBV_PORT_ACTIVE) return "the port is not active: bring its link up";
  if (attr.atomic_cap == IBV_ATOMIC_NONE || d.about.atomics == 0) return "it has no atomics, which signals need";
  if (s.pkey_index >= port.pkey_tbl_len)
    return "it has " + std::to_string(port.pkey_tbl_len) + " partition keys, and none with index " +
           std::to_string(s.pkey_index) + " (GIN_IB_PKEY_INDEX)";
  if (std::string wrong = choose_gid(d, port, s); !wrong.empty()) return wrong;
  d.domain = DomainHandle(Library::get().alloc_pd(d.context.get()));
  if (!d.domain) return "it makes no protection domain: " + reason(errno);
  return try_queue_pair(d, s);
}

std::string open_failure(int error) {
  std::string what = "it cannot be opened: " + reason(error);
  if (error == ENOENT || error == EACCES || error == EPERM || error == ENODEV)
    what += " (in a container, pass --device=/dev/infiniband)";
  return what;
}

// Opens the port and says in `about` whether it can be used.
std::unique_ptr<Device> inspect(ibv_device* device, const std::string& name, uint32_t number, const Settings& s) {
  const Library& lib = Library::get();
  auto d = std::make_unique<Device>();
  d->about.device = name;
  d->about.port = number;
  d->context = ContextHandle(lib.open_device(device));
  ibv_device_attr attr{};
  ibv_port_attr port{};
  if (!d->context)
    d->about.reason = open_failure(errno);
  else if (int error = lib.query_device(d->context.get(), &attr))
    d->about.reason = "it does not say what it can do: " + reason(error);
  else if (int failed = lib.query_port(d->context.get(), uint8_t(number), &port))
    d->about.reason = "it does not describe its port: " + reason(failed);
  else
    d->about.reason = inspect_port(*d, attr, port, s);
  d->about.usable = d->about.reason.empty();
  return d;
}

uint32_t port_count(ibv_device* device) {
  const Library& lib = Library::get();
  ContextHandle context(lib.open_device(device));
  ibv_device_attr attr{};
  if (!context || lib.query_device(context.get(), &attr) != 0) return 1;  // inspecting port 1 says why
  return attr.phys_port_cnt;
}

Devices inspect_all(const Settings& s) {
  Devices all;
  for (ibv_device* device : DeviceList()) {
    const std::string name = Library::get().get_device_name(device);
    for (uint32_t port = 1, count = port_count(device); port <= count; ++port)
      if (allowed(s, name, port)) all.push_back(inspect(device, name, port, s));
  }
  return all;
}

std::string none_usable(const Devices& all, const Settings& s) {
  if (all.empty() && s.devices.empty() && !s.port)
    return "wire verbs: libibverbs finds no RDMA device. Load its driver (for Soft-RoCE: modprobe rdma_rxe; rdma link "
           "add "
           "rxe0 type rxe netdev eth0), in a container pass --device=/dev/infiniband, or use wire shm";
  if (all.empty()) {
    std::string names;
    for (ibv_device* device : DeviceList())
      names += (names.empty() ? "" : ", ") + std::string(Library::get().get_device_name(device));
    return "wire verbs: no device and port is as asked for (GIN_IB_HCA, GIN_IB_PORT); there are: " +
           (names.empty() ? "none" : names);
  }
  std::string what = "wire verbs: no RDMA device is usable.";
  for (const auto& d : all) what += " " + d->name() + ": " + d->about.reason + ".";
  return what;
}

std::string too_few(const Devices& usable, const Settings& s) {
  std::string what = "wire verbs: GIN_IB_NICS is " + std::to_string(s.nics) + ", and this rank can use " +
                     std::to_string(usable.size()) + ":";
  for (const auto& d : usable) what += " " + d->name();
  return what + "; set it to less, or see with gin info why the others cannot be used";
}

}  // namespace

std::string limit_advice(int error) {
  if (error != ENOMEM && error != EPERM && error != EAGAIN) return "";
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  const std::string now = limit.rlim_cur == RLIM_INFINITY ? "no limit" : std::to_string(limit.rlim_cur) + " bytes";
  return ". The locked-memory limit of this process is " + now +
         "; raise it (ulimit -l unlimited; in a container --ulimit memlock=-1; under systemd LimitMEMLOCK=infinity)";
}

Registration Device::add(void* base, uint64_t bytes, bool relaxed) const {
  if (bytes == 0) return {};
  const Registered done = register_memory(Library::get(), cuda::memory_api(), domain.get(), base, bytes, relaxed);
  if (done.region) return {RegionHandle(done.region), done.of_gpu, done.note};
  std::string what = "cannot register " + std::to_string(bytes) + " bytes with " + name() + ": ";
  if (!done.note.empty()) throw Error(Kind::memory, what + done.note);
  throw Error(Kind::memory, what + reason(done.error) + limit_advice(done.error));
}

Devices open_devices(const Settings& s) {
  Devices all = inspect_all(s), usable, used;
  for (auto& d : all)
    if (d->about.usable) usable.push_back(std::move(d));
  if (usable.empty()) throw Error(Kind::unsupported, none_usable(all, s));
  if (usable.size() < s.nics) throw Error(Kind::config, too_few(usable, s));
  std::vector<Place> places;
  for (const auto& d : usable) places.push_back(place_of_nic(s.sysfs, d->about.device));
  const Place here = s.gpu.empty() ? place_of_cpus(s.sysfs) : place_of_gpu(s.sysfs, s.gpu);
  const std::string whose = s.gpu.empty() ? "this rank's CPUs" : "GPU " + s.gpu;
  for (Choice& choice : choose(places, here, whose, s.own_devices ? 0 : s.local_rank, s.nics)) {
    used.push_back(std::move(usable[choice.index]));
    used.back()->why = std::move(choice.why);
    if (s.own_devices)
      used.back()->why += ", of GIN_IB_HCA for local rank " + std::to_string(s.local_rank);
    else if (!s.devices.empty())
      used.back()->why += ", of GIN_IB_HCA";
  }
  return used;
}

std::string text(const ibv_gid& gid) {
  char out[INET6_ADDRSTRLEN] = "";
  if (is_ipv4(gid))
    inet_ntop(AF_INET, gid.raw + 12, out, sizeof(out));
  else
    inet_ntop(AF_INET6, gid.raw, out, sizeof(out));
  return out;
}

ibv_mtu mtu_code(uint32_t bytes) {
  int code = IBV_MTU_256;
  while (code < IBV_MTU_4096 && (fewest_mtu << (code - IBV_MTU_256)) < bytes) ++code;
  return ibv_mtu(code);
}

}  // namespace verbs

std::vector<VerbsPort> verbs_ports(const Options& options) {
  Options of_all = options;
  if (auto found = of_all.find("ib_hca"); found != of_all.end())
    std::replace(found->second.begin(), found->second.end(), '/', ',');
  std::vector<VerbsPort> all;
  for (const auto& d : verbs::inspect_all(verbs::parse(of_all))) all.push_back(d->about);
  return all;
}

std::vector<VerbsUse> verbs_used(const Options& options) {
  std::vector<VerbsUse> all;
  for (const auto& d : verbs::open_devices(verbs::parse(options))) all.push_back({d->name(), d->why});
  return all;
}

}  // namespace gin::wire

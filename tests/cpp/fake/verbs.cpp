// As much of libibverbs as the verbs wire calls, with devices that are not there: all queue pairs are of this process. Checks
// what a device checks, and fails as it is told. Not a model of speed.
#include "fake/verbs.h"

#include <fcntl.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <thread>

#include "fake/verbs_control.h"

#undef ibv_query_port
#undef ibv_reg_mr

#define API extern "C" __attribute__((visibility("default")))

namespace fake {
namespace {

struct Context : verbs_context {
  int device = 0;
};

struct Fault {
  std::string function;
  int64_t skipped = 0;
  int error = 0;
  bool happened = false;
} fault;

ibv_device devices[8];
std::thread worker;
uint32_t next_number = 0x1000, next_key = 0x10000;

bool fails(const char* function) {
  if (fault.happened || fault.function != function || fault.skipped-- > 0) return false;
  fault.happened = true;
  errno = fault.error;
  return true;
}

int index_of(ibv_context* context) { return static_cast<Context*>(verbs_get_ctx(context))->device; }

// A new object, counted.
template <class T>
T* made(const char* kind) {
  ++network().live[kind];
  return new T{};
}

template <class T>
int destroy(T* object, const char* kind, int users) {
  if (users) return EBUSY;
  --network().live[kind];
  delete object;
  return 0;
}

ibv_gid gid_of(int device, int index) {
  ibv_gid gid{};
  gid.raw[15] = uint8_t(device + 1);
  if (index == 0) return gid.raw[0] = 0xfe, gid.raw[1] = 0x80, gid;
  gid.raw[10] = gid.raw[11] = 0xff;
  gid.raw[12] = 10, gid.raw[14] = uint8_t(index);
  return gid;
}

bool reached(const ibv_ah_attr& to) {
  Network& n = network();
  for (int d = 0; d < n.get("devices"); ++d) {
    if (!to.is_global && to.dlid == d + 1) return true;
    for (int i = 0; to.is_global && i < n.get("gids"); ++i) {
      const ibv_gid gid = gid_of(d, i);
      if (!std::memcmp(gid.raw, to.grh.dgid.raw, sizeof(gid.raw))) return true;
    }
  }
  return false;
}

int post_one(Qp& q, const ibv_send_wr& wr) {
  if (q.state != IBV_QPS_RTS && q.state != IBV_QPS_ERR) return EINVAL;
  if (q.used == q.cap.max_send_wr) return ENOMEM;
  if (wr.num_sge < 0 || uint32_t(wr.num_sge) > q.cap.max_send_sge) return EINVAL;
  Work w;
  w.id = wr.wr_id;
  w.opcode = wr.opcode;
  w.flags = wr.send_flags;
  w.pieces.assign(wr.sg_list, wr.sg_list + wr.num_sge);
  if (wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
    w.remote = wr.wr.atomic.remote_addr, w.key = wr.wr.atomic.rkey;
    w.add = wr.wr.atomic.compare_add, w.swap = wr.wr.atomic.swap;
  } else if (wr.opcode == IBV_WR_RDMA_WRITE || wr.opcode == IBV_WR_RDMA_READ) {
    w.remote = wr.wr.rdma.remote_addr, w.key = wr.wr.rdma.rkey;
  } else {
    return EINVAL;
  }
  if (wr.send_flags & IBV_SEND_INLINE) {
    if (wr.opcode != IBV_WR_RDMA_WRITE) return EINVAL;
    for (const ibv_sge& piece : w.pieces)
      for (const auto& [key, region] : network().regions)  // which the CPU would have to read
        if (region->of_gpu && covers(*region, piece.addr, piece.length)) return EFAULT;
    for (const ibv_sge& piece : w.pieces)
      w.data.append(reinterpret_cast<const char*>(uintptr_t(piece.addr)), piece.length);
    if (w.data.size() > q.cap.max_inline_data) return EINVAL;
  }
  ++q.used;
  q.works.push_back(std::move(w));
  return 0;
}

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  Network& n = network();
  Lock lock(n.mutex);
  int error = 0;
  for (; wr && !error; wr = error ? wr : wr->next) {
    error = fails("ibv_post_send") ? fault.error : post_one(*static_cast<Qp*>(qp), *wr);
    if (error) *bad = wr;
  }
  n.wake.notify_one();
  return error;
}

int poll_cq(ibv_cq* cq, int most, ibv_wc* out) {
  Network& n = network();
  Lock lock(n.mutex);
  auto& queue = *static_cast<Cq*>(cq);
  if (queue.overrun || fails("ibv_poll_cq")) return -1;
  for (uint32_t steps = n.chance(4); steps-- && n.step();) continue;
  int got = 0;
  for (; got < most && got < n.get("poll_most") && !queue.entries.empty(); ++got) {
    const Cqe& e = queue.entries.front();
    out[got] = e.wc;
    if (auto q = n.queue_pairs.find(e.wc.qp_num); q != n.queue_pairs.end()) q->second->used -= e.releases;
    queue.entries.pop_front();
  }
  return got;
}

ibv_td* alloc_td(ibv_context* context, ibv_td_init_attr*) {
  Lock lock(network().mutex);
  if (!network().get("thread_domains")) return errno = EOPNOTSUPP, nullptr;
  if (fails("ibv_alloc_td")) return nullptr;
  Td* td = made<Td>("thread_domains");
  td->context = context;
  return td;
}

int dealloc_td(ibv_td* td) {
  Lock lock(network().mutex);
  auto* object = static_cast<Td*>(td);
  return destroy(object, "thread_domains", object->users);
}

ibv_pd* alloc_parent_domain(ibv_context* context, ibv_parent_domain_init_attr* attr) {
  Lock lock(network().mutex);
  if (fails("ibv_alloc_parent_domain")) return nullptr;
  Pd* pd = made<Pd>("domains");
  pd->context = context;
  pd->parent = static_cast<Pd*>(attr->pd);
  pd->thread = static_cast<Td*>(attr->td);
  ++pd->parent->users;
  if (pd->thread) ++pd->thread->users;
  return pd;
}

ibv_mr* add_region(ibv_pd* pd, void* address, size_t bytes, int rights) {
  Network& n = network();
  Lock lock(n.mutex);
  if (fails("ibv_reg_mr")) return nullptr;
  constexpr int remote = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  if (!bytes || (rights & remote && !(rights & IBV_ACCESS_LOCAL_WRITE))) return errno = EINVAL, nullptr;
  Mr* mr = made<Mr>("regions");
  mr->context = pd->context;
  mr->pd = pd;
  mr->addr = address;
  mr->length = bytes;
  mr->rights = rights;
  mr->rkey = next_key += 2;
  mr->lkey = mr->rkey + 1;
  ++static_cast<Pd*>(pd)->users;
  n.regions[mr->rkey] = mr;
  return mr;
}

int check_modify(const Qp& q, const ibv_qp_attr& a, int mask) {
  const Network& n = network();
  constexpr int to_init = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  constexpr int to_receive =
      IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  constexpr int to_send =
      IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
  const auto step = [&](ibv_qp_state from, int needed) { return q.state == from && (mask & needed) == needed; };
  switch (a.qp_state) {
    case IBV_QPS_INIT:
      return step(IBV_QPS_RESET, to_init) && a.port_num == 1 && a.pkey_index < n.get("pkeys") ? 0 : EINVAL;
    case IBV_QPS_RTR:
      if (!step(IBV_QPS_INIT, to_receive) || a.max_dest_rd_atomic > n.get("rd_atomic")) return EINVAL;
      if (a.ah_attr.is_global && a.ah_attr.grh.sgid_index >= n.get("gids")) return EINVAL;
      return reached(a.ah_attr) ? 0 : ENETUNREACH;
    case IBV_QPS_RTS:
      return step(IBV_QPS_RTR, to_send) && a.max_rd_atomic <= n.get("rd_atomic") ? 0 : EINVAL;
    case IBV_QPS_ERR:
    case IBV_QPS_RESET:
      return 0;
    default:
      return EINVAL;
  }
}

}  // namespace

}  // namespace fake

using namespace fake;

// -- for tests --------------------------------------------------------------------------------------------------------

API void fake_set(const char* name, int64_t value) {
  Lock lock(network().mutex);
  network().settings.at(name) = value;
}

API void fake_reset(uint32_t seed) {
  Lock lock(network().mutex);
  network().reset(seed);
  fault = {};
}

API void fake_fail(const char* function, int64_t skipped, int error) {
  Lock lock(network().mutex);
  fault = {function, skipped, error, false};
}

API int fake_failed() {
  Lock lock(network().mutex);
  return fault.happened;
}

API void fake_end(uint32_t queue_pair, int status, uint32_t vendor_error) {
  Lock lock(network().mutex);
  Qp& q = *network().queue_pairs.at(queue_pair);
  q.end_status = status;
  q.end_vendor = vendor_error;
}

API void fake_silence(uint32_t queue_pair) {
  Lock lock(network().mutex);
  network().queue_pairs.at(queue_pair)->silent = true;
}

API int64_t fake_count(const char* what) {
  Lock lock(network().mutex);
  int64_t all = 0;
  for (const auto& [kind, count] : network().live)
    if (what == kind || (!std::strcmp(what, "all") && kind != "overruns")) all += count;
  if (!std::strcmp(what, "under_way"))
    for (const auto& [number, q] : network().queue_pairs) all += int64_t(q->works.size());
  if (!std::strcmp(what, "completions"))
    for (const Cq* cq : network().completion_queues) all += int64_t(cq->entries.size());
  return all;
}

// -- the library's ----------------------------------------------------------------------------------------------------

API ibv_device** ibv_get_device_list(int* count) {
  Lock lock(network().mutex);
  if (fails("ibv_get_device_list")) return nullptr;
  *count = int(network().get("devices"));
  ++network().live["lists"];
  auto** list = new ibv_device*[size_t(*count) + 1]();
  for (int i = 0; i < *count; ++i) {
    list[i] = &devices[i];
    std::snprintf(devices[i].name, sizeof(devices[i].name), "fake%d", i);
  }
  return list;
}

API void ibv_free_device_list(ibv_device** list) {
  Lock lock(network().mutex);
  --network().live["lists"];
  delete[] list;
}

API const char* ibv_get_device_name(ibv_device* device) { return device->name; }

API ibv_context* ibv_open_device(ibv_device* device) {
  Lock lock(network().mutex);
  if (fails("ibv_open_device")) return nullptr;
  auto* c = made<Context>("contexts");
  c->device = int(device - devices);
  c->sz = sizeof(verbs_context);
  c->alloc_td = alloc_td;
  c->dealloc_td = dealloc_td;
  c->alloc_parent_domain = alloc_parent_domain;
  c->context.device = device;
  c->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  c->context.ops.post_send = post_send;
  c->context.ops.poll_cq = poll_cq;
  if (!worker.joinable()) {
    network().ending = false;
    worker = std::thread([] { network().run(); });
  }
  return &c->context;
}

API int ibv_close_device(ibv_context* context) {
  Lock lock(network().mutex);
  destroy(static_cast<Context*>(verbs_get_ctx(context)), "contexts", 0);
  if (network().live["contexts"]) return 0;
  network().ending = true;
  std::thread last = std::move(worker);
  network().wake.notify_one();
  lock.unlock();
  last.join();
  return 0;
}

API int ibv_query_device(ibv_context*, ibv_device_attr* out) {
  Network& n = network();
  Lock lock(n.mutex);
  if (fails("ibv_query_device")) return fault.error;
  *out = {};
  out->vendor_id = uint32_t(n.get("vendor"));
  out->max_qp_wr = int(n.get("max_qp_wr"));
  out->max_cqe = int(n.get("max_cqe"));
  out->max_qp_rd_atom = out->max_qp_init_rd_atom = int(n.get("rd_atomic"));
  out->atomic_cap = n.get("atomics") ? IBV_ATOMIC_HCA : IBV_ATOMIC_NONE;
  out->phys_port_cnt = 1;
  return 0;
}

API int ibv_query_port(ibv_context* context, uint8_t, _compat_ibv_port_attr* given) {
  Network& n = network();
  Lock lock(n.mutex);
  if (fails("ibv_query_port")) return fault.error;
  auto* out = reinterpret_cast<ibv_port_attr*>(given);
  out->state = n.get("active") ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  out->max_mtu = out->active_mtu = IBV_MTU_4096;
  out->gid_tbl_len = int(n.get("gids"));
  out->max_msg_sz = 1u << 30;
  out->pkey_tbl_len = uint16_t(n.get("pkeys"));
  out->lid = uint16_t(n.get("ethernet") ? 0 : index_of(context) + 1);
  out->link_layer = n.get("ethernet") ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND;
  return 0;
}

API int ibv_query_gid(ibv_context* context, uint8_t, int index, ibv_gid* out) {
  Lock lock(network().mutex);
  if (fails("ibv_query_gid")) return -1;
  *out = gid_of(index_of(context), index);
  return 0;
}

API ibv_pd* ibv_alloc_pd(ibv_context* context) {
  Lock lock(network().mutex);
  if (fails("ibv_alloc_pd")) return nullptr;
  Pd* pd = made<Pd>("domains");
  pd->context = context;
  return pd;
}

API int ibv_dealloc_pd(ibv_pd* domain) {
  Lock lock(network().mutex);
  auto* pd = static_cast<Pd*>(domain);
  Pd* parent = pd->parent;
  Td* thread = pd->thread;
  if (const int busy = destroy(pd, "domains", pd->users)) return busy;
  if (parent) --parent->users;
  if (thread) --thread->users;
  return 0;
}

API ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, size_t bytes, int rights) {
  return rights & IBV_ACCESS_OPTIONAL_RANGE ? (errno = EINVAL, nullptr) : add_region(pd, address, bytes, rights);
}

API ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t bytes, uint64_t target, unsigned rights) {
  return target != uintptr_t(address) ? (errno = EINVAL, nullptr) : add_region(pd, address, bytes, int(rights));
}

API ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, uint64_t, size_t bytes, uint64_t address, int fd, int rights) {
  if (fcntl(fd, F_GETFD) < 0) return errno = EBADF, nullptr;
  ibv_mr* made = add_region(pd, reinterpret_cast<void*>(uintptr_t(address)), bytes, rights);
  if (made) static_cast<Mr*>(made)->of_gpu = true;
  return made;
}

API int ibv_dereg_mr(ibv_mr* region) {
  Lock lock(network().mutex);
  auto* mr = static_cast<Mr*>(region);
  network().forget(*mr);
  --static_cast<Pd*>(mr->pd)->users;
  return destroy(mr, "regions", 0);
}

API ibv_cq* ibv_create_cq(ibv_context* context, int entries, void*, ibv_comp_channel*, int) {
  Lock lock(network().mutex);
  if (fails("ibv_create_cq")) return nullptr;
  if (entries < 1 || entries > network().get("max_cqe")) return errno = EINVAL, nullptr;
  Cq* cq = made<Cq>("completion_queues");
  cq->context = context;
  cq->cqe = entries;
  network().completion_queues.insert(cq);
  return cq;
}

API int ibv_destroy_cq(ibv_cq* cq) {
  Lock lock(network().mutex);
  auto* object = static_cast<Cq*>(cq);
  if (!object->users) network().completion_queues.erase(object);
  return destroy(object, "completion_queues", object->users);
}

API ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  Network& n = network();
  Lock lock(n.mutex);
  if (fails("ibv_create_qp")) return nullptr;
  if (init->qp_type != IBV_QPT_RC || init->cap.max_send_wr > n.get("max_qp_wr") ||
      init->cap.max_inline_data > n.get("inline"))
    return errno = EINVAL, nullptr;
  Qp* q = made<Qp>("queue_pairs");
  q->context = pd->context;
  q->pd = pd;
  q->send_cq = init->send_cq;
  q->recv_cq = init->recv_cq;
  q->qp_num = ++next_number;
  q->state = IBV_QPS_RESET;
  q->cap = init->cap;
  ++q->sends_to().users;
  ++static_cast<Pd*>(pd)->users;
  n.queue_pairs[q->qp_num] = q;
  return q;
}

API int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  Network& n = network();
  Lock lock(n.mutex);
  auto& q = *static_cast<Qp*>(qp);
  if (fails("ibv_modify_qp")) return fault.error;
  if (!(mask & IBV_QP_STATE)) return EINVAL;
  if (const int wrong = check_modify(q, *attr, mask)) return wrong;
  if (mask & IBV_QP_ACCESS_FLAGS) q.attr.qp_access_flags = attr->qp_access_flags;
  if (mask & IBV_QP_DEST_QPN) {
    q.attr.dest_qp_num = attr->dest_qp_num;
    q.attr.path_mtu = attr->path_mtu;
    q.attr.rq_psn = attr->rq_psn;
    q.attr.max_dest_rd_atomic = attr->max_dest_rd_atomic;
  }
  if (mask & IBV_QP_SQ_PSN) {
    q.attr.sq_psn = attr->sq_psn;
    q.attr.timeout = attr->timeout;
    q.attr.retry_cnt = attr->retry_cnt;
    q.attr.max_rd_atomic = attr->max_rd_atomic;
  }
  q.state = attr->qp_state;
  if (q.state == IBV_QPS_RESET) n.purge(q);
  n.wake.notify_one();
  return 0;
}

API int ibv_destroy_qp(ibv_qp* qp) {
  Network& n = network();
  Lock lock(n.mutex);
  auto* q = static_cast<Qp*>(qp);
  n.purge(*q);
  n.queue_pairs.erase(q->qp_num);
  --q->sends_to().users;
  --static_cast<Pd*>(q->pd)->users;
  return destroy(q, "queue_pairs", 0);
}

API const char* ibv_wc_status_str(ibv_wc_status status) {
  static const char* const text[] = {
      "success",
      "local length error",
      "local QP operation error",
      "local EE context operation error",
      "local protection error",
      "Work Request Flushed Error",
      "memory management operation error",
      "bad response error",
      "local access error",
      "remote invalid request error",
      "remote access error",
      "remote operation error",
      "transport retry counter exceeded",
      "RNR retry counter exceeded",
      "local RDD violation error",
      "remote invalid RD request",
      "aborted error",
      "invalid EE context number",
      "invalid EE context state",
      "fatal error",
      "response timeout error",
      "general error",
  };
  return size_t(status) < std::size(text) ? text[status] : "unknown";
}

// libibverbs, loaded at run time: the functions that are called through the library rather than through the device.
#pragma once

#include <infiniband/verbs.h>
#include <unistd.h>

#include <atomic>
#include <memory>

namespace gin::wire::verbs {

struct Library {
  // Loads it once. Throws gin::Error{unsupported} where it cannot be loaded.
  static const Library& get();

  decltype(&::ibv_get_device_list) get_device_list;
  decltype(&::ibv_free_device_list) free_device_list;
  decltype(&::ibv_get_device_name) get_device_name;
  decltype(&::ibv_open_device) open_device;
  decltype(&::ibv_close_device) close_device;
  decltype(&::ibv_query_device) query_device;
  int (*query_port)(ibv_context*, uint8_t, ibv_port_attr*);  // knows the fields up to `phys_state`
  decltype(&::ibv_query_gid) query_gid;
  decltype(&::ibv_alloc_pd) alloc_pd;
  decltype(&::ibv_dealloc_pd) dealloc_pd;
  ibv_mr* (*reg_mr)(ibv_pd*, void*, size_t, int);
  ibv_mr* (*reg_mr_iova2)(ibv_pd*, void*, size_t, uint64_t, unsigned);  // nullptr in old libraries
  ibv_mr* (*reg_dmabuf_mr)(ibv_pd*, uint64_t offset, size_t, uint64_t address, int fd, int);  // nullptr in old ones
  decltype(&::ibv_dereg_mr) dereg_mr;
  decltype(&::ibv_create_cq) create_cq;
  decltype(&::ibv_destroy_cq) destroy_cq;
  decltype(&::ibv_create_qp) create_qp;
  decltype(&::ibv_modify_qp) modify_qp;
  decltype(&::ibv_destroy_qp) destroy_qp;
  decltype(&::ibv_wc_status_str) wc_status_str;
};

// Objects of the library that are open, by kind.
struct Live {
  std::atomic<int64_t> contexts, domains, regions, completion_queues, queue_pairs;
};
extern Live live;

template <auto destroy, auto count>
struct Destroy {
  pid_t owner = getpid();  // in the child of a fork the object is still the parent's

  template <class T>
  void operator()(T* object) const {
    if (getpid() != owner) return;
    (Library::get().*destroy)(object);
    (live.*count).fetch_sub(1, std::memory_order_relaxed);
  }
  static void counted() { (live.*count).fetch_add(1, std::memory_order_relaxed); }
};

template <class T, auto destroy, auto count>
class Owned : public std::unique_ptr<T, Destroy<destroy, count>> {
 public:
  Owned() = default;
  // Takes what the library returned, which may be nullptr.
  explicit Owned(T* object) : std::unique_ptr<T, Destroy<destroy, count>>(object) {
    if (object) Destroy<destroy, count>::counted();
  }
};

using ContextHandle = Owned<ibv_context, &Library::close_device, &Live::contexts>;
using DomainHandle = Owned<ibv_pd, &Library::dealloc_pd, &Live::domains>;
using RegionHandle = Owned<ibv_mr, &Library::dereg_mr, &Live::regions>;
using CqHandle = Owned<ibv_cq, &Library::destroy_cq, &Live::completion_queues>;
using QpHandle = Owned<ibv_qp, &Library::destroy_qp, &Live::queue_pairs>;

}  // namespace gin::wire::verbs

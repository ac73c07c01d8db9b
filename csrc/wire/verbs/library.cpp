#include "wire/verbs/library.h"

#include <dlfcn.h>

#include "error.h"
#include "wire/verbs/verbs.h"

namespace gin::wire::verbs {
namespace {

constexpr const char* file = "libibverbs.so.1";

template <class F>
void find(void* library, const char* name, F& function, bool needed = true) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (!function && needed)
    throw Error(Error::Kind::unsupported, std::string(file) + " has no function " + name + "; it is too old");
}

Library load() {
  void* l = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (!l)
    throw Error(Error::Kind::unsupported,
                std::string("wire verbs needs libibverbs, which cannot be loaded: ") + dlerror() +
                    "; install it with its providers (Debian: apt-get install ibverbs-providers; Red Hat: dnf install "
                    "libibverbs), or use wire shm");
  Library f{};
  find(l, "ibv_get_device_list", f.get_device_list);
  find(l, "ibv_free_device_list", f.free_device_list);
  find(l, "ibv_get_device_name", f.get_device_name);
  find(l, "ibv_open_device", f.open_device);
  find(l, "ibv_close_device", f.close_device);
  find(l, "ibv_query_device", f.query_device);
  find(l, "ibv_query_port", f.query_port);
  find(l, "ibv_query_gid", f.query_gid);
  find(l, "ibv_alloc_pd", f.alloc_pd);
  find(l, "ibv_dealloc_pd", f.dealloc_pd);
  find(l, "ibv_reg_mr", f.reg_mr);
  find(l, "ibv_reg_mr_iova2", f.reg_mr_iova2, false);
  find(l, "ibv_reg_dmabuf_mr", f.reg_dmabuf_mr, false);
  find(l, "ibv_dereg_mr", f.dereg_mr);
  find(l, "ibv_create_cq", f.create_cq);
  find(l, "ibv_destroy_cq", f.destroy_cq);
  find(l, "ibv_create_qp", f.create_qp);
  find(l, "ibv_modify_qp", f.modify_qp);
  find(l, "ibv_destroy_qp", f.destroy_qp);
  find(l, "ibv_wc_status_str", f.wc_status_str);
  return f;
}

}  // namespace

Live live;

const Library& Library::get() {
  static const Library loaded = load();
  return loaded;
}

}  // namespace gin::wire::verbs

namespace gin::wire {

VerbsLive verbs_live() {
  const verbs::Live& l = verbs::live;
  return {l.contexts, l.regions, l.completion_queues, l.queue_pairs};
}

}  // namespace gin::wire

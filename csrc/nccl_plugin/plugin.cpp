// The tables that NCCL looks for. Nothing throws across them: an error is logged, and NCCL gets its kind.
#include <string>

#include "error.h"
#include "nccl_plugin/abi.h"
#include "nccl_plugin/comm.h"
#include "nccl_plugin/context.h"
#include "nccl_plugin/log.h"

namespace gin::rma {
namespace {

int result_of(Error::Kind kind) {
  switch (kind) {
    case Error::Kind::config:
      return abi::invalid_argument;
    case Error::Kind::unsupported:
      return abi::invalid_usage;
    case Error::Kind::remote:
    case Error::Kind::timeout:
      return abi::remote_error;
    case Error::Kind::bootstrap:
    case Error::Kind::memory:
      return abi::system_error;
    default:
      return abi::internal_error;
  }
}

template <class Body>
int guarded(const char* what, Body body) {
  try {
    body();
    return abi::success;
  } catch (const Error& error) {
    warn(std::string(what) + ": " + error.what());
    return result_of(error.kind());
  } catch (const std::exception& error) {
    warn(std::string(what) + ": " + error.what());
    return abi::system_error;
  }
}

Comm& comm_of(void* comm) { return *static_cast<Comm*>(comm); }
Context& context_of(void* context) { return *static_cast<Context*>(context); }
Region* region_of(void* region) { return static_cast<Region*>(region); }

int init(void** instance, uint64_t, abi::Logger logger) {
  set_logger(logger);
  *instance = nullptr;
  return abi::success;
}

int devices(int* count) {
  *count = 1;
  return abi::success;
}

int properties(int device, abi::Properties* out) {
  abi::Properties p{};
  p.name = "gin";
  p.guid = 0x67696e;
  p.pointer_support = abi::pointer_host | abi::pointer_cuda;
  p.speed = 400000;
  p.port = 1;
  p.max_comms = 1 << 20;
  p.max_receives = 32;
  p.device_type = abi::device_gin_proxy;
  p.device_version = abi::gin_proxy_version;
  p.virtual_count = 1;
  p.virtual_devices[0] = device;
  p.max_p2p_bytes = p.max_coll_bytes = size_t(1) << 40;
  p.max_multi_request = 1;
  p.rail = p.plane = -1;
  *out = p;
  return abi::success;
}

int listen(void*, int, void* handle, void** listener) {
  return guarded("listen", [&] {
    auto made = std::make_unique<Listener>();
    std::memset(handle, 0, abi::handle_bytes);
    std::memcpy(handle, &made->handle(), sizeof(Handle));
    *listener = made.release();
  });
}

int connect(void*, void* handles[], int ranks, int rank, void* listener, void** comm) {
  return guarded("connect", [&] {
    if (ranks < 1 || rank < 0 || rank >= ranks) throw Error(Error::Kind::config, "no such rank");
    std::vector<Handle> all(static_cast<size_t>(ranks));
    for (size_t i = 0; i < all.size(); ++i) std::memcpy(&all[i], handles[i], sizeof(Handle));
    *comm = new Comm(*static_cast<Listener*>(listener), all, uint32_t(rank));
  });
}

int make_context(void* comm, int contexts, void** context) {
  return guarded("createContext", [&] {
    if (contexts < 1 || contexts > 1 << 16) throw Error(Error::Kind::config, std::to_string(contexts) + " contexts");
    *context = new Context(comm_of(comm), uint32_t(contexts));
  });
}

int create_context14(void* comm, abi::Config14* config, void** context) {
  return make_context(comm, config->contexts, context);
}

int create_context13(void* comm, abi::Config13* config, void** context, void** device_handle) {
  *device_handle = nullptr;
  return make_context(comm, config->contexts, context);
}

int reg(void* comm, void* data, size_t bytes, int type, uint64_t flags, void** region) {
  return guarded("regMrSym", [&] {
    *region =
        comm_of(comm).add(data, bytes, type == abi::pointer_cuda, (flags & abi::region_signal_never_reset) != 0).get();
  });
}

int reg_dma_buf(void* comm, void* data, size_t bytes, int type, uint64_t, int, uint64_t flags, void** region) {
  return reg(comm, data, bytes, type, flags, region);
}

int reg13(void* comm, void* data, size_t bytes, int type, uint64_t flags, void** region, void** device_region) {
  const int result = reg(comm, data, bytes, type, flags, region);
  *device_region = result == abi::success ? *region : nullptr;
  return result;
}

int reg_dma_buf13(void* comm, void* data, size_t bytes, int type, uint64_t, int, uint64_t flags, void** region,
                  void** device_region) {
  return reg13(comm, data, bytes, type, flags, region, device_region);
}

int dereg(void* comm, void* region) {
  return guarded("deregMrSym", [&] {
    if (region) comm_of(comm).remove(*region_of(region));
  });
}

int destroy_context(void* context) {
  return guarded("destroyContext", [&] { delete static_cast<Context*>(context); });
}

int close_comm(void* comm) {
  return guarded("closeColl", [&] { delete static_cast<Comm*>(comm); });
}

int close_listener(void* listener) {
  return guarded("closeListen", [&] { delete static_cast<Listener*>(listener); });
}

int put(void* context, int index, uint64_t source_offset, void* source, size_t bytes, uint64_t target_offset,
        void* target, uint32_t rank, void** request) {
  return guarded("iput", [&] {
    const Transfer transfer{uint32_t(index), region_of(source), source_offset, region_of(target), target_offset, bytes};
    *request = context_of(context).put(transfer, {}, rank);
  });
}

int put_signal(void* context, int index, uint64_t source_offset, void* source, size_t bytes, uint64_t target_offset,
               void* target, uint32_t rank, uint64_t signal_offset, void* signal, uint64_t value, uint32_t operation,
               bool strong, void** request) {
  return guarded("iputSignal", [&] {
    if (operation != abi::signal_increment && operation != abi::signal_add)
      throw Error(Error::Kind::unsupported, "signal operation " + std::to_string(operation));
    if (!signal) throw Error(Error::Kind::config, "a signal without memory");
    const Transfer transfer{uint32_t(index), region_of(source), source_offset, region_of(target), target_offset, bytes};
    const uint64_t add = operation == abi::signal_increment ? 1 : value;
    *request = context_of(context).put(transfer, {region_of(signal), signal_offset, add, strong}, rank);
  });
}

int put_signal13(void* context, int index, uint64_t source_offset, void* source, size_t bytes, uint64_t target_offset,
                 void* target, uint32_t rank, uint64_t signal_offset, void* signal, uint64_t value, uint32_t operation,
                 void** request) {
  return put_signal(context, index, source_offset, source, bytes, target_offset, target, rank, signal_offset, signal,
                    value, operation, true, request);
}

int get(void* context, int index, uint64_t remote_offset, void* remote, size_t bytes, uint64_t local_offset,
        void* local, uint32_t rank, void** request) {
  return guarded("iget", [&] {
    const Transfer transfer{uint32_t(index), region_of(remote), remote_offset, region_of(local), local_offset, bytes};
    *request = context_of(context).get(transfer, rank);
  });
}

// A get is done when its bytes are visible.
int flush(void*, int, void*, uint32_t, void** request) {
  *request = nullptr;
  return abi::success;
}

int test(void*, void* request, int* done) {
  *done = 1;
  if (!request) return abi::success;
  return guarded("test", [&] {
    auto* asked = static_cast<Request*>(request);
    *done = asked->context->test(asked);
  });
}

int progress(void* context) {
  return guarded("progress", [&] { context_of(context).progress(); });
}

int last_error(void* context, bool* failed) {
  *failed = context && context_of(context).failed();
  return abi::success;
}

int finalize(void*) { return abi::success; }

}  // namespace
}  // namespace gin::rma

namespace rma = gin::rma;

extern "C" __attribute__((visibility("default"))) const rma::abi::Table14 ncclRmaPlugin_v14 = {"gin",
                                                                                               rma::init,
                                                                                               rma::devices,
                                                                                               rma::properties,
                                                                                               rma::listen,
                                                                                               rma::connect,
                                                                                               rma::create_context14,
                                                                                               rma::reg,
                                                                                               rma::reg_dma_buf,
                                                                                               rma::dereg,
                                                                                               rma::destroy_context,
                                                                                               rma::close_comm,
                                                                                               rma::close_listener,
                                                                                               rma::put,
                                                                                               rma::put_signal,
                                                                                               rma::get,
                                                                                               rma::flush,
                                                                                               rma::test,
                                                                                               rma::progress,
                                                                                               rma::last_error,
                                                                                               rma::finalize};

extern "C" __attribute__((visibility("default"))) const rma::abi::Table13 ncclRmaPlugin_v13 = {"gin",
                                                                                               rma::init,
                                                                                               rma::devices,
                                                                                               rma::properties,
                                                                                               rma::listen,
                                                                                               rma::connect,
                                                                                               rma::create_context13,
                                                                                               rma::reg13,
                                                                                               rma::reg_dma_buf13,
                                                                                               rma::dereg,
                                                                                               rma::destroy_context,
                                                                                               rma::close_comm,
                                                                                               rma::close_listener,
                                                                                               rma::put,
                                                                                               rma::put_signal13,
                                                                                               rma::get,
                                                                                               rma::flush,
                                                                                               rma::test,
                                                                                               rma::progress,
                                                                                               rma::last_error,
                                                                                               rma::finalize};

// What NCCL calls an RMA plugin by: the layouts of its versions 13 and 14, as NCCL 2.30 to 2.32 load them. Results, pointer
// kinds and flags have NCCL's numbers. NCCL opens the library, looks for the newest table it knows, and calls
// init, devices and getProperties; then per communicator listen, connect, regMrSym, createContext, and from its progress
// thread iput, iputSignal, iget, iflush, test and progress.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gin::rma::abi {

enum Result : int {
  success = 0,
  cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
};

enum LogLevel : int { log_warning = 2, log_info = 3 };
constexpr unsigned long log_init = 0x1, log_net = 0x10;
using Logger = void (*)(int level, unsigned long flags, const char* file, int line, const char* format, ...);

constexpr int pointer_host = 1, pointer_cuda = 2;
constexpr uint64_t region_signal_never_reset = 2;  // words only grow: their owner never stores to them
constexpr uint32_t signal_increment = 1, signal_add = 2;
constexpr int device_gin_proxy = 2, gin_proxy_version = 100;
constexpr size_t handle_bytes = 128;
constexpr int most_devices_per_nic = 8;

struct Properties {
  const char* name;
  const char* pci_path;
  uint64_t guid;
  int pointer_support;
  int registration_is_global;
  int force_flush;
  int speed;  // Mbit/s
  int port;
  float latency;  // us
  int max_comms;
  int max_receives;  // 32 requests each
  int device_type;
  int device_version;
  int virtual_count;
  int virtual_devices[most_devices_per_nic];
  size_t max_p2p_bytes;
  size_t max_coll_bytes;
  int max_multi_request;
  int16_t rail;
  int16_t plane;
};

struct Config13 {
  int signals;
  int counters;
  int contexts;
  int queue_depth;
  int traffic_class;
};

// Newer NCCL appends fields.
struct Config14 {
  int contexts;
  int traffic_class;
};

struct Table14 {
  const char* name;
  int (*init)(void** instance, uint64_t comm, Logger);
  int (*devices)(int* count);
  int (*properties)(int device, Properties*);
  int (*listen)(void* instance, int device, void* handle, void** listener);
  int (*connect)(void* instance, void* handles[], int ranks, int rank, void* listener, void** comm);
  int (*create_context)(void* comm, Config14*, void** context);
  int (*reg)(void* comm, void* data, size_t bytes, int type, uint64_t flags, void** region);
  int (*reg_dma_buf)(void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd, uint64_t flags,
                     void** region);
  int (*dereg)(void* comm, void* region);
  int (*destroy_context)(void* context);
  int (*close_comm)(void* comm);
  int (*close_listener)(void* listener);
  int (*put)(void* context, int index, uint64_t source_offset, void* source, size_t bytes, uint64_t target_offset,
             void* target, uint32_t rank, void** request);
  int (*put_signal)(void* context, int index, uint64_t source_offset, void* source, size_t bytes,
                    uint64_t target_offset, void* target, uint32_t rank, uint64_t signal_offset, void* signal,
                    uint64_t value, uint32_t operation, bool strong, void** request);
  int (*get)(void* context, int index, uint64_t remote_offset, void* remote, size_t bytes, uint64_t local_offset,
             void* local, uint32_t rank, void** request);
  int (*flush)(void* context, int index, void* region, uint32_t rank, void** request);
  int (*test)(void* comm, void* request, int* done);
  int (*progress)(void* context);
  int (*last_error)(void* context, bool* failed);
  int (*finalize)(void* instance);
};

struct Table13 {
  const char* name;
  int (*init)(void** instance, uint64_t comm, Logger);
  int (*devices)(int* count);
  int (*properties)(int device, Properties*);
  int (*listen)(void* instance, int device, void* handle, void** listener);
  int (*connect)(void* instance, void* handles[], int ranks, int rank, void* listener, void** comm);
  int (*create_context)(void* comm, Config13*, void** context, void** device_handle);
  int (*reg)(void* comm, void* data, size_t bytes, int type, uint64_t flags, void** region, void** device_region);
  int (*reg_dma_buf)(void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd, uint64_t flags,
                     void** region, void** device_region);
  int (*dereg)(void* comm, void* region);
  int (*destroy_context)(void* context);
  int (*close_comm)(void* comm);
  int (*close_listener)(void* listener);
  int (*put)(void* context, int index, uint64_t source_offset, void* source, size_t bytes, uint64_t target_offset,
             void* target, uint32_t rank, void** request);
  int (*put_signal)(void* context, int index, uint64_t source_offset, void* source, size_t bytes,
                    uint64_t target_offset, void* target, uint32_t rank, uint64_t signal_offset, void* signal,
                    uint64_t value, uint32_t operation, void** request);
  int (*get)(void* context, int index, uint64_t remote_offset, void* remote, size_t bytes, uint64_t local_offset,
             void* local, uint32_t rank, void** request);
  int (*flush)(void* context, int index, void* region, uint32_t rank, void** request);
  int (*test)(void* comm, void* request, int* done);
  int (*progress)(void* context);
  int (*last_error)(void* context, bool* failed);
  int (*finalize)(void* instance);
};

}  // namespace gin::rma::abi

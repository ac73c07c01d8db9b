// What comm.backend points to for this backend. Filled by the host, read by kernels. Comes after NCCL's own types.
#pragma once

#include <cstdint>

namespace gin::nccl {

struct State {
  ncclDevComm dev;
  ncclWindow_t control;  // the control window, registered with strict ordering: settle words are signals at an address
  uint64_t* settles;     // [contexts] how often this rank has asked its peers whether its puts have settled
};

#if defined(GIN_NCCL_DEV_COMM_BYTES)  // as the host has it
static_assert(sizeof(ncclDevComm) == GIN_NCCL_DEV_COMM_BYTES,
              "gin: NCCL's headers and nccl4py are of different versions");
#endif

}  // namespace gin::nccl

// Memory of another process of this host that is not mapped here, copied by the kernel (cross memory attach).
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace gin::wire::cma {

// Lets other processes of the same user copy to and from this one where the kernel asks for such leave (Yama). Only for
// processes that register memory which cannot be mapped: it lets those processes do more than copy.
void allow();

// Copy `bytes` between `local` here and `remote` there. Return 0 or an errno.
int read(pid_t pid, void* local, uint64_t remote, uint64_t bytes);
int write(pid_t pid, const void* local, uint64_t remote, uint64_t bytes);

}  // namespace gin::wire::cma

// The CUDA C++ language for kernels that the system's C++ compiler compiles for the host platform. Force-included before
// the kernel's source. What is missing here is missing on purpose: a name that cannot be given its meaning does not
// compile. That includes inline PTX, <<<>>>, grid-wide cooperative groups and half precision.
#pragma once

#define GIN_HOST 1

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "assert.h"
#include "gin_host/abi.h"
#include "gin_host/atomic.h"
#include "gin_host/entry.h"
#include "gin_host/intrinsics.h"
#include "gin_host/language.h"
#include "gin_host/types.h"
#include "gin_host/warp.h"

// The whole device API. Read context.cuh for the operations and comm.h for the handles; impl/ holds the bodies.
#pragma once

#include "context.cuh"

// clang-format off
#include GIN_BACKEND_HEADER
#include "impl/transfer.cuh"
#include "impl/signal.cuh"
#include "impl/order.cuh"
#include "impl/atomic.cuh"
// clang-format on

// NCCL's log: NCCL_DEBUG decides what is shown.
#pragma once

#include <string>

#include "nccl_plugin/abi.h"

namespace gin::rma {

void set_logger(abi::Logger logger);

// Shown with NCCL_DEBUG=WARN and above.
void warn(const std::string& text);

// Shown with NCCL_DEBUG=INFO.
void inform(const std::string& text);

}  // namespace gin::rma

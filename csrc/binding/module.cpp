#include "binding/binding.h"

namespace nb = nanobind;

NB_MODULE(_core, m) {
  m.attr("__version__") = GIN_VERSION;
  gin::binding::register_errors(m);
  gin::binding::register_host(m);
  gin::binding::register_memory(m);
  gin::binding::register_proxy(m);
  gin::binding::register_comm(m);
  gin::binding::register_emulation(m);
  gin::binding::register_sim(m);
  gin::binding::register_baseline(m);
}

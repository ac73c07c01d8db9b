// What each area adds to the extension module gin._core. An area's functions live in binding/<area>.cpp.
#pragma once

#include <nanobind/nanobind.h>

namespace gin::binding {

void register_errors(nanobind::module_& m);
void register_host(nanobind::module_& m);
void register_memory(nanobind::module_& m);
void register_proxy(nanobind::module_& m);
void register_comm(nanobind::module_& m);
void register_emulation(nanobind::module_& m);
void register_sim(nanobind::module_& m);
void register_baseline(nanobind::module_& m);

}  // namespace gin::binding

// gin::Error becomes the class of gin.errors that its kind names. The classes are looked up when an error is thrown, so
// the extension can be loaded before the package is.
#include "binding/binding.h"
#include "error.h"

namespace nb = nanobind;

namespace gin::binding {
namespace {

const char* class_name(Error::Kind kind) {
  switch (kind) {
    case Error::Kind::config:
      return "ConfigError";
    case Error::Kind::argument:
      return "ArgumentError";
    case Error::Kind::unsupported:
      return "UnsupportedError";
    case Error::Kind::bootstrap:
      return "BootstrapError";
    case Error::Kind::timeout:
      return "TimeoutError";
    case Error::Kind::remote:
      return "RemoteError";
    case Error::Kind::memory:
      return "OutOfMemoryError";
    case Error::Kind::compile:
      return "CompileError";
    case Error::Kind::kernel:
      return "KernelError";
    case Error::Kind::internal:
      break;
  }
  return "Error";
}

}  // namespace

void register_errors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      try {
        nb::object type = nb::module_::import_("gin.errors").attr(class_name(error.kind()));
        PyErr_SetString(type.ptr(), error.what());
      } catch (nb::python_error& lookup) {
        lookup.restore();
      }
    }
  });
}

}  // namespace gin::binding

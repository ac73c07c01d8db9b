// What kernels compiled for the simulator (GIN_SIM) tell it. Elsewhere all of this is nothing.
#pragma once

#include <cstdint>

#include "../comm.h"

// Where an operation is called: GIN_SITE ends its parameters in the declaration, GIN_SITE_HERE in the definition,
// GIN_SITE_PASS the arguments of a call on the caller's behalf. GIN_CALL(leads) begins the body; `leads`: this thread acts for
// its group.
#if defined(GIN_SIM)
#define GIN_SITE , ::gin::platform::Site gin_site = {__builtin_FILE(), __builtin_LINE()}
#define GIN_SITE_HERE , [[maybe_unused]] ::gin::platform::Site gin_site
#define GIN_SITE_PASS , gin_site
#define GIN_CALL(leads) const ::gin::platform::Calling gin_calling(gin_site, leads)
#else
#define GIN_SITE
#define GIN_SITE_HERE
#define GIN_SITE_PASS
#define GIN_CALL(leads)
#endif

namespace gin::platform {

#if defined(GIN_SIM)

struct Site {
  const char* file;
  uint32_t line;
};

using host::NoteKind;

GIN_DEVICE void tell(NoteKind kind, Operation operation, uint32_t context, uint64_t id, uint64_t first = 0,
                     uint64_t second = 0) {
  host::Thread* thread = host::self();
  thread->services->note(thread, {kind, uint32_t(operation), context, id, first, second});
}

// A gin operation of the calling thread, from its beginning to its end; inner ones belong to the outermost.
class Calling {
 public:
  GIN_DEVICE Calling(Site site, bool leads) : call_{site.file, site.line, leads}, thread_(host::self()) {
    outermost_ = !thread_->call;
    if (outermost_) thread_->call = &call_;
  }
  GIN_DEVICE ~Calling() {
    if (!outermost_) return;
    if (call_.yields) tell(NoteKind::call_ends, Operation::none, 0, 0);
    thread_->call = nullptr;
  }
  Calling(const Calling&) = delete;
  Calling& operator=(const Calling&) = delete;

 private:
  host::Call call_;
  host::Thread* thread_;
  bool outermost_;
};

#else

enum class NoteKind : uint32_t { call_ends, descriptor, wait_begins, wait_met, wait_fails, read, reset, watch };

GIN_DEVICE void tell(NoteKind, Operation, uint32_t, uint64_t, uint64_t = 0, uint64_t = 0) {}

#endif

}  // namespace gin::platform

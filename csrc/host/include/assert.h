// A failed assertion in a kernel ends the launch with an error that names the thread. No include guard: as in C, NDEBUG
// decides anew at each inclusion.
#include "gin_host.h"

#undef assert
#ifdef NDEBUG
#define assert(condition) ((void)0)
#else
#define assert(condition) \
  ((condition) ? (void)0 : gin::host::fail("assertion `" #condition "` failed", __builtin_FILE(), __builtin_LINE()))
#endif

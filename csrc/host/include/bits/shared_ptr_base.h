// libstdc++ writes __attribute__((__noinline__)) here, which CUDA's macro of that name would break.
#pragma push_macro("__noinline__")
#undef __noinline__
#include_next <bits/shared_ptr_base.h>
#pragma pop_macro("__noinline__")

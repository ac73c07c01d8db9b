// What this backend can do. Device code includes it; gin/backends reads it.
GIN_CAPABILITY(quiet, true)                   // Context::quiet
GIN_CAPABILITY(atomics, true)                 // Context::atomic_*
GIN_CAPABILITY(ordered_signals, true)         // ordered(...): by a fence before the signal
GIN_CAPABILITY(native_counters, false)        // counters complete without blocking the put
GIN_CAPABILITY(flush_covers_all_peers, true)  // one flush completes every peer
GIN_CAPABILITY(uneven_windows, false)         // memory is taken unevenly by rank (sizes may differ in any case)
GIN_CAPABILITY(register_memory, false)        // Comm.register of memory allocated elsewhere
GIN_CAPABILITY(peer_failure, false)           // on_peer_failure=peer: NVSHMEM's job is over when a rank fails

// What this backend can do. Device code includes it; gin/backends reads it.
GIN_CAPABILITY(quiet, true)                   // Context::quiet: the engine says what has settled
GIN_CAPABILITY(atomics, true)                 // Context::atomic_*
GIN_CAPABILITY(ordered_signals, true)         // ordered(...): a flag of the descriptor
GIN_CAPABILITY(native_counters, true)         // counters complete without blocking the put
GIN_CAPABILITY(flush_covers_all_peers, true)  // one flush completes every peer
GIN_CAPABILITY(uneven_windows, true)          // memory is taken unevenly by rank (sizes may differ in any case)
GIN_CAPABILITY(register_memory, true)         // Comm.register of memory allocated elsewhere
GIN_CAPABILITY(peer_failure, true)            // on_peer_failure=peer: a peer that fails need not end the job

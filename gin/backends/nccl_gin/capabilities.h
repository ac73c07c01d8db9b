// What this backend can do. Device code includes it; gin/backends reads it.
GIN_CAPABILITY(quiet, true)            // Context::quiet: by an ordered signal that the target's memory is asked for
GIN_CAPABILITY(atomics, false)         // Context::atomic_*: NCCL has none on windows
GIN_CAPABILITY(ordered_signals, true)  // ordered(...): strong signals
GIN_CAPABILITY(native_counters, true)  // counters complete without blocking the put
GIN_CAPABILITY(flush_covers_all_peers, false)  // one flush completes every peer
GIN_CAPABILITY(uneven_windows, true)           // memory is taken unevenly by rank (sizes may differ in any case)
GIN_CAPABILITY(register_memory, true)          // Comm.register of memory allocated elsewhere
GIN_CAPABILITY(peer_failure, false)  // on_peer_failure=peer: a communicator of NCCL's is over when a rank fails

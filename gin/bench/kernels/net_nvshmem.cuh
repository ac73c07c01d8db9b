// Who sends and waits in a kernel that is measured with and without gin: here NVSHMEM's own calls, on memory that gin has
// set up, as NVSHMEM's perftests make them. They have no deadline.
namespace bench {

class Net {
 public:
  GIN_DEVICE Net(const gin::Comm& comm, uint32_t context)
      : gin_(comm, context), words_(static_cast<uint64_t*>(comm.control.local(comm.layout().native(context, 0)))) {}

  GIN_DEVICE uint32_t rank() const { return gin_.rank(); }
  GIN_DEVICE uint64_t epoch(uint32_t id) const { return gin_.epoch(id); }
  GIN_DEVICE const gin::Context& gin() const { return gin_; }

  template <class Group>
  GIN_DEVICE void put(Group, uint32_t peer, const gin::Window& dst, uint64_t to, const gin::Window& src, uint64_t from,
                      uint64_t bytes) const {
#if BENCH_SCOPE == 0
    nvshmem_putmem_nbi(dst.local(to), src.local(from), bytes, int(peer));
#elif BENCH_SCOPE == 1
    nvshmemx_putmem_nbi_warp(dst.local(to), src.local(from), bytes, int(peer));
#else
    nvshmemx_putmem_nbi_block(dst.local(to), src.local(from), bytes, int(peer));
#endif
  }

  template <class Group>
  GIN_DEVICE void put(Group, uint32_t peer, const gin::Window& dst, uint64_t to, const gin::Window& src, uint64_t from,
                      uint64_t bytes, gin::signal_inc signal) const {
    uint64_t* word = words_ + signal.id;
#if BENCH_SCOPE == 0
    nvshmem_putmem_signal_nbi(dst.local(to), src.local(from), bytes, word, 1, NVSHMEM_SIGNAL_ADD, int(peer));
#elif BENCH_SCOPE == 1
    nvshmemx_putmem_signal_nbi_warp(dst.local(to), src.local(from), bytes, word, 1, NVSHMEM_SIGNAL_ADD, int(peer));
#else
    nvshmemx_putmem_signal_nbi_block(dst.local(to), src.local(from), bytes, word, 1, NVSHMEM_SIGNAL_ADD, int(peer));
#endif
  }

  // NVSHMEM has no value with a signal: a store, a fence, a signal.
  GIN_DEVICE void put_value(uint32_t peer, const gin::Window& dst, uint64_t to, uint64_t value,
                            gin::signal_inc signal) const {
    nvshmem_uint64_p(static_cast<uint64_t*>(dst.local(to)), value, int(peer));
    this->signal(peer, gin::ordered(signal));
  }

  GIN_DEVICE void signal(uint32_t peer, gin::signal_inc signal) const {
    nvshmemx_signal_op(words_ + signal.id, 1, NVSHMEM_SIGNAL_ADD, int(peer));
  }

  GIN_DEVICE void signal(uint32_t peer, gin::Ordered<gin::signal_inc> signal) const {
    nvshmem_fence();
    this->signal(peer, signal.action);
  }

  template <class Group>
  GIN_DEVICE gin::Status wait(Group group, uint32_t id, uint64_t least) const {
    if (group.leader()) nvshmem_signal_wait_until(words_ + id, NVSHMEM_CMP_GE, least);
    group.sync();
    return {};
  }

  template <class Group>
  GIN_DEVICE gin::Status flush(Group group) const {
    if (group.leader()) nvshmem_quiet();
    group.sync();
    return {};
  }

 private:
  gin::Context gin_;
  uint64_t* words_;
};

// Tells gin how far a signal has been waited for without it.
GIN_DEVICE void caught_up(const Net& net, uint32_t id, uint64_t value) { net.gin().wait(gin::thread, id, value); }

}  // namespace bench

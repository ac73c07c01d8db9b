// Who sends and waits in a kernel that is measured with and without gin: here NCCL's own calls, on windows and signals that
// gin has set up. They have no deadline. Signals are added to, because NCCL forbids mixing that with increments and gin adds.
namespace bench {

#if BENCH_SCOPE == 0
using NcclCoop = ncclCoopThread;
#elif BENCH_SCOPE == 1
using NcclCoop = ncclCoopWarp;
#else
using NcclCoop = ncclCoopCta;
#endif

class Net {
 public:
  GIN_DEVICE Net(const gin::Comm& comm, uint32_t context)
      : gin_(comm, context),
        dev_(static_cast<const gin::nccl::State*>(comm.backend)->dev),
        net_(dev_, int(context)),
        world_(ncclTeamWorld(dev_)) {}

  GIN_DEVICE uint32_t rank() const { return gin_.rank(); }
  GIN_DEVICE uint64_t epoch(uint32_t id) const { return gin_.epoch(id); }
  GIN_DEVICE const gin::Context& gin() const { return gin_; }

  template <class Group>
  GIN_DEVICE void put(Group, uint32_t peer, const gin::Window& dst, uint64_t to, const gin::Window& src, uint64_t from,
                      uint64_t bytes) const {
    net_.put(world_, int(peer), gin::nccl::handle(dst), to, gin::nccl::handle(src), from, bytes, ncclGin_None{},
             ncclGin_None{}, NcclCoop{});
  }

  template <class Group>
  GIN_DEVICE void put(Group, uint32_t peer, const gin::Window& dst, uint64_t to, const gin::Window& src, uint64_t from,
                      uint64_t bytes, gin::signal_inc signal) const {
    net_.put(world_, int(peer), gin::nccl::handle(dst), to, gin::nccl::handle(src), from, bytes,
             ncclGin_WeakSignalAdd{signal.id, 1}, ncclGin_None{}, NcclCoop{});
  }

  GIN_DEVICE void put_value(uint32_t peer, const gin::Window& dst, uint64_t to, uint64_t value,
                            gin::signal_inc signal) const {
    net_.putValue(world_, int(peer), gin::nccl::handle(dst), to, value, ncclGin_WeakSignalAdd{signal.id, 1});
  }

  GIN_DEVICE void signal(uint32_t peer, gin::signal_inc signal) const {
    net_.signal(world_, int(peer), ncclGin_WeakSignalAdd{signal.id, 1});
  }

  GIN_DEVICE void signal(uint32_t peer, gin::Ordered<gin::signal_inc> signal) const {
    net_.signal(world_, int(peer), ncclGin_StrongSignalAdd{signal.action.id, 1});
  }

  template <class Group>
  GIN_DEVICE gin::Status wait(Group group, uint32_t id, uint64_t least) const {
    if (group.leader()) net_.waitSignal(ncclCoopThread{}, id, least);
    group.sync();
    return {};
  }

  template <class Group>
  GIN_DEVICE gin::Status flush(Group group) const {
    if (group.leader()) net_.flush(ncclCoopThread{});
    group.sync();
    return {};
  }

 private:
  gin::Context gin_;
  const ncclDevComm& dev_;
  ncclGin net_;
  ncclTeam world_;
};

// Tells gin how far a signal has been waited for without it.
GIN_DEVICE void caught_up(const Net& net, uint32_t id, uint64_t value) { net.gin().wait(gin::thread, id, value); }

}  // namespace bench

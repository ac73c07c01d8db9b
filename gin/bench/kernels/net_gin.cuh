// Who sends and waits in a kernel that is measured with and without gin: here gin.
namespace bench {

using Net = gin::Context;

GIN_DEVICE void caught_up(const Net&, uint32_t, uint64_t) {}

}  // namespace bench

// Functions of NCCL and cuBLAS that write their arguments to the file LOG, in place of the libraries.
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace {
int note(const char* format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  // A line is one write, so lines of several threads do not mix.
  std::FILE* file = std::fopen(LOG, "a");
  std::fprintf(file, "%s\n", line);
  return std::fclose(file);
}
long number(const void* pointer) { return reinterpret_cast<long>(pointer); }
void* pointer(long number) { return reinterpret_cast<void*>(number); }
}  // namespace

extern "C" {
struct Id {
  char bytes[128];
};
int ncclGetUniqueId(Id* id) {
  std::memset(id->bytes, 7, sizeof id->bytes);
  return 0;
}
int ncclCommInitRank(void** comm, int world, Id id, int rank) {
  *comm = pointer(100 + rank);
  if (rank == FAILING) return 5;
  return note("init %d %d of id %d", rank, world, id.bytes[127]);
}
int ncclCommDestroy(void* comm) { return note("destroy %ld", number(comm)); }
int ncclAllReduce(const void* from, void* to, size_t count, int type, int op, void* comm, void*) {
  return note("all_reduce %ld %ld %zu type %d op %d on %ld", number(from), number(to), count, type, op, number(comm));
}
int ncclReduceScatter(const void* from, void* to, size_t count, int type, int op, void* comm, void*) {
  return note("reduce_scatter %ld %ld %zu type %d op %d on %ld", number(from), number(to), count, type, op, number(comm));
}
int ncclBroadcast(const void* from, void* to, size_t count, int type, int root, void* comm, void*) {
  return note("broadcast %ld %ld %zu type %d root %d on %ld", number(from), number(to), count, type, root, number(comm));
}
int ncclAllGather(const void* from, void* to, size_t count, int type, void* comm, void*) {
  return note("all_gather %ld %ld %zu type %d on %ld", number(from), number(to), count, type, number(comm));
}
int ncclSend(const void* from, size_t count, int type, int peer, void* comm, void*) {
  return note("send %ld %zu type %d to %d on %ld", number(from), count, type, peer, number(comm));
}
int ncclRecv(void* to, size_t count, int type, int peer, void* comm, void*) {
  return note("recv %ld %zu type %d from %d on %ld", number(to), count, type, peer, number(comm));
}
int ncclGroupStart() { return 0; }
int ncclGroupEnd() { return 0; }

int cublasCreate_v2(void** handle) {
  *handle = pointer(200);
  return 0;
}
int cublasSetStream_v2(void*, void*) { return 0; }
int cublasDestroy_v2(void* handle) { return note("destroy %ld", number(handle)); }
int cublasGemmEx(void*, int op_a, int op_b, int m, int n, int k, const void*, const void* a, int type_a, int stride_a, const void* b,
                 int type_b, int stride_b, const void*, void* c, int type_c, int stride_c, int, int) {
  return note("gemm %d %d of %d %d %d: %ld %d %d, %ld %d %d, %ld %d %d", op_a, op_b, m, n, k, number(a), type_a, stride_a,
              number(b), type_b, stride_b, number(c), type_c, stride_c);
}
}

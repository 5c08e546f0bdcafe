// A tool in place of a profiler. NVTX loads it by NVTX_INJECTION64_PATH and calls InitializeInjectionNvtx2. It writes a line for
// each begin and end of a range to the file NVTX_TOOL_OUTPUT. Types and numbers are those of nvtxDetail/nvtxTypes.h.
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <sys/syscall.h>
#include <unistd.h>

using Function = void (*)();

struct Callbacks {
  size_t struct_size;
  int (*module_functions)(int module, Function*** table, unsigned* size);
};
constexpr unsigned kCallbacks = 1;
constexpr int kCoreModule = 1;
constexpr unsigned kRangePush = 9, kRangePop = 11;  // nvtxRangePushA and nvtxRangePop

static std::FILE* output;
static std::mutex mutex;

static void write(const char* what, const char* name) {
  const std::lock_guard lock(mutex);
  std::fprintf(output, "%ld %s%s\n", long(syscall(SYS_gettid)), what, name);
  std::fflush(output);
}

static int push(const char* name) {
  write("push ", name);
  return 0;
}

static int pop() {
  write("pop", "");
  return 0;
}

extern "C" int InitializeInjectionNvtx2(const void* (*export_table)(unsigned)) {
  const auto* callbacks = static_cast<const Callbacks*>(export_table(kCallbacks));
  const char* path = std::getenv("NVTX_TOOL_OUTPUT");
  Function** functions;
  unsigned size;
  if (!callbacks || !path || !callbacks->module_functions(kCoreModule, &functions, &size) || size <= kRangePop) return 0;
  output = std::fopen(path, "w");
  if (!output) return 0;
  *functions[kRangePush] = reinterpret_cast<Function>(push);
  *functions[kRangePop] = reinterpret_cast<Function>(pop);
  return 1;
}

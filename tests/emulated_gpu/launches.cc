// Kernels, which do nothing but take their place in the order, and functions of the host, which are called.
#include "emulated_gpu/devices.h"
#include "emulated_gpu/errors.h"
#include "emulated_gpu/graphs.h"
#include "emulated_gpu/streams.h"

using namespace coppice::emulated_gpu;

namespace {

int launch_kernel(void* handle, const void* function) {
  const StreamPtr stream = stream_of(handle);
  if (!function) return kInvalidDeviceFunction;
  if (!stream) return kInvalidHandle;
  return issue(*stream, {kKernelNode, nullptr});
}

Task host_task(HostFunction function, void* data) {
  return {kHostNode, [=] {
            return Step{Runs::host_thread, [=] {
                          function(data);
                          return Outcome::done;
                        }};
          }};
}

int add_node(void** node, void* handle, void* const* after, std::size_t count, Task task) {
  std::lock_guard held(Scheduler::instance().state());
  const auto graph = Graph::of(handle);
  if (!graph) return answer(kInvalidValue);
  std::vector<Node*> nodes;
  for (std::size_t i = 0; i < count; ++i) nodes.push_back(static_cast<Node*>(after[i]));
  *node = graph->add(current_device(), std::move(task), nodes);
  return kSuccess;
}

struct Configuration {
  Dim3 grid, block;
  std::size_t shared_bytes;
  void* stream;
};
thread_local Configuration pushed{};

}  // namespace

COPPICE_CUDA cudaLaunchKernel(const void* function, Dim3, Dim3, void**, std::size_t, void* stream) {
  return answer(launch_kernel(stream, function));
}

COPPICE_CUDA cudaLaunchCooperativeKernel(const void* function, Dim3, Dim3, void**, std::size_t, void* stream) {
  return answer(launch_kernel(stream, function));
}

COPPICE_CUDA cudaLaunchKernelExC(const LaunchConfiguration* configuration, const void* function, void**) {
  return answer(launch_kernel(configuration->stream, function));
}

COPPICE_CUDA cuLaunchKernel(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            void* stream, void**, void**) {
  return launch_kernel(stream, function);
}

COPPICE_CUDA cuLaunchKernelEx(const DriverLaunchConfiguration* configuration, void* function, void**, void**) {
  return launch_kernel(configuration->stream, function);
}

COPPICE_CUDA cudaLaunchHostFunc(void* handle, HostFunction function, void* data) {
  const StreamPtr stream = stream_of(handle);
  if (!stream) return answer(kInvalidHandle);
  return answer(function ? issue(*stream, host_task(function, data)) : kInvalidValue);
}

COPPICE_CUDA cudaGraphAddHostNode(void** node, void* graph, void* const* after, std::size_t count,
                                  const HostNode* what) {
  return add_node(node, graph, after, count, host_task(what->function, what->data));
}

COPPICE_CUDA cudaGraphAddKernelNode(void** node, void* graph, void* const* after, std::size_t count,
                                    const KernelNode*) {
  return add_node(node, graph, after, count, {kKernelNode, nullptr});
}

COPPICE_CUDA cudaFuncGetAttributes(FunctionAttributes* attributes, const void* function) {
  if (!function) return answer(kInvalidDeviceFunction);
  *attributes = {};
  attributes->most_threads = 1024;
  attributes->registers = 96;
  attributes->ptx_version = attributes->binary_version =
      box().gpus[static_cast<std::size_t>(current_device())].capability;
  return kSuccess;
}

COPPICE_CUDA cudaFuncSetAttribute(const void* function, int, int) {
  return answer(function ? kSuccess : kInvalidDeviceFunction);
}

COPPICE_CUDA cudaGetFuncBySymbol(void** function, const void* symbol) {
  *function = const_cast<void*>(symbol);
  return answer(symbol ? kSuccess : kInvalidDeviceFunction);
}

COPPICE_CUDA cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, std::size_t) {
  *blocks = 1;
  return kSuccess;
}

// What compilers of CUDA put into programs.

#define COPPICE_REGISTRATION extern "C" __attribute__((visibility("default")))

COPPICE_REGISTRATION void** __cudaRegisterFatBinary(void* binary) { return new void*(binary); }
COPPICE_REGISTRATION void __cudaRegisterFatBinaryEnd(void**) {}
COPPICE_REGISTRATION void __cudaUnregisterFatBinary(void** handle) { delete handle; }
COPPICE_REGISTRATION char __cudaInitModule(void**) { return 1; }
COPPICE_REGISTRATION void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*,
                                                 void*, int*) {}
COPPICE_REGISTRATION void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}
COPPICE_REGISTRATION void __cudaRegisterManagedVar(void**, void**, char*, const char*, int, std::size_t, int, int) {}

COPPICE_REGISTRATION unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, std::size_t shared_bytes,
                                                          void* stream) {
  pushed = {grid, block, shared_bytes, stream};
  return 0;
}

COPPICE_CUDA __cudaPopCallConfiguration(Dim3* grid, Dim3* block, std::size_t* shared_bytes, void* stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared_bytes = pushed.shared_bytes;
  *static_cast<void**>(stream) = pushed.stream;
  return kSuccess;
}

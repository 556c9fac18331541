#include "emulated_gpu/errors.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <mutex>
#include <set>
#include <string>

namespace coppice::emulated_gpu {
namespace {

struct Named {
  int error;
  const char *name, *text;
};

constexpr Named kNames[] = {
    {kSuccess, "cudaSuccess", "no error"},
    {kInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {kOutOfMemory, "cudaErrorMemoryAllocation", "out of memory"},
    {kInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {kInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {kNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {kInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {kInvalidContext, "cudaErrorDeviceUninitialized", "invalid device context"},
    {kPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported",
     "peer access is not supported between these two devices"},
    {kOperatingSystem, "cudaErrorOperatingSystem", "OS call failed or operation not supported on this OS"},
    {kInvalidHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {kIllegalState, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {kSymbolNotFound, "cudaErrorSymbolNotFound", "named symbol not found"},
    {kNotReady, "cudaErrorNotReady", "device not ready"},
    {kIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {kPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {kPeerAccessNotEnabled, "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"},
    {kHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {kHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {kMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {kNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {kNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {kCaptureUnsupported, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {kCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {kCaptureMerge, "cudaErrorStreamCaptureMerge", "operation would result in a merge of separate capture sequences"},
    {kCaptureUnmatched, "cudaErrorStreamCaptureUnmatched", "capture was not ended in the same stream as it began"},
    {kCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {kCaptureIsolation, "cudaErrorStreamCaptureIsolation", "dependency created on uncaptured work in another stream"},
    {kCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {kCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {kCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {kUnknown, "cudaErrorUnknown", "unknown error"},
};

const Named* named(int error) {
  const auto* found =
      std::find_if(std::begin(kNames), std::end(kNames), [&](const Named& n) { return n.error == error; });
  return found == std::end(kNames) ? nullptr : found;
}

thread_local int last = kSuccess;

}  // namespace

int answer(int error) {
  if (error != kSuccess) last = error;
  return error;
}

int not_supported(const char* call) {
  static std::mutex lock;
  static std::set<std::string> said;
  std::lock_guard held(lock);
  if (said.insert(call).second) std::fprintf(stderr, "emulated CUDA: %s is not emulated.\n", call);
  return answer(kNotSupported);
}

const char* error_name(int error) {
  const Named* found = named(error);
  return found ? found->name : "unrecognized error code";
}

const char* error_text(int error) {
  const Named* found = named(error);
  return found ? found->text : "unrecognized error code";
}

}  // namespace coppice::emulated_gpu

using namespace coppice::emulated_gpu;

COPPICE_CUDA cudaGetLastError() {
  const int was = last;
  last = kSuccess;
  return was;
}

COPPICE_CUDA cudaPeekAtLastError() { return last; }

extern "C" __attribute__((visibility("default"))) const char* cudaGetErrorString(int error) {
  return error_text(error);
}
extern "C" __attribute__((visibility("default"))) const char* cudaGetErrorName(int error) { return error_name(error); }

COPPICE_CUDA cuGetErrorString(int error, const char** text) {
  *text = error_text(error);
  return named(error) ? kSuccess : kInvalidValue;
}

COPPICE_CUDA cuGetErrorName(int error, const char** name) {
  *name = error_name(error);
  return named(error) ? kSuccess : kInvalidValue;
}

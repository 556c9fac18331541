// Allocations of devices and of pinned memory of the host, and what is asked about pointers.
#include <sys/mman.h>

#include <string>

#include "emulated_gpu/box.h"
#include "emulated_gpu/capture.h"
#include "emulated_gpu/devices.h"
#include "emulated_gpu/errors.h"
#include "emulated_gpu/memory.h"
#include "emulated_gpu/streams.h"

using namespace coppice::emulated_gpu;

namespace {

struct Pool {
  int device;
};

int unsafe() {
  std::lock_guard held(Scheduler::instance().state());
  return unsafe_call();
}

int allocate(void** pointer, std::size_t bytes, int device, Source source) {
  *pointer = nullptr;
  if (!bytes) return kSuccess;
  try {
    const auto physical = new_physical(bytes, device, ("emulated-gpu:" + std::to_string(device)).c_str());
    *pointer = map_physical(*physical, 0, bytes);
    Memory::instance().add({address_of(*pointer), bytes, source, device, physical, 0, {}, 0});
  } catch (Error error) {
    return error;
  }
  return kSuccess;
}

void unmap(const Range& range) { munmap(reinterpret_cast<void*>(range.base), range.bytes); }

// Frees wait for the device, whose work may still use the memory.
int release(void* pointer, bool host) {
  if (!pointer) return kSuccess;
  if (const int error = unsafe()) return error;
  const auto range = Memory::instance().find(address_of(pointer));
  const bool right =
      range && range->base == address_of(pointer) &&
      (host ? range->source == Source::pinned
            : range->source == Source::allocated || range->source == Source::pool || range->source == Source::managed);
  if (!right) return kInvalidValue;
  if (host) {
    for (int i = 0; i < static_cast<int>(box().gpus.size()); ++i) finish(end_of_device(i), i);
  } else {
    finish(end_of_device(range->device), range->device);
  }
  Memory::instance().remove(range->base, unmap);
  return kSuccess;
}

int pinned(void** pointer, std::size_t bytes, unsigned flags) {
  *pointer = nullptr;
  if (!bytes) return kSuccess;
  if (const int error = unsafe()) return error;
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return kOutOfMemory;
  Memory::instance().add({address_of(mapped), bytes, Source::pinned, -1, nullptr, 0, {}, flags});
  *pointer = mapped;
  return kSuccess;
}

int type_of(const Range& range) {
  if (range.source == Source::managed) return kManagedMemory;
  return range.on_device() || (range.physical && range.physical->multicast) ? kDeviceMemory : kHostMemory;
}

}  // namespace

COPPICE_CUDA cudaMalloc(void** pointer, std::size_t bytes) {
  if (const int error = unsafe()) return answer(error);
  return answer(allocate(pointer, bytes, current_device(), Source::allocated));
}

COPPICE_CUDA cudaMallocManaged(void** pointer, std::size_t bytes, unsigned) {
  if (const int error = unsafe()) return answer(error);
  return answer(allocate(pointer, bytes, current_device(), Source::managed));
}

COPPICE_CUDA cudaMallocPitch(void** pointer, std::size_t* pitch, std::size_t width, std::size_t height) {
  *pitch = (width + 511) / 512 * 512;
  return cudaMalloc(pointer, *pitch * height);
}

COPPICE_CUDA cudaFree(void* pointer) { return answer(release(pointer, false)); }
COPPICE_CUDA cudaFreeHost(void* pointer) { return answer(release(pointer, true)); }
COPPICE_CUDA cudaHostAlloc(void** pointer, std::size_t bytes, unsigned flags) {
  return answer(pinned(pointer, bytes, flags));
}
COPPICE_CUDA cudaMallocHost(void** pointer, std::size_t bytes) { return answer(pinned(pointer, bytes, 0)); }

COPPICE_CUDA cudaHostRegister(void* pointer, std::size_t bytes, unsigned flags) {
  if (!pointer || !bytes) return answer(kInvalidValue);
  if (Memory::instance().find(address_of(pointer))) return answer(kHostMemoryAlreadyRegistered);
  Memory::instance().add({address_of(pointer), bytes, Source::registered, -1, nullptr, 0, {}, flags});
  return kSuccess;
}

COPPICE_CUDA cudaHostUnregister(void* pointer) {
  const auto range = Memory::instance().find(address_of(pointer));
  if (!range || range->source != Source::registered || range->base != address_of(pointer)) {
    return answer(kHostMemoryNotRegistered);
  }
  Memory::instance().remove(range->base, [](const Range&) {});
  return kSuccess;
}

COPPICE_CUDA cudaHostGetDevicePointer(void** pointer, void* host, unsigned) {
  const auto range = Memory::instance().find(address_of(host));
  if (!range || range->on_device()) return answer(kInvalidValue);
  *pointer = host;
  return kSuccess;
}

COPPICE_CUDA cudaHostGetFlags(unsigned* flags, void* host) {
  const auto range = Memory::instance().find(address_of(host));
  if (!range || range->on_device()) return answer(kInvalidValue);
  *flags = range->flags;
  return kSuccess;
}

COPPICE_CUDA cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = box().gpus[static_cast<std::size_t>(current_device())].bytes;
  return kSuccess;
}

COPPICE_CUDA cudaPointerGetAttributes(PointerAttributes* attributes, const void* pointer) {
  *attributes = {};
  const auto range = Memory::instance().find(address_of(pointer));
  attributes->device = range && range->on_device() ? range->device : current_device();
  attributes->type = range ? type_of(*range) : kUnregisteredMemory;
  attributes->device_pointer = range ? const_cast<void*>(pointer) : nullptr;
  attributes->host_pointer = attributes->type == kDeviceMemory ? nullptr : const_cast<void*>(pointer);
  if (!range) attributes->device = -2;
  return kSuccess;
}

COPPICE_CUDA cuMemGetAddressRange(DevicePointer* base, std::size_t* bytes, DevicePointer address) {
  const auto range = Memory::instance().find(address);
  if (!range) return kInvalidValue;
  if (base) *base = range->base;
  if (bytes) *bytes = range->bytes;
  return kSuccess;
}

COPPICE_CUDA cuPointerGetAttribute(void* data, int attribute, DevicePointer address) {
  const auto range = Memory::instance().find(address);
  if (!range) return kInvalidValue;
  switch (attribute) {
    case 2: *static_cast<unsigned*>(data) = range->on_device() ? 2 : 1; return kSuccess;
    case 3:
    case 4: *static_cast<DevicePointer*>(data) = address; return kSuccess;
    case 8: *static_cast<unsigned*>(data) = range->source == Source::managed; return kSuccess;
    case 9: *static_cast<int*>(data) = range->on_device() ? range->device : 0; return kSuccess;
    case 10: *static_cast<unsigned*>(data) = range->source == Source::allocated; return kSuccess;
    case 11:
    case 19: *static_cast<DevicePointer*>(data) = range->base; return kSuccess;
    case 12:
    case 18: *static_cast<std::size_t*>(data) = range->bytes; return kSuccess;
    case 13: *static_cast<unsigned*>(data) = 1; return kSuccess;
    case 14:
      *static_cast<unsigned long long*>(data) =
          range->source == Source::mapped ? static_cast<unsigned long long>(range->physical->properties.handle_types)
                                          : 0;
      return kSuccess;
    case 15: *static_cast<unsigned*>(data) = 0; return kSuccess;
    case 6: *static_cast<unsigned*>(data) = 0; return kSuccess;
    default: return not_supported("cuPointerGetAttribute of this attribute");
  }
}

// 6: memory operations of the host on this memory are synchronous, which they are.
COPPICE_CUDA cuPointerSetAttribute(const void*, int attribute, DevicePointer address) {
  return attribute == 6 && Memory::instance().find(address) ? kSuccess : kInvalidValue;
}

// Memory of pools is there at once, and goes when its stream comes to the free.

COPPICE_CUDA cudaMemPoolCreate(void** pool, const PoolProperties* properties) {
  if (properties->location.type != kOnDevice || !is_device(properties->location.id)) return answer(kInvalidValue);
  *pool = new Pool{properties->location.id};
  return kSuccess;
}

COPPICE_CUDA cudaMemPoolDestroy(void* pool) {
  delete static_cast<Pool*>(pool);
  return kSuccess;
}

COPPICE_CUDA cudaMemPoolSetAttribute(void*, int, void*) { return kSuccess; }
COPPICE_CUDA cudaMemPoolTrimTo(void*, std::size_t) { return kSuccess; }

COPPICE_CUDA cudaMallocFromPoolAsync(void** pointer, std::size_t bytes, void* pool, void* handle) {
  const StreamPtr stream = stream_of(handle);
  if (!stream || !pool) return answer(kInvalidValue);
  if (stream->capture) return not_supported("cudaMallocFromPoolAsync into a stream that is captured");
  return answer(allocate(pointer, bytes, static_cast<Pool*>(pool)->device, Source::pool));
}

COPPICE_CUDA cudaMallocAsync(void** pointer, std::size_t bytes, void* handle) {
  const StreamPtr stream = stream_of(handle);
  if (!stream) return answer(kInvalidHandle);
  if (stream->capture) return not_supported("cudaMallocAsync into a stream that is captured");
  return answer(allocate(pointer, bytes, stream->device, Source::pool));
}

COPPICE_CUDA cudaFreeAsync(void* pointer, void* handle) {
  const StreamPtr stream = stream_of(handle);
  const auto range = Memory::instance().find(address_of(pointer));
  if (!stream || !range || range->base != address_of(pointer)) return answer(kInvalidValue);
  if (stream->capture) return not_supported("cudaFreeAsync into a stream that is captured");
  const Address base = range->base;
  return answer(issue(*stream, {kMemsetNode, [base] {
                                  return Step{Runs::copy_engine, [base] {
                                                Memory::instance().remove(base, unmap);
                                                return Outcome::done;
                                              }};
                                }}));
}

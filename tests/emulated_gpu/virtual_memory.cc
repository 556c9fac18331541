#include "emulated_gpu/virtual_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "emulated_gpu/box.h"
#include "emulated_gpu/devices.h"
#include "emulated_gpu/errors.h"
#include "emulated_gpu/multicast.h"

namespace coppice::emulated_gpu {
namespace {

struct Handle {
  std::shared_ptr<Physical> physical;
  int uses = 1;
};

std::mutex handles_lock;
MemoryHandle last_handle = 0;

std::map<MemoryHandle, Handle>& handles() {
  static auto* all = new std::map<MemoryHandle, Handle>;
  return *all;
}

std::map<Address, std::size_t>& reservations() {
  static auto* all = new std::map<Address, std::size_t>;
  return *all;
}

bool reserved(Address address, std::size_t bytes) {
  std::lock_guard held(handles_lock);
  const auto after = reservations().upper_bound(address);
  if (after == reservations().begin()) return false;
  const auto& [base, length] = *std::prev(after);
  return address + bytes <= base + length;
}

// A descriptor says by its name what it is of.
std::string name_of(int descriptor) {
  char name[128] = {};
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  return readlink(path.c_str(), name, sizeof name - 1) > 0 ? name : "";
}

void forget_mapping(const Range& range) {
  mmap(reinterpret_cast<void*>(range.base), range.bytes, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

}  // namespace

MemoryHandle new_handle(std::shared_ptr<Physical> physical) {
  std::lock_guard held(handles_lock);
  handles()[++last_handle] = {std::move(physical)};
  return last_handle;
}

std::shared_ptr<Physical> physical_of(MemoryHandle handle) {
  std::lock_guard held(handles_lock);
  const auto found = handles().find(handle);
  return found == handles().end() ? nullptr : found->second.physical;
}

}  // namespace coppice::emulated_gpu

using namespace coppice::emulated_gpu;

COPPICE_CUDA cuMemGetAllocationGranularity(std::size_t* bytes, const AllocationProperties*, int) {
  *bytes = kGranularity;
  return kSuccess;
}

COPPICE_CUDA cuMemCreate(MemoryHandle* handle, std::size_t bytes, const AllocationProperties* properties,
                         unsigned long long) {
  const Location& where = properties->location;
  if (!bytes || bytes % kGranularity || properties->type != 1) return kInvalidValue;
  if (where.type == kOnDevice && !is_device(where.id)) return kInvalidDevice;
  if (properties->handle_types & ~kFileDescriptor) return kNotSupported;
  try {
    const int device = where.type == kOnDevice ? where.id : -1;
    auto made = new_physical(bytes, device, ("emulated-gpu:" + std::to_string(device)).c_str());
    made->properties = *properties;
    *handle = new_handle(std::move(made));
  } catch (Error error) {
    return error;
  }
  return kSuccess;
}

COPPICE_CUDA cuMemRelease(MemoryHandle handle) {
  std::lock_guard held(handles_lock);
  const auto found = handles().find(handle);
  if (found == handles().end()) return kInvalidValue;
  if (--found->second.uses == 0) handles().erase(found);
  return kSuccess;
}

COPPICE_CUDA cuMemRetainAllocationHandle(MemoryHandle* handle, void* address) {
  const auto range = Memory::instance().find(address_of(address));
  if (!range || range->source != Source::mapped) return kInvalidValue;
  std::lock_guard held(handles_lock);
  for (auto& [number, each] : handles()) {
    if (each.physical != range->physical) continue;
    ++each.uses;
    *handle = number;
    return kSuccess;
  }
  handles()[++last_handle] = {range->physical};
  *handle = last_handle;
  return kSuccess;
}

COPPICE_CUDA cuMemGetAllocationPropertiesFromHandle(AllocationProperties* properties, MemoryHandle handle) {
  const auto physical = physical_of(handle);
  if (!physical) return kInvalidValue;
  *properties = physical->properties;
  return kSuccess;
}

COPPICE_CUDA cuMemExportToShareableHandle(void* shareable, MemoryHandle handle, int type, unsigned long long) {
  const auto physical = physical_of(handle);
  if (!physical) return kInvalidValue;
  if (type != kFileDescriptor) return kNotSupported;
  if (!(physical->properties.handle_types & kFileDescriptor)) return kInvalidValue;
  const int descriptor = fcntl(physical->descriptor, F_DUPFD_CLOEXEC, 0);
  if (descriptor < 0) return kOperatingSystem;
  *static_cast<int*>(shareable) = descriptor;
  return kSuccess;
}

COPPICE_CUDA cuMemImportFromShareableHandle(MemoryHandle* handle, void* shareable, int type) {
  if (type != kFileDescriptor) return kNotSupported;
  const int descriptor = static_cast<int>(reinterpret_cast<std::intptr_t>(shareable));
  const std::string name = name_of(descriptor);
  struct stat status{};
  if (fstat(descriptor, &status) != 0) return kInvalidValue;
  auto made = std::make_shared<Physical>();
  made->descriptor = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (made->descriptor < 0) return kOperatingSystem;
  made->properties.type = 1;
  made->properties.handle_types = kFileDescriptor;
  try {
    if (name.find("emulated-multicast") != std::string::npos) {
      made->multicast = Multicast::open(made->descriptor);
      made->bytes = made->multicast->bytes();
    } else if (const auto at = name.find("emulated-gpu:"); at != std::string::npos) {
      made->bytes = static_cast<std::size_t>(status.st_size);
      made->device = std::stoi(name.substr(at + std::strlen("emulated-gpu:")));
      made->properties.location = {made->device < 0 ? kOnHostNuma : kOnDevice, std::max(made->device, 0)};
    } else {
      return kInvalidValue;
    }
  } catch (Error error) {
    return error;
  }
  *handle = new_handle(std::move(made));
  return kSuccess;
}

COPPICE_CUDA cuMemAddressReserve(DevicePointer* address, std::size_t bytes, std::size_t alignment, DevicePointer,
                                 unsigned long long) {
  if (!bytes || bytes % kGranularity) return kInvalidValue;
  alignment = std::max(alignment, kGranularity);
  void* mapped = mmap(nullptr, bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return kOutOfMemory;
  const Address from = address_of(mapped), base = (from + alignment - 1) / alignment * alignment;
  if (base > from) munmap(mapped, base - from);
  if (from + alignment > base) munmap(reinterpret_cast<void*>(base + bytes), from + alignment - base);
  std::lock_guard held(handles_lock);
  reservations()[base] = bytes;
  *address = base;
  return kSuccess;
}

COPPICE_CUDA cuMemAddressFree(DevicePointer address, std::size_t bytes) {
  std::lock_guard held(handles_lock);
  const auto found = reservations().find(address);
  if (found == reservations().end() || found->second != bytes) return kInvalidValue;
  munmap(reinterpret_cast<void*>(address), bytes);
  reservations().erase(found);
  return kSuccess;
}

COPPICE_CUDA cuMemMap(DevicePointer address, std::size_t bytes, std::size_t offset, MemoryHandle handle,
                      unsigned long long) {
  const auto physical = physical_of(handle);
  if (!physical || !bytes || offset + bytes > physical->bytes || address % kGranularity || bytes % kGranularity ||
      !reserved(address, bytes)) {
    return kInvalidValue;
  }
  Memory& memory = Memory::instance();
  for (Address at = address; at < address + bytes; at += kGranularity) {
    if (memory.find(at)) return kInvalidValue;
  }
  Range range{address, bytes, Source::mapped, physical->device, physical, offset, std::vector<bool>(box().gpus.size())};
  try {
    if (!physical->multicast) map_physical(*physical, offset, bytes, reinterpret_cast<void*>(address));
  } catch (Error error) {
    return error;
  }
  memory.add(range);
  return kSuccess;
}

COPPICE_CUDA cuMemUnmap(DevicePointer address, std::size_t bytes) {
  Memory& memory = Memory::instance();
  bool any = false;
  for (Address at = address; at < address + bytes;) {
    const auto range = memory.find(at);
    if (!range || range->source != Source::mapped) {
      at += kGranularity;
      continue;
    }
    if (range->base < address || range->base + range->bytes > address + bytes) return kInvalidValue;
    memory.remove(range->base, forget_mapping);
    at = range->base + range->bytes;
    any = true;
  }
  return any ? kSuccess : kInvalidValue;
}

COPPICE_CUDA cuMemSetAccess(DevicePointer address, std::size_t bytes, const AccessDescription* descriptions,
                            std::size_t count) {
  Memory& memory = Memory::instance();
  for (Address at = address; at < address + bytes;) {
    const auto range = memory.find(at);
    if (!range || range->source != Source::mapped) return kInvalidValue;
    memory.change(range->base, [&](Range& each) {
      for (std::size_t i = 0; i < count; ++i) {
        if (descriptions[i].location.type != kOnDevice || !is_device(descriptions[i].location.id)) continue;
        each.access[static_cast<std::size_t>(descriptions[i].location.id)] = descriptions[i].flags != 0;
      }
    });
    at = range->base + range->bytes;
  }
  return kSuccess;
}

COPPICE_CUDA cuMemGetAccess(unsigned long long* flags, const Location* location, DevicePointer address) {
  const auto range = Memory::instance().find(address);
  if (!range || range->source != Source::mapped || !is_device(location->id)) return kInvalidValue;
  *flags = range->access[static_cast<std::size_t>(location->id)] ? 3 : 0;
  return kSuccess;
}

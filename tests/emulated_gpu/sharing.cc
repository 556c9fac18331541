// Handles of memory for other processes (cudaIpc*): a process and a descriptor of its memfd.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "emulated_gpu/errors.h"
#include "emulated_gpu/memory.h"

using namespace coppice::emulated_gpu;

namespace {

struct Shared {
  char mark[16];
  int process, descriptor, device;
  std::size_t bytes;
};
static_assert(sizeof(Shared) <= sizeof(IpcHandle));

struct Opened {
  Address base;
  int uses;
};

std::mutex lock;

std::map<std::string, Opened>& opened() {
  static auto* all = new std::map<std::string, Opened>;
  return *all;
}

}  // namespace

COPPICE_CUDA cudaIpcGetMemHandle(IpcHandle* handle, void* pointer) {
  const auto range = Memory::instance().find(address_of(pointer));
  if (!range || range->source != Source::allocated) return answer(kInvalidValue);
  Shared shared{"emulated memory", static_cast<int>(getpid()), range->physical->descriptor, range->device,
                range->bytes};
  *handle = {};
  std::memcpy(handle, &shared, sizeof shared);
  return kSuccess;
}

COPPICE_CUDA cudaIpcOpenMemHandle(void** pointer, IpcHandle handle, unsigned) {
  Shared shared{};
  std::memcpy(&shared, &handle, sizeof shared);
  if (std::strncmp(shared.mark, "emulated memory", sizeof shared.mark) != 0) return answer(kInvalidValue);
  if (shared.process == getpid()) return answer(kInvalidContext);
  std::lock_guard held(lock);
  const std::string key(handle.bytes, sizeof handle.bytes);
  const auto found = opened().find(key);
  if (found != opened().end()) {
    ++found->second.uses;
    *pointer = reinterpret_cast<void*>(found->second.base);
    return kSuccess;
  }
  const std::string path = "/proc/" + std::to_string(shared.process) + "/fd/" + std::to_string(shared.descriptor);
  auto physical = std::make_shared<Physical>();
  physical->descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  physical->bytes = shared.bytes;
  physical->device = shared.device;
  if (physical->descriptor < 0) return answer(kInvalidValue);
  try {
    *pointer = map_physical(*physical, 0, shared.bytes);
  } catch (Error error) {
    return answer(error);
  }
  Memory::instance().add({address_of(*pointer), shared.bytes, Source::shared, shared.device, physical, 0, {}, 0});
  opened()[key] = {address_of(*pointer), 1};
  return kSuccess;
}

COPPICE_CUDA cudaIpcCloseMemHandle(void* pointer) {
  std::lock_guard held(lock);
  for (auto each = opened().begin(); each != opened().end(); ++each) {
    if (each->second.base != address_of(pointer)) continue;
    if (--each->second.uses == 0) {
      Memory::instance().remove(each->second.base,
                                [](const Range& range) { munmap(reinterpret_cast<void*>(range.base), range.bytes); });
      opened().erase(each);
    }
    return kSuccess;
  }
  return answer(kInvalidValue);
}

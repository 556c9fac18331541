// Waits for and writes of single values by a stream, in order, each with the data that came before it.
#include <vector>

#include "emulated_gpu/capture.h"
#include "emulated_gpu/devices.h"
#include "emulated_gpu/errors.h"
#include "emulated_gpu/graphs.h"
#include "emulated_gpu/memory.h"
#include "emulated_gpu/streams.h"

using namespace coppice::emulated_gpu;

namespace {

bool wait_is_over(const MemoryOperation& operation, int device) {
  const bool wide = operation.kind == kWait64;
  const std::uint64_t there = Memory::instance().load(operation.value.address, wide ? 8 : 4, device);
  const std::uint64_t value = operation.value.value;
  switch (operation.value.flags & ~kWaitFlush) {
    case kAtLeast:
      return wide ? static_cast<std::int64_t>(there - value) >= 0
                  : static_cast<std::int32_t>(static_cast<std::uint32_t>(there - value)) >= 0;
    case kEqual: return wide ? there == value : static_cast<std::uint32_t>(there) == static_cast<std::uint32_t>(value);
    case kAnd: return wide ? (there & value) != 0 : static_cast<std::uint32_t>(there & value) != 0;
    default: return wide ? ~(there | value) != 0 : ~static_cast<std::uint32_t>(there | value) != 0;
  }
}

bool is_good(const MemoryOperation& operation) {
  switch (operation.kind) {
    case kWait32:
    case kWait64:
      if ((operation.value.flags & ~kWaitFlush) > kNor) return false;
      [[fallthrough]];
    case kWrite32:
    case kWrite64: {
      const std::size_t bytes = operation.kind == kWait32 || operation.kind == kWrite32 ? 4 : 8;
      return operation.value.address % bytes == 0 &&
             !Memory::instance().covering(operation.value.address, bytes).empty();
    }
    case kBarrier:
    case kFlushRemoteWrites: return true;
    default: return false;
  }
}

Task task_of(const MemoryOperation* given, unsigned count, int device) {
  std::vector<MemoryOperation> all(given, given + count);
  return {kMemoryOperationsNode, [all, device] {
            return Step{Runs::copy_engine, [all, device, at = std::size_t{0}]() mutable {
                          for (; at < all.size(); ++at) {
                            const MemoryOperation& each = all[at];
                            if (each.kind == kWait32 || each.kind == kWait64) {
                              if (!wait_is_over(each, device)) return Outcome::blocked;
                            } else if (each.kind == kWrite32 || each.kind == kWrite64) {
                              Memory::instance().store(each.value.address, each.value.value,
                                                       each.kind == kWrite32 ? 4 : 8, device);
                            }
                          }
                          return Outcome::done;
                        }};
          }};
}

int batch(void* handle, unsigned count, const MemoryOperation* operations) {
  const StreamPtr stream = stream_of(handle);
  if (!stream) return kInvalidHandle;
  if (!count || count > 256) return kInvalidValue;
  for (unsigned i = 0; i < count; ++i) {
    if (!is_good(operations[i])) return kInvalidValue;
  }
  return issue(*stream, task_of(operations, count, stream->device));
}

int one(void* handle, int kind, DevicePointer address, std::uint64_t value, unsigned flags) {
  MemoryOperation operation{};
  operation.value = {kind, address, value, flags, 0};
  return batch(handle, 1, &operation);
}

}  // namespace

COPPICE_CUDA cuStreamWaitValue32(void* stream, DevicePointer address, std::uint32_t value, unsigned flags) {
  return one(stream, kWait32, address, value, flags);
}

COPPICE_CUDA cuStreamWaitValue64(void* stream, DevicePointer address, std::uint64_t value, unsigned flags) {
  return one(stream, kWait64, address, value, flags);
}

COPPICE_CUDA cuStreamWriteValue32(void* stream, DevicePointer address, std::uint32_t value, unsigned flags) {
  return one(stream, kWrite32, address, value, flags);
}

COPPICE_CUDA cuStreamWriteValue64(void* stream, DevicePointer address, std::uint64_t value, unsigned flags) {
  return one(stream, kWrite64, address, value, flags);
}

COPPICE_CUDA cuStreamBatchMemOp(void* stream, unsigned count, MemoryOperation* operations, unsigned flags) {
  return flags ? kInvalidValue : batch(stream, count, operations);
}

COPPICE_CUDA cuGraphAddBatchMemOpNode(void** node, void* handle, void* const* after, std::size_t count,
                                      const MemoryOperationsNode* what) {
  std::lock_guard held(Scheduler::instance().state());
  const auto graph = Graph::of(handle);
  if (!graph || !what->count) return kInvalidValue;
  for (unsigned i = 0; i < what->count; ++i) {
    if (!is_good(what->operations[i])) return kInvalidValue;
  }
  std::vector<Node*> nodes;
  for (std::size_t i = 0; i < count; ++i) nodes.push_back(static_cast<Node*>(after[i]));
  *node = graph->add(current_device(), task_of(what->operations, what->count, current_device()), nodes);
  return kSuccess;
}

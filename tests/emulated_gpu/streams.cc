#include "emulated_gpu/streams.h"

#include <map>

#include "emulated_gpu/capture.h"
#include "emulated_gpu/devices.h"
#include "emulated_gpu/errors.h"

namespace coppice::emulated_gpu {
namespace {

enum Handle : std::intptr_t { kLegacyHandle = 1, kThreadHandle = 2 };

std::uint64_t last_id = 0;  // with the state held, as the two below

std::map<void*, StreamPtr>& streams() {
  static auto* all = new std::map<void*, StreamPtr>;
  return *all;
}

// Of streams that were destroyed before their work was over, and of threads: still a device's work.
std::vector<std::weak_ptr<Stream>>& others() {
  static auto* all = new std::vector<std::weak_ptr<Stream>>;
  return *all;
}

std::vector<std::pair<int, OperationPtr>>& orphans() {
  static auto* all = new std::vector<std::pair<int, OperationPtr>>;
  return *all;
}

StreamPtr new_stream(int device, bool blocking) {
  auto made = std::make_shared<Stream>();
  made->device = device;
  made->blocking = blocking;
  made->id = ++last_id;
  return made;
}

StreamPtr& legacy_of(int device) {
  static auto* all = new std::map<int, StreamPtr>;
  StreamPtr& found = (*all)[device];
  if (!found) {
    found = new_stream(device, true);
    found->legacy = true;
  }
  return found;
}

StreamPtr thread_stream(int device) {
  thread_local std::map<int, StreamPtr> mine;
  StreamPtr& found = mine[device];
  if (!found) {
    found = new_stream(device, true);
    others().push_back(found);
  }
  return found;
}

template <class Visit>
void each_stream(int device, Visit visit) {
  for (const auto& [handle, stream] : streams()) {
    if (stream->device == device) visit(*stream);
  }
  std::erase_if(others(), [](const auto& each) { return each.expired(); });
  for (const auto& each : others()) {
    const StreamPtr stream = each.lock();
    if (stream && stream->device == device) visit(*stream);
  }
}

int create(void** handle, unsigned flags, int priority) {
  std::lock_guard held(Scheduler::instance().state());
  if (flags > 1) return kInvalidValue;
  StreamPtr made = new_stream(current_device(), flags == 0);
  made->flags = flags;
  made->priority = priority;
  *handle = made.get();
  streams()[made.get()] = std::move(made);
  return kSuccess;
}

}  // namespace

StreamPtr stream_of(void* handle) {
  std::lock_guard held(Scheduler::instance().state());
  const auto number = reinterpret_cast<std::intptr_t>(handle);
  if (number == 0 || number == kLegacyHandle) return legacy_of(current_device());
  if (number == kThreadHandle) return thread_stream(current_device());
  const auto found = streams().find(handle);
  return found == streams().end() ? nullptr : found->second;
}

std::vector<OperationPtr> before(const Stream& stream) {
  std::vector<OperationPtr> all{stream.tail};
  if (stream.legacy) {
    each_stream(stream.device, [&](const Stream& each) {
      if (each.blocking && !each.capture) all.push_back(each.tail);
    });
  } else if (stream.blocking) {
    all.push_back(legacy_of(stream.device)->tail);
  }
  return all;
}

OperationPtr launch(Stream& stream, Step step, std::vector<OperationPtr> after) {
  auto operation = std::make_shared<Operation>();
  operation->device = stream.device;
  operation->queue = stream.id;
  operation->step = std::move(step);
  for (OperationPtr& each : before(stream)) after.push_back(std::move(each));
  Scheduler::instance().submit(operation, after);
  stream.tail = operation;
  return operation;
}

int issue(Stream& stream, Task task, OperationPtr* issued) {
  std::lock_guard held(Scheduler::instance().state());
  if (const int failed = Scheduler::instance().failure(stream.device)) return failed;
  if (stream.capture) return add_captured(stream, task);
  if (stream.legacy) {
    if (const int error = legacy_call(stream.device)) return error;
  }
  OperationPtr operation = launch(stream, task.step ? task.step() : Step{}, {});
  if (issued) *issued = std::move(operation);
  return kSuccess;
}

OperationPtr end_of_device(int device) {
  std::lock_guard held(Scheduler::instance().state());
  std::vector<OperationPtr> all{legacy_of(device)->tail};
  each_stream(device, [&](const Stream& each) { all.push_back(each.tail); });
  std::erase_if(orphans(), [](const auto& each) { return Scheduler::instance().done(each.second); });
  for (const auto& [of, operation] : orphans()) {
    if (of == device) all.push_back(operation);
  }
  auto end = std::make_shared<Operation>();
  end->device = device;
  Scheduler::instance().submit(end, all);
  return end;
}

int finish(const OperationPtr& operation, int device) {
  Scheduler::instance().wait(operation);
  return Scheduler::instance().failure(device);
}

}  // namespace coppice::emulated_gpu

using namespace coppice::emulated_gpu;

COPPICE_CUDA cudaStreamCreate(void** stream) { return answer(create(stream, 0, 0)); }
COPPICE_CUDA cudaStreamCreateWithFlags(void** stream, unsigned flags) { return answer(create(stream, flags, 0)); }

COPPICE_CUDA cudaStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  return answer(create(stream, flags, priority));
}

COPPICE_CUDA cudaStreamDestroy(void* handle) {
  std::lock_guard held(Scheduler::instance().state());
  const auto found = streams().find(handle);
  if (found == streams().end()) return answer(kInvalidHandle);
  const StreamPtr stream = found->second;
  if (stream->capture && stream->capture->origin == stream.get()) stream->capture->status = kInvalidatedCapture;
  if (!Scheduler::instance().done(stream->tail)) orphans().emplace_back(stream->device, stream->tail);
  streams().erase(found);
  return kSuccess;
}

COPPICE_CUDA cudaStreamSynchronize(void* handle) {
  OperationPtr tail;
  const StreamPtr stream = stream_of(handle);
  if (!stream) return answer(kInvalidHandle);
  {
    std::lock_guard held(Scheduler::instance().state());
    if (stream->capture) {
      stream->capture->status = kInvalidatedCapture;
      return answer(kCaptureUnsupported);
    }
    if (const int error = unsafe_call()) return answer(error);
    tail = stream->legacy ? launch(*stream, {}, {}) : stream->tail;
  }
  return answer(finish(tail, stream->device));
}

COPPICE_CUDA cudaStreamQuery(void* handle) {
  const StreamPtr stream = stream_of(handle);
  if (!stream) return answer(kInvalidHandle);
  std::lock_guard held(Scheduler::instance().state());
  if (stream->capture) {
    stream->capture->status = kInvalidatedCapture;
    return answer(kCaptureUnsupported);
  }
  if (const int error = unsafe_call()) return answer(error);
  if (const int failed = Scheduler::instance().failure(stream->device)) return answer(failed);
  return answer(Scheduler::instance().done(stream->tail) ? kSuccess : kNotReady);
}

COPPICE_CUDA cudaStreamGetFlags(void* handle, unsigned* flags) {
  const StreamPtr stream = stream_of(handle);
  if (!stream) return answer(kInvalidHandle);
  *flags = stream->flags;
  return kSuccess;
}

COPPICE_CUDA cudaStreamGetPriority(void* handle, int* priority) {
  const StreamPtr stream = stream_of(handle);
  if (!stream) return answer(kInvalidHandle);
  *priority = stream->priority;
  return kSuccess;
}

COPPICE_CUDA cudaStreamGetId(void* handle, unsigned long long* id) {
  const StreamPtr stream = stream_of(handle);
  if (!stream) return answer(kInvalidHandle);
  *id = stream->id;
  return kSuccess;
}

COPPICE_CUDA cudaStreamGetDevice(void* handle, int* device) {
  const StreamPtr stream = stream_of(handle);
  if (!stream) return answer(kInvalidHandle);
  *device = stream->device;
  return kSuccess;
}

COPPICE_CUDA cudaDeviceSynchronize() {
  const int device = current_device();
  {
    std::lock_guard held(Scheduler::instance().state());
    if (const int error = unsafe_call()) return answer(error);
  }
  return answer(finish(end_of_device(device), device));
}

COPPICE_CUDA cudaDeviceReset() {
  const int device = current_device();
  finish(end_of_device(device), device);
  Scheduler::instance().forgive(device);
  return kSuccess;
}

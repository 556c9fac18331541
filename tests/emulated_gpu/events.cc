#include "emulated_gpu/events.h"

#include <map>

#include "emulated_gpu/capture.h"
#include "emulated_gpu/devices.h"
#include "emulated_gpu/errors.h"
#include "emulated_gpu/graphs.h"
#include "emulated_gpu/streams.h"

namespace coppice::emulated_gpu {
namespace {

enum Flags : unsigned { kExternal = 1, kNoTiming = 2, kInterprocess = 4 };

std::map<void*, EventPtr>& events() {
  static auto* all = new std::map<void*, EventPtr>;
  return *all;
}

EventPtr event_of(void* handle) {
  const auto found = events().find(handle);
  return found == events().end() ? nullptr : found->second;
}

int record(const EventPtr& event, Stream& stream, unsigned flags) {
  if (!stream.capture) {
    if (flags & kExternal) return kInvalidValue;
    if (event->device != stream.device) return kInvalidHandle;
    if (stream.legacy) {
      if (const int error = legacy_call(stream.device)) return error;
    }
    event->at = launch(stream, {}, {});
    event->capture.reset();
    event->nodes.clear();
    return kSuccess;
  }
  if (flags & kExternal) {
    const int error = add_captured(stream, {kRecordEventNode, nullptr});
    if (!error) stream.frontier.front()->event = event;
    return error;
  }
  if (stream.capture->status != kActiveCapture) return kCaptureInvalidated;
  event->at.reset();
  event->capture = stream.capture;
  event->nodes = stream.frontier;
  return kSuccess;
}

int wait(const EventPtr& event, Stream& stream, unsigned flags) {
  if (event->capture && event->capture->status == kActiveCapture) {
    return join_capture(stream, event->capture, event->nodes);
  }
  if (event->capture) return kCapturedEvent;  // whose capture is over
  if (!stream.capture) {
    if (flags & kExternal) return kInvalidValue;
    if (stream.legacy) {
      if (const int error = legacy_call(stream.device)) return error;
    }
    launch(stream, {}, {event->at});
    return kSuccess;
  }
  if (flags & kExternal) {
    const int error = add_captured(stream, {kWaitEventNode, nullptr});
    if (!error) stream.frontier.front()->event = event;
    return error;
  }
  if (!event->at) return kSuccess;
  stream.capture->status = kInvalidatedCapture;
  return kCaptureIsolation;
}

}  // namespace
}  // namespace coppice::emulated_gpu

using namespace coppice::emulated_gpu;

COPPICE_CUDA cudaEventCreateWithFlags(void** handle, unsigned flags) {
  if (flags & kInterprocess) return not_supported("cudaEventCreateWithFlags(cudaEventInterprocess)");
  std::lock_guard held(Scheduler::instance().state());
  auto made = std::make_shared<Event>();
  made->flags = flags;
  made->device = current_device();
  *handle = made.get();
  events()[made.get()] = std::move(made);
  return kSuccess;
}

COPPICE_CUDA cudaEventCreate(void** handle) { return cudaEventCreateWithFlags(handle, 0); }

COPPICE_CUDA cudaEventDestroy(void* handle) {
  std::lock_guard held(Scheduler::instance().state());
  return answer(events().erase(handle) ? kSuccess : kInvalidHandle);
}

COPPICE_CUDA cudaEventRecordWithFlags(void* handle, void* stream_handle, unsigned flags) {
  const StreamPtr stream = stream_of(stream_handle);
  std::lock_guard held(Scheduler::instance().state());
  const EventPtr event = event_of(handle);
  if (!event || !stream) return answer(kInvalidHandle);
  return answer(record(event, *stream, flags));
}

COPPICE_CUDA cudaEventRecord(void* handle, void* stream) { return cudaEventRecordWithFlags(handle, stream, 0); }

COPPICE_CUDA cudaStreamWaitEvent(void* stream_handle, void* handle, unsigned flags) {
  const StreamPtr stream = stream_of(stream_handle);
  std::lock_guard held(Scheduler::instance().state());
  const EventPtr event = event_of(handle);
  if (!event || !stream) return answer(kInvalidHandle);
  return answer(wait(event, *stream, flags));
}

COPPICE_CUDA cudaEventQuery(void* handle) {
  std::lock_guard held(Scheduler::instance().state());
  const EventPtr event = event_of(handle);
  if (!event) return answer(kInvalidHandle);
  if (event->capture) return answer(kCapturedEvent);
  if (const int error = unsafe_call()) return answer(error);
  if (const int failed = Scheduler::instance().failure(event->device)) return answer(failed);
  return answer(Scheduler::instance().done(event->at) ? kSuccess : kNotReady);
}

COPPICE_CUDA cudaEventSynchronize(void* handle) {
  EventPtr event;
  OperationPtr at;
  {
    std::lock_guard held(Scheduler::instance().state());
    event = event_of(handle);
    if (!event) return answer(kInvalidHandle);
    if (event->capture) return answer(kCapturedEvent);
    if (const int error = unsafe_call()) return answer(error);
    at = event->at;
  }
  return answer(finish(at, event->device));
}

COPPICE_CUDA cudaEventElapsedTime(float* milliseconds, void* from, void* to) {
  std::lock_guard held(Scheduler::instance().state());
  const EventPtr first = event_of(from), second = event_of(to);
  if (!first || !second || !first->at || !second->at || (first->flags | second->flags) & kNoTiming) {
    return answer(kInvalidHandle);
  }
  Scheduler& scheduler = Scheduler::instance();
  if (!scheduler.done(first->at) || !scheduler.done(second->at)) return answer(kNotReady);
  *milliseconds = static_cast<float>(scheduler.milliseconds(first->at, second->at));
  return kSuccess;
}

// Nodes of graphs that are made by hand.

namespace {

int add_event_node(void** node, void* graph, void* const* after, std::size_t count, void* handle, NodeType type) {
  std::lock_guard held(Scheduler::instance().state());
  const EventPtr event = event_of(handle);
  const auto into = Graph::of(graph);
  if (!event || !into) return answer(kInvalidValue);
  std::vector<Node*> nodes;
  for (std::size_t i = 0; i < count; ++i) nodes.push_back(static_cast<Node*>(after[i]));
  Node* made = into->add(current_device(), {type, nullptr}, nodes);
  made->event = event;
  *node = made;
  return kSuccess;
}

}  // namespace

COPPICE_CUDA cudaGraphAddEventRecordNode(void** node, void* graph, void* const* after, std::size_t count, void* event) {
  return add_event_node(node, graph, after, count, event, kRecordEventNode);
}

COPPICE_CUDA cudaGraphAddEventWaitNode(void** node, void* graph, void* const* after, std::size_t count, void* event) {
  return add_event_node(node, graph, after, count, event, kWaitEventNode);
}

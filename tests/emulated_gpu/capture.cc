#include "emulated_gpu/capture.h"

#include <algorithm>
#include <set>

#include "emulated_gpu/errors.h"

namespace coppice::emulated_gpu {
namespace {

thread_local CaptureMode thread_mode = kGlobalCapture;
unsigned long long last_capture = 0;  // with the state held, as below

struct Taking {
  std::shared_ptr<Capture> capture;
  std::vector<std::weak_ptr<Stream>> streams;
};

std::vector<Taking>& captures() {
  static auto* all = new std::vector<Taking>;
  return *all;
}

void take_part(const StreamPtr& stream, const std::shared_ptr<Capture>& capture, const std::vector<Node*>& nodes) {
  stream->capture = capture;
  stream->frontier = nodes;
  for (Taking& each : captures()) {
    if (each.capture == capture) each.streams.push_back(stream);
  }
}

// Whether all work of these comes before or is in the other.
bool reached(const std::vector<Node*>& nodes, const std::vector<Node*>& from) {
  std::set<Node*> seen(from.begin(), from.end());
  std::vector<Node*> open = from;
  while (!open.empty()) {
    Node* each = open.back();
    open.pop_back();
    for (Node* next : each->after) {
      if (seen.insert(next).second) open.push_back(next);
    }
  }
  return std::all_of(nodes.begin(), nodes.end(), [&](Node* each) { return !each->captured || seen.contains(each); });
}

int begin(const StreamPtr& stream, std::shared_ptr<Graph> graph, std::vector<Node*> after, int mode, bool own) {
  if (stream->legacy) return kCaptureUnsupported;
  if (stream->capture) return kIllegalState;
  auto made = std::make_shared<Capture>();
  made->id = ++last_capture;
  made->graph = std::move(graph);
  made->own_graph = own;
  made->mode = static_cast<CaptureMode>(mode);
  made->origin = stream.get();
  made->thread = std::this_thread::get_id();
  captures().push_back({made, {}});
  take_part(stream, made, after);
  return kSuccess;
}

int end(Stream& stream, void** graph, std::shared_ptr<Graph>& made) {
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = stream.capture;
  if (!capture) return kIllegalState;
  if (capture->origin != &stream) return kCaptureUnmatched;
  if (capture->mode != kRelaxedCapture && capture->thread != std::this_thread::get_id()) return kCaptureWrongThread;
  int error = capture->status == kActiveCapture ? kSuccess : kCaptureInvalidated;
  capture->status = kInvalidatedCapture;  // over: events of it are of no use any more
  const auto found =
      std::find_if(captures().begin(), captures().end(), [&](const Taking& each) { return each.capture == capture; });
  for (const auto& each : found->streams) {
    const StreamPtr part = each.lock();
    if (!part || part->capture != capture) continue;
    if (!error && !reached(part->frontier, stream.frontier)) error = kCaptureUnjoined;
    if (part.get() == &stream) continue;
    part->capture.reset();
    part->frontier.clear();
  }
  stream.capture.reset();
  stream.frontier.clear();
  captures().erase(found);
  made = std::move(capture->graph);
  if (!error) *graph = capture->own_graph ? Graph::keep(made) : made.get();
  return error;
}

}  // namespace

int add_captured(Stream& stream, const Task& task) {
  if (stream.capture->status != kActiveCapture) return kCaptureInvalidated;
  stream.frontier = {stream.capture->graph->add(stream.device, task, stream.frontier)};
  stream.frontier.front()->captured = true;
  return kSuccess;
}

int join_capture(Stream& stream, const std::shared_ptr<Capture>& capture, const std::vector<Node*>& nodes) {
  if (stream.legacy) {
    capture->status = kInvalidatedCapture;
    return kCaptureImplicit;
  }
  if (!stream.capture) {
    take_part(stream_of(&stream), capture, nodes);
    return kSuccess;
  }
  if (stream.capture != capture) {
    stream.capture->status = capture->status = kInvalidatedCapture;
    return kCaptureMerge;
  }
  for (Node* each : nodes) {
    if (std::find(stream.frontier.begin(), stream.frontier.end(), each) == stream.frontier.end()) {
      stream.frontier.push_back(each);
    }
  }
  return kSuccess;
}

int unsafe_call() {
  int error = kSuccess;
  for (const Taking& each : captures()) {
    Capture& capture = *each.capture;
    const bool mine = capture.thread == std::this_thread::get_id();
    const bool stopped = thread_mode != kRelaxedCapture && capture.mode != kRelaxedCapture &&
                         (mine || (thread_mode == kGlobalCapture && capture.mode == kGlobalCapture));
    if (!stopped) continue;
    capture.status = kInvalidatedCapture;
    error = kCaptureUnsupported;
  }
  return error;
}

int legacy_call(int device) {
  int error = kSuccess;
  for (const Taking& taking : captures()) {
    for (const auto& each : taking.streams) {
      const StreamPtr stream = each.lock();
      if (!stream || !stream->capture || stream->device != device || !stream->blocking) continue;
      stream->capture->status = kInvalidatedCapture;
      error = kCaptureImplicit;
    }
  }
  return error;
}

}  // namespace coppice::emulated_gpu

using namespace coppice::emulated_gpu;

COPPICE_CUDA cudaStreamBeginCapture(void* handle, int mode) {
  const StreamPtr stream = stream_of(handle);
  if (!stream) return answer(kInvalidHandle);
  std::lock_guard held(Scheduler::instance().state());
  return answer(begin(stream, std::make_shared<Graph>(), {}, mode, true));
}

COPPICE_CUDA cudaStreamBeginCaptureToGraph(void* handle, void* graph, void* const* after, const void*,
                                           std::size_t count, int mode) {
  const StreamPtr stream = stream_of(handle);
  std::lock_guard held(Scheduler::instance().state());
  auto into = Graph::of(graph);
  if (!stream || !into) return answer(kInvalidHandle);
  std::vector<Node*> nodes;
  for (std::size_t i = 0; i < count; ++i) nodes.push_back(static_cast<Node*>(after[i]));
  return answer(begin(stream, std::move(into), nodes, mode, false));
}

COPPICE_CUDA cudaStreamEndCapture(void* handle, void** graph) {
  const StreamPtr stream = stream_of(handle);
  if (!stream) return answer(kInvalidHandle);
  std::shared_ptr<Graph> made;  // dropped after the lock: what ends with it may call back
  std::lock_guard held(Scheduler::instance().state());
  return answer(end(*stream, graph, made));
}

COPPICE_CUDA cudaStreamIsCapturing(void* handle, int* status) {
  const StreamPtr stream = stream_of(handle);
  if (!stream) return answer(kInvalidHandle);
  std::lock_guard held(Scheduler::instance().state());
  if (stream->legacy && !stream->capture) {
    if (const int error = legacy_call(stream->device)) return answer(error);
  }
  *status = stream->capture ? stream->capture->status : kNoCapture;
  return kSuccess;
}

COPPICE_CUDA cudaStreamGetCaptureInfo(void* handle, int* status, unsigned long long* id, void** graph,
                                      void* const** after, const void** edges, std::size_t* count) {
  const StreamPtr stream = stream_of(handle);
  if (!stream) return answer(kInvalidHandle);
  std::lock_guard held(Scheduler::instance().state());
  if (stream->legacy) {
    if (const int error = legacy_call(stream->device)) return answer(error);
  }
  *status = stream->capture ? stream->capture->status : kNoCapture;
  if (*status != kActiveCapture) return kSuccess;
  if (id) *id = stream->capture->id;
  if (graph) *graph = stream->capture->graph.get();
  if (after) *after = reinterpret_cast<void* const*>(stream->frontier.data());
  if (edges) *edges = nullptr;
  if (count) *count = stream->frontier.size();
  return kSuccess;
}

COPPICE_CUDA cudaStreamUpdateCaptureDependencies(void* handle, void** nodes, const void*, std::size_t count,
                                                 unsigned flags) {
  const StreamPtr stream = stream_of(handle);
  if (!stream) return answer(kInvalidHandle);
  std::lock_guard held(Scheduler::instance().state());
  if (!stream->capture) return answer(kIllegalState);
  std::vector<Node*> given;
  for (std::size_t i = 0; i < count; ++i) given.push_back(static_cast<Node*>(nodes[i]));
  if (flags == 1) {
    stream->frontier = given;
    return kSuccess;
  }
  return answer(join_capture(*stream, stream->capture, given));
}

COPPICE_CUDA cudaThreadExchangeStreamCaptureMode(int* mode) {
  const CaptureMode was = thread_mode;
  thread_mode = static_cast<CaptureMode>(*mode);
  *mode = was;
  return kSuccess;
}

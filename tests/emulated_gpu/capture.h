// Capture: streams whose work becomes nodes of a graph.
#pragma once

#include <memory>
#include <thread>

#include "emulated_gpu/graphs.h"
#include "emulated_gpu/streams.h"

namespace coppice::emulated_gpu {

struct Capture {
  unsigned long long id = 0;
  std::shared_ptr<Graph> graph;
  bool own_graph = true;
  CaptureMode mode = kGlobalCapture;
  CaptureStatus status = kActiveCapture;
  Stream* origin = nullptr;
  std::thread::id thread;
};

// All with the state held.
int add_captured(Stream& stream, const Task& task);

// An event that was recorded in a capture: what waits for it joins.
int join_capture(Stream& stream, const std::shared_ptr<Capture>& capture, const std::vector<Node*>& nodes);

// Refuse a call that would end or disturb a capture of this thread, or of any in its global mode, and invalidate it.
int unsafe_call();
// Refuse the legacy stream while a stream that it would order itself with is captured.
int legacy_call(int device);

}  // namespace coppice::emulated_gpu

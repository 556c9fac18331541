// Streams: what is issued to one is carried out in that order, unless it is being captured.
#pragma once

#include <memory>
#include <set>
#include <vector>

#include "emulated_gpu/operations.h"

namespace coppice::emulated_gpu {

struct Capture;
struct Node;

// Something that a stream or a graph can do; `step` makes it anew for each time.
struct Task {
  NodeType type = kEmptyNode;
  std::function<Step()> step;
};

struct Stream {
  int device = 0;
  bool blocking = true;  // orders itself with the legacy stream
  bool legacy = false;
  int priority = 0;
  unsigned flags = 0;
  std::uint64_t id = 0;
  OperationPtr tail;
  std::shared_ptr<Capture> capture;
  std::vector<Node*> frontier;  // what the next captured node depends on
};

using StreamPtr = std::shared_ptr<Stream>;

// The stream of a handle: 0 or 1 for the legacy stream of the current device, 2 for the thread's own; none if unknown.
StreamPtr stream_of(void* handle);

// What an operation that is issued to the stream now depends on, by the stream itself; with the state held.
std::vector<OperationPtr> before(const Stream& stream);

// Issue a task to a stream: carry it out, or add it to the graph that the stream is captured in. The operation comes
// out where there is one to wait for.
int issue(Stream& stream, Task task, OperationPtr* issued = nullptr);
OperationPtr launch(Stream& stream, Step step, std::vector<OperationPtr> after);

// The end of everything that was issued to a device so far.
OperationPtr end_of_device(int device);
// Wait, and tell what failed.
int finish(const OperationPtr& operation, int device);

}  // namespace coppice::emulated_gpu

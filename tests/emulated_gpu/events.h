// Events: a point in the work of a stream.
#pragma once

#include <memory>
#include <vector>

#include "emulated_gpu/operations.h"

namespace coppice::emulated_gpu {

struct Capture;
struct Node;

struct Event {
  unsigned flags = 0;
  int device = 0;
  OperationPtr at;                   // where it was last recorded; none: never, which counts as over
  std::shared_ptr<Capture> capture;  // if that was in a capture
  std::vector<Node*> nodes;          // what the stream's next node would have depended on
};

using EventPtr = std::shared_ptr<Event>;

}  // namespace coppice::emulated_gpu

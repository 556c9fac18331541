// Graphs: nodes, what they depend on, and runs of them.
#pragma once

#include <memory>
#include <vector>

#include "emulated_gpu/events.h"
#include "emulated_gpu/streams.h"

namespace coppice::emulated_gpu {

struct Graph;

struct Node {
  Task task;
  std::vector<Node*> after;
  std::shared_ptr<Graph> child;  // of a graph node
  EventPtr event;                // of a node that records or waits for one
  Graph* graph = nullptr;
  int device = 0;
  bool captured = false;  // by a stream, and not made by hand: it has to be joined before the capture ends
};

struct UserObject {
  void* data = nullptr;
  HostFunction destroy = nullptr;
  unsigned uses = 0;
  void release(unsigned count);
};

struct Graph : std::enable_shared_from_this<Graph> {
  Graph();
  ~Graph();
  std::vector<std::unique_ptr<Node>> nodes;  // none depends on a later one, but where dependencies were added
  std::vector<std::pair<UserObject*, unsigned>> objects;
  Node* add(int device, Task task, const std::vector<Node*>& after);
  // A handle of a graph is its address; a graph lives as long as its handle and what was made of it.
  static std::shared_ptr<Graph> of(void* handle);
  static void* keep(const std::shared_ptr<Graph>& graph);
  static std::shared_ptr<Graph> forget(void* handle);
};

}  // namespace coppice::emulated_gpu

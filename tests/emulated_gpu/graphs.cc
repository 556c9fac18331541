#include "emulated_gpu/graphs.h"

#include <algorithm>
#include <map>
#include <set>

#include "emulated_gpu/capture.h"
#include "emulated_gpu/devices.h"
#include "emulated_gpu/errors.h"

namespace coppice::emulated_gpu {
namespace {

std::mutex live_lock;

std::set<Graph*>& live() {
  static auto* all = new std::set<Graph*>;
  return *all;
}

std::map<void*, std::shared_ptr<Graph>>& kept() {
  static auto* all = new std::map<void*, std::shared_ptr<Graph>>;
  return *all;
}

// What a launch does, with child graphs laid out flat.
struct Part {
  NodeType type;
  Task task;
  EventPtr event;
  int device;
  std::vector<std::size_t> after;
  bool last;  // nothing depends on it
};

struct Executable {
  std::shared_ptr<Graph> graph;  // whose user objects it keeps
  std::vector<Part> parts;
  OperationPtr ends;  // of the last launch: the next one comes after it
};

std::map<void*, std::shared_ptr<Executable>>& executables() {
  static auto* all = new std::map<void*, std::shared_ptr<Executable>>;
  return *all;
}

// Nodes so that each comes after those it depends on; fewer than there are if some depend on themselves.
std::vector<Node*> in_order(const Graph& graph) {
  std::map<Node*, std::size_t> missing;
  std::map<Node*, std::vector<Node*>> next;
  std::vector<Node*> ordered;
  for (const auto& node : graph.nodes) {
    missing[node.get()] = node->after.size();
    for (Node* each : node->after) next[each].push_back(node.get());
    if (node->after.empty()) ordered.push_back(node.get());
  }
  for (std::size_t i = 0; i < ordered.size(); ++i) {
    for (Node* each : next[ordered[i]]) {
      if (--missing[each] == 0) ordered.push_back(each);
    }
  }
  return ordered;
}

bool flatten(const Graph& graph, const std::vector<std::size_t>& after, std::vector<Part>& parts,
             std::vector<std::size_t>& ends) {
  const std::vector<Node*> ordered = in_order(graph);
  if (ordered.size() != graph.nodes.size()) return false;
  std::map<Node*, std::vector<std::size_t>> placed;
  std::set<Node*> leaves(ordered.begin(), ordered.end());
  for (Node* node : ordered) {
    std::vector<std::size_t> before;
    for (Node* each : node->after) {
      leaves.erase(each);
      before.insert(before.end(), placed[each].begin(), placed[each].end());
    }
    if (node->after.empty()) before = after;
    if (node->child) {
      if (!flatten(*node->child, before, parts, placed[node])) return false;
      if (node->child->nodes.empty()) placed[node] = before;
      continue;
    }
    placed[node] = {parts.size()};
    parts.push_back({node->task.type, node->task, node->event, node->device, before, false});
  }
  for (Node* each : leaves) ends.insert(ends.end(), placed[each].begin(), placed[each].end());
  return true;
}

int launch_graph(Executable& executable, Stream& stream) {
  const OperationPtr begins = launch(stream, {}, {executable.ends});
  std::vector<OperationPtr> operations, leaves;
  for (const Part& part : executable.parts) {
    auto operation = std::make_shared<Operation>();
    operation->device = part.device;
    operation->queue = 1'000'000 + operations.size();
    if (part.task.step) operation->step = part.task.step();
    std::vector<OperationPtr> after;
    for (std::size_t each : part.after) after.push_back(operations[each]);
    if (after.empty()) after.push_back(begins);
    if (part.type == kWaitEventNode) after.push_back(part.event->at);
    Scheduler::instance().submit(operation, after);
    if (part.type == kRecordEventNode) {
      part.event->at = operation;
      part.event->capture.reset();
    }
    if (part.last) leaves.push_back(operation);
    operations.push_back(operation);
  }
  executable.ends = launch(stream, {}, leaves);
  return kSuccess;
}

std::vector<Node*> nodes_of(void* const* handles, std::size_t count) {
  std::vector<Node*> found;
  for (std::size_t i = 0; i < count; ++i) found.push_back(static_cast<Node*>(handles[i]));
  return found;
}

int instantiate(void** handle, void* graph_handle) {
  const auto graph = Graph::of(graph_handle);
  if (!graph) return kInvalidValue;
  auto made = std::make_shared<Executable>();
  made->graph = graph;
  std::vector<std::size_t> ends;
  if (!flatten(*graph, {}, made->parts, ends)) return kInvalidValue;
  for (std::size_t each : ends) made->parts[each].last = true;
  *handle = made.get();
  executables()[made.get()] = std::move(made);
  return kSuccess;
}

}  // namespace

void UserObject::release(unsigned count) {
  uses -= count;
  if (uses) return;
  destroy(data);
  delete this;
}

Graph::Graph() {
  std::lock_guard held(live_lock);
  live().insert(this);
}

Graph::~Graph() {
  {
    std::lock_guard held(live_lock);
    live().erase(this);
  }
  for (const auto& [object, count] : objects) object->release(count);
}

Node* Graph::add(int device, Task task, const std::vector<Node*>& after) {
  nodes.push_back(std::make_unique<Node>());
  Node* node = nodes.back().get();
  node->task = std::move(task);
  node->after = after;
  node->graph = this;
  node->device = device;
  return node;
}

std::shared_ptr<Graph> Graph::of(void* handle) {
  std::lock_guard held(live_lock);
  const auto found = live().find(static_cast<Graph*>(handle));
  return found == live().end() ? nullptr : (*found)->weak_from_this().lock();
}

void* Graph::keep(const std::shared_ptr<Graph>& graph) {
  kept()[graph.get()] = graph;
  return graph.get();
}

std::shared_ptr<Graph> Graph::forget(void* handle) {
  const auto found = kept().find(handle);
  if (found == kept().end()) return nullptr;
  std::shared_ptr<Graph> graph = std::move(found->second);
  kept().erase(found);
  return graph;
}

}  // namespace coppice::emulated_gpu

using namespace coppice::emulated_gpu;

COPPICE_CUDA cudaGraphCreate(void** graph, unsigned flags) {
  if (flags) return answer(kInvalidValue);
  std::lock_guard held(Scheduler::instance().state());
  *graph = Graph::keep(std::make_shared<Graph>());
  return kSuccess;
}

COPPICE_CUDA cudaGraphDestroy(void* handle) {
  std::shared_ptr<Graph> graph;  // dropped after the lock: what ends with it may call back
  std::lock_guard held(Scheduler::instance().state());
  graph = Graph::forget(handle);
  return answer(graph ? kSuccess : kInvalidValue);
}

COPPICE_CUDA cudaGraphAddEmptyNode(void** node, void* handle, void* const* after, std::size_t count) {
  std::lock_guard held(Scheduler::instance().state());
  const auto graph = Graph::of(handle);
  if (!graph) return answer(kInvalidValue);
  *node = graph->add(current_device(), {kEmptyNode, nullptr}, nodes_of(after, count));
  return kSuccess;
}

COPPICE_CUDA cudaGraphAddChildGraphNode(void** node, void* handle, void* const* after, std::size_t count, void* child) {
  std::lock_guard held(Scheduler::instance().state());
  const auto graph = Graph::of(handle), inside = Graph::of(child);
  if (!graph || !inside || graph == inside) return answer(kInvalidValue);
  Node* made = graph->add(current_device(), {kGraphNode, nullptr}, nodes_of(after, count));
  made->child = inside;
  *node = made;
  return kSuccess;
}

COPPICE_CUDA cudaGraphAddDependencies(void* handle, void* const* from, void* const* to, const void*,
                                      std::size_t count) {
  std::lock_guard held(Scheduler::instance().state());
  if (!Graph::of(handle)) return answer(kInvalidValue);
  for (std::size_t i = 0; i < count; ++i) static_cast<Node*>(to[i])->after.push_back(static_cast<Node*>(from[i]));
  return kSuccess;
}

COPPICE_CUDA cudaGraphGetNodes(void* handle, void** nodes, std::size_t* count) {
  std::lock_guard held(Scheduler::instance().state());
  const auto graph = Graph::of(handle);
  if (!graph) return answer(kInvalidValue);
  for (std::size_t i = 0; nodes && i < std::min(*count, graph->nodes.size()); ++i) nodes[i] = graph->nodes[i].get();
  *count = graph->nodes.size();
  return kSuccess;
}

COPPICE_CUDA cudaGraphGetEdges(void* handle, void** from, void** to, void*, std::size_t* count) {
  std::lock_guard held(Scheduler::instance().state());
  const auto graph = Graph::of(handle);
  if (!graph) return answer(kInvalidValue);
  std::size_t edges = 0;
  for (const auto& node : graph->nodes) {
    for (Node* each : node->after) {
      if (from && to && edges < *count) from[edges] = each, to[edges] = node.get();
      ++edges;
    }
  }
  *count = edges;
  return kSuccess;
}

COPPICE_CUDA cudaGraphNodeGetType(void* node, int* type) {
  *type = static_cast<Node*>(node)->task.type;
  return kSuccess;
}

COPPICE_CUDA cudaGraphInstantiate(void** executable, void* graph, unsigned long long) {
  std::lock_guard held(Scheduler::instance().state());
  return answer(instantiate(executable, graph));
}

COPPICE_CUDA cudaGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}

COPPICE_CUDA cudaGraphUpload(void* executable, void* stream) {
  std::lock_guard held(Scheduler::instance().state());
  return answer(executables().contains(executable) && stream_of(stream) ? kSuccess : kInvalidHandle);
}

COPPICE_CUDA cudaGraphLaunch(void* handle, void* stream_handle) {
  const StreamPtr stream = stream_of(stream_handle);
  std::lock_guard held(Scheduler::instance().state());
  const auto found = executables().find(handle);
  if (!stream || found == executables().end()) return answer(kInvalidHandle);
  if (stream->capture) return not_supported("cudaGraphLaunch into a stream that is captured");
  if (const int failed = Scheduler::instance().failure(stream->device)) return answer(failed);
  if (stream->legacy) {
    if (const int error = legacy_call(stream->device)) return answer(error);
  }
  return answer(launch_graph(*found->second, *stream));
}

// What is running goes on; what the graph kept is let go when that is over.
COPPICE_CUDA cudaGraphExecDestroy(void* handle) {
  std::shared_ptr<Executable> executable;
  std::lock_guard held(Scheduler::instance().state());
  const auto found = executables().find(handle);
  if (found == executables().end()) return answer(kInvalidValue);
  executable = std::move(found->second);
  executables().erase(found);
  if (executable->ends && !Scheduler::instance().done(executable->ends)) {
    auto later = std::make_shared<Operation>();
    const OperationPtr ends = executable->ends;
    auto kept_graph = std::make_shared<std::shared_ptr<Graph>>(executable->graph);
    later->step = {Runs::host_thread, [kept_graph] {
                     kept_graph->reset();
                     return Outcome::done;
                   }};
    Scheduler::instance().submit(later, {ends});
  }
  return kSuccess;
}

COPPICE_CUDA cudaUserObjectCreate(void** object, void* data, HostFunction destroy, unsigned uses, unsigned) {
  *object = new UserObject{data, destroy, uses};
  return kSuccess;
}

COPPICE_CUDA cudaUserObjectRetain(void* object, unsigned count) {
  static_cast<UserObject*>(object)->uses += count;
  return kSuccess;
}

COPPICE_CUDA cudaUserObjectRelease(void* object, unsigned count) {
  static_cast<UserObject*>(object)->release(count);
  return kSuccess;
}

COPPICE_CUDA cudaGraphRetainUserObject(void* handle, void* object, unsigned count, unsigned flags) {
  std::lock_guard held(Scheduler::instance().state());
  const auto graph = Graph::of(handle);
  if (!graph) return answer(kInvalidValue);
  if (flags != 1) static_cast<UserObject*>(object)->uses += count;  // 1: the caller's uses become the graph's
  graph->objects.emplace_back(static_cast<UserObject*>(object), count);
  return kSuccess;
}

COPPICE_CUDA cudaGraphReleaseUserObject(void* handle, void* object, unsigned count) {
  std::lock_guard held(Scheduler::instance().state());
  const auto graph = Graph::of(handle);
  if (!graph) return answer(kInvalidValue);
  for (auto& each : graph->objects) {
    if (each.first != object || each.second < count) continue;
    each.second -= count;
    each.first->release(count);
    return kSuccess;
  }
  return answer(kInvalidValue);
}

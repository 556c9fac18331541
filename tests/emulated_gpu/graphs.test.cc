// Streams, events, captures and graphs, one rule a test.
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "emulated_gpu/calls.h"
#include "emulated_gpu/operations.h"
#include "testing/testing.h"

namespace coppice::emulated_gpu {
namespace {

void* new_stream(unsigned flags = 1) {
  void* stream = nullptr;
  CHECK_EQ(cudaStreamCreateWithFlags(&stream, flags), 0);
  return stream;
}

void* new_event() {
  void* event = nullptr;
  CHECK_EQ(cudaEventCreateWithFlags(&event, 2), 0);
  return event;
}

struct Counter {
  std::atomic<int> count{0};
  static void add(void* data) { ++static_cast<Counter*>(data)->count; }
};

// A gate that holds a stream until it is opened.
struct Gate {
  std::atomic<bool> open{false};
  static void wait(void* data) {
    while (!static_cast<Gate*>(data)->open) std::this_thread::yield();
  }
};

TEST(emulated_events_say_what_is_over) {
  void *stream = new_stream(), *event = new_event();
  CHECK_EQ(cudaEventQuery(event), 0);  // never recorded
  Gate gate;
  cudaLaunchHostFunc(stream, Gate::wait, &gate);
  CHECK_EQ(cudaEventRecord(event, stream), 0);
  CHECK_EQ(cudaEventQuery(event), kNotReady);
  gate.open = true;
  CHECK_EQ(cudaEventSynchronize(event), 0);
  CHECK_EQ(cudaEventQuery(event), 0);
  CHECK_EQ(cudaStreamDestroy(stream), 0);
  CHECK_EQ(cudaStreamDestroy(stream), kInvalidHandle);
  CHECK_EQ(cudaEventDestroy(event), 0);
  cudaGetLastError();
}

TEST(emulated_capture_makes_nodes_and_runs_nothing) {
  void *stream = new_stream(), *graph = nullptr, *executable = nullptr;
  Counter counter;
  CHECK_EQ(cudaStreamBeginCapture(stream, kGlobalCapture), 0);
  CHECK_EQ(cudaStreamBeginCapture(stream, kGlobalCapture), kIllegalState);
  int status = 0;
  unsigned long long id = 0;
  cudaLaunchHostFunc(stream, Counter::add, &counter);
  cudaLaunchHostFunc(stream, Counter::add, &counter);
  void* const* after = nullptr;
  std::size_t count = 0;
  CHECK_EQ(cudaStreamGetCaptureInfo(stream, &status, &id, nullptr, &after, nullptr, &count), 0);
  CHECK_EQ(status, static_cast<int>(kActiveCapture));
  CHECK_EQ(count, 1u);
  void* const last = after[0];
  CHECK_EQ(cudaStreamEndCapture(stream, &graph), 0);
  CHECK_EQ(cudaStreamSynchronize(stream), 0);
  CHECK_EQ(counter.count.load(), 0);
  CHECK_EQ(cudaGraphGetNodes(graph, nullptr, &count), 0);
  CHECK_EQ(count, 2u);
  int type = -1;
  CHECK_EQ(cudaGraphNodeGetType(last, &type), 0);
  CHECK_EQ(type, static_cast<int>(kHostNode));
  CHECK_EQ(cudaGraphInstantiate(&executable, graph, 0), 0);
  for (int i = 0; i < 3; ++i) CHECK_EQ(cudaGraphLaunch(executable, stream), 0);
  CHECK_EQ(cudaStreamSynchronize(stream), 0);
  CHECK_EQ(counter.count.load(), 6);
  CHECK_EQ(cudaGraphDestroy(graph), 0);
  CHECK_EQ(cudaGraphExecDestroy(executable), 0);
  cudaStreamDestroy(stream);
  cudaGetLastError();
}

TEST(emulated_captures_are_ended_by_what_may_not_be_in_them) {
  void *stream = new_stream(), *other = new_stream(), *blocking = new_stream(0), *event = new_event(), *graph = nullptr;
  // A stream that joined and was not joined back.
  Counter counter;
  cudaStreamBeginCapture(stream, kGlobalCapture);
  cudaEventRecord(event, stream);
  CHECK_EQ(cudaStreamWaitEvent(other, event, 0), 0);
  cudaLaunchHostFunc(other, Counter::add, &counter);
  CHECK_EQ(cudaEventQuery(event), kCapturedEvent);
  CHECK_EQ(cudaStreamEndCapture(other, &graph), kCaptureUnmatched);
  CHECK_EQ(cudaStreamEndCapture(stream, &graph), kCaptureUnjoined);
  CHECK(graph == nullptr);
  int status = 9;
  CHECK_EQ(cudaStreamIsCapturing(other, &status), 0);
  CHECK_EQ(status, static_cast<int>(kNoCapture));
  // An event of outside.
  cudaEventRecord(event, other);
  cudaStreamBeginCapture(stream, kGlobalCapture);
  CHECK_EQ(cudaStreamWaitEvent(stream, event, 0), kCaptureIsolation);
  CHECK_EQ(cudaStreamEndCapture(stream, &graph), kCaptureInvalidated);
  // A wait of the host, and an allocation, unless the thread says that it knows.
  cudaStreamBeginCapture(stream, kGlobalCapture);
  CHECK_EQ(cudaStreamSynchronize(stream), kCaptureUnsupported);
  CHECK_EQ(cudaStreamEndCapture(stream, &graph), kCaptureInvalidated);
  void* memory = nullptr;
  cudaStreamBeginCapture(stream, kThreadCapture);
  int mode = kRelaxedCapture;
  CHECK_EQ(cudaThreadExchangeStreamCaptureMode(&mode), 0);
  CHECK_EQ(cudaMalloc(&memory, 8), 0);
  CHECK_EQ(cudaThreadExchangeStreamCaptureMode(&mode), 0);
  std::thread([&] {
    void* elsewhere = nullptr;
    CHECK_EQ(cudaMalloc(&elsewhere, 8), 0);
    CHECK_EQ(cudaFree(elsewhere), 0);
    CHECK_EQ(cudaStreamEndCapture(stream, &graph), kCaptureWrongThread);
  }).join();
  CHECK_EQ(cudaFree(memory), kCaptureUnsupported);
  CHECK_EQ(cudaStreamEndCapture(stream, &graph), kCaptureInvalidated);
  CHECK_EQ(cudaFree(memory), 0);
  // The legacy stream beside a blocking one.
  cudaStreamBeginCapture(blocking, kRelaxedCapture);
  CHECK_EQ(cudaLaunchHostFunc(nullptr, Counter::add, &counter), kCaptureImplicit);
  CHECK_EQ(cudaStreamEndCapture(blocking, &graph), kCaptureInvalidated);
  CHECK_EQ(cudaStreamBeginCapture(nullptr, kGlobalCapture), kCaptureUnsupported);
  cudaStreamDestroy(stream);
  cudaStreamDestroy(other);
  cudaStreamDestroy(blocking);
  cudaEventDestroy(event);
  cudaGetLastError();
}

TEST(emulated_nodes_by_hand_keep_their_order) {
  void *graph = nullptr, *executable = nullptr, *stream = new_stream(), *memory = nullptr, *pinned = nullptr;
  cudaMalloc(&memory, 8);
  cudaMallocHost(&pinned, 16);
  std::memcpy(pinned, "12345678", 8);
  CHECK_EQ(cudaGraphCreate(&graph, 0), 0);
  void *first = nullptr, *second = nullptr;
  CHECK_EQ(cudaGraphAddMemcpyNode1D(&first, graph, nullptr, 0, memory, pinned, 8, kHostToDevice), 0);
  CHECK_EQ(
      cudaGraphAddMemcpyNode1D(&second, graph, nullptr, 0, static_cast<char*>(pinned) + 8, memory, 8, kDeviceToHost),
      0);
  CHECK_EQ(cudaGraphAddDependencies(graph, &first, &second, nullptr, 1), 0);
  CHECK_EQ(cudaGraphInstantiate(&executable, graph, 0), 0);
  CHECK_EQ(cudaGraphLaunch(executable, stream), 0);
  CHECK_EQ(cudaStreamSynchronize(stream), 0);
  CHECK_EQ(std::string(static_cast<char*>(pinned) + 8, 8), "12345678");
  CHECK_EQ(cudaGraphExecDestroy(executable), 0);
  CHECK_EQ(cudaGraphAddDependencies(graph, &second, &first, nullptr, 1), 0);
  CHECK_EQ(cudaGraphInstantiate(&executable, graph, 0), kInvalidValue);  // a circle
  CHECK_EQ(cudaGraphDestroy(graph), 0);
  cudaFree(memory);
  cudaFreeHost(pinned);
  cudaStreamDestroy(stream);
  cudaGetLastError();
}

TEST(emulated_child_graphs_and_recorded_events) {
  void *child = nullptr, *graph = nullptr, *executable = nullptr, *stream = new_stream(), *event = new_event();
  Counter counter;
  const HostNode host{Counter::add, &counter};
  void *node = nullptr, *inner = nullptr;
  cudaGraphCreate(&child, 0);
  CHECK_EQ(cudaGraphAddHostNode(&inner, child, nullptr, 0, &host), 0);
  cudaGraphCreate(&graph, 0);
  CHECK_EQ(cudaGraphAddChildGraphNode(&node, graph, nullptr, 0, child), 0);
  void* recorded = nullptr;
  CHECK_EQ(cudaGraphAddEventRecordNode(&recorded, graph, &node, 1, event), 0);
  CHECK_EQ(cudaGraphInstantiate(&executable, graph, 0), 0);
  CHECK_EQ(cudaGraphLaunch(executable, stream), 0);
  CHECK_EQ(cudaEventSynchronize(event), 0);
  CHECK_EQ(counter.count.load(), 1);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaGraphDestroy(child);
  cudaStreamDestroy(stream);
  cudaEventDestroy(event);
}

// What a graph keeps is let go with the last of the graph and what was made of it, when that has run.
TEST(emulated_user_objects_live_as_long_as_their_graph) {
  void *graph = nullptr, *executable = nullptr, *stream = new_stream(), *object = nullptr, *node = nullptr;
  Counter destroyed;
  Gate gate;
  const HostNode host{Gate::wait, &gate};
  cudaGraphCreate(&graph, 0);
  cudaGraphAddHostNode(&node, graph, nullptr, 0, &host);
  CHECK_EQ(cudaUserObjectCreate(&object, &destroyed, Counter::add, 1, 1), 0);
  CHECK_EQ(cudaGraphRetainUserObject(graph, object, 1, 1), 0);
  cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  CHECK_EQ(destroyed.count.load(), 0);
  cudaGraphLaunch(executable, stream);
  cudaGraphExecDestroy(executable);
  CHECK_EQ(destroyed.count.load(), 0);
  gate.open = true;
  cudaStreamSynchronize(stream);
  while (!destroyed.count) std::this_thread::yield();
  CHECK_EQ(destroyed.count.load(), 1);
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace coppice::emulated_gpu

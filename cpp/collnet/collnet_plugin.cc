// ncclCollNetPlugin_v8 to v12: calls of NCCL's proxy thread, handed on to a Communicator.
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>

#include "collnet/communicator.h"
#include "collnet/devices.h"
#include "collnet/elements.h"
#include "collnet/switched.h"

namespace coppice::collnet {

namespace {

constexpr const char* kForestVariable = "COPPICE_COLLNET_FOREST";

/// The forest that the site gives, or one without nodes.
Forest given_forest() {
  const char* path = std::getenv(kForestVariable);
  if (!path || !*path) return {};
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) throw Failure(kInvalidArgument, std::string(kForestVariable) + ": " + path + " cannot be read");
  return parse_forest(text.str(), path);
}

/// Lets sums go by the switch that the site gives, if all nodes have one and have come there.
void join_switch(Communicator& communicator, int node, int nodes, std::uint64_t cookie) {
  const std::optional<SwitchPlace> place = given_switch();
  if (!communicator.all_agree(place.has_value())) {
    if (place) warn("COPPICE_COLLNET_SWITCH is not set on all nodes: trees instead");
    return;
  }
  std::unique_ptr<Switched> switched;
  try {
    switched = std::make_unique<Switched>(*place, node, nodes, cookie);
    switched->join(timeout_seconds());
  } catch (const std::exception& error) {
    warn("the switch at " + place->text() + " cannot be used, trees instead: " + error.what());
    switched.reset();
  }
  if (!communicator.all_agree(switched != nullptr)) {
    if (switched) warn("other nodes cannot use the switch at " + place->text() + ": trees instead");
    return;
  }
  inform("node " + std::to_string(node) + " sums floats at the switch at " + place->text());
  communicator.use(std::move(switched));
}

int start(Logger log) {
  logger() = log;
  return guarded([] {
    given_forest();
    given_switch();
  });  // a bad file turns collective networks off before anybody relies on them
}

int init(Logger log) { return start(log); }

int init_context(void** context, std::uint64_t, Logger log) {
  *context = nullptr;
  return start(log);
}

int listen(int index, void* handle, void** listener) {
  return guarded([&] { *listener = listen_on(device(index), handle).release(); });
}

int listen_context(void*, int index, void* handle, void** listener) { return listen(index, handle, listener); }

int connect(void* handles[], int nodes, int node, void* opaque, void** communicator) {
  auto* listener = static_cast<Listener*>(opaque);
  *communicator = nullptr;
  int result = guarded([&] {
    Forest forest = given_forest();
    const char* origin = kForestVariable;
    if (forest.nodes != nodes) {
      if (forest.nodes)
        inform(std::string(kForestVariable) + " is for " + std::to_string(forest.nodes) + " nodes, not " + std::to_string(nodes) +
               ": balanced trees instead");
      forest = balanced_forest(nodes);
      origin = "balanced";
    }
    auto edges = join_forest(forest, node, handles, *listener, timeout_seconds());
    std::ostringstream words;
    words << "node " << node << " of " << nodes << " joined by " << forest.trees.size() << " trees (" << origin
          << ", fingerprint " << std::hex << fingerprint(forest) << ")";
    auto made = std::make_unique<Communicator>(std::move(forest), node, std::move(edges));
    inform(words.str());
    join_switch(*made, node, nodes, read_handle(handles[0]).cookie);
    *communicator = made.release();
  });
  if (result != kSuccess) listener->descriptor.reset();  // NCCL does not close a listener whose connect failed
  return result;
}

int reduce_support(int type, int reduction, int* supported) {
  *supported = reduces(type, reduction);
  return kSuccess;
}

int register_dma_buffer(void*, void*, std::size_t, int, std::uint64_t, int, void**) { return kInvalidArgument; }

/// Starts a call; an edge that failed has been logged, once, by the communicator.
int start_call(void* communicator, Call call, void** request) {
  static Request nothing;  // for calls without data, which end at once
  *request = nullptr;
  if (!communicator || !call.element) return kInvalidArgument;
  if (!call.bytes) {
    *request = &nothing;
    return kSuccess;
  }
  try {
    *request = static_cast<Communicator*>(communicator)->start(std::move(call));
    return kSuccess;
  } catch (const Failure& failure) {
    return failure.result;
  } catch (const std::bad_alloc&) {
    return kSystemError;
  }
}

template <class Count>
int all_reduce(void* communicator, void* send, void* receive, Count count, int type, int reduction, void*, void*,
               void** request) {
  Call call;
  call.type = type;
  call.reduction = reduction;
  call.element = reduces(type, reduction) ? bytes_of(type) : 0;
  call.bytes = static_cast<std::size_t>(count) * call.element;
  call.send = {{send, call.bytes}};
  call.receive = {{receive, call.bytes}};
  return start_call(communicator, std::move(call), request);
}

template <class Size>
std::vector<iovec> runs(int count, const Piece<Size>* pieces) {
  std::vector<iovec> made;
  for (int at = 0; at < count; at++)
    if (pieces[at].bytes) made.push_back({pieces[at].address, pieces[at].bytes});
  return made;
}

template <class Size>
int all_gather(void* communicator, void* send, int count, Piece<Size>* pieces, std::size_t block_bytes,
               std::size_t window_begin, std::size_t window_bytes, void*, void** request) {
  Call call;
  call.kind = Kind::kAllGather;
  call.bytes = window_bytes;
  call.block_bytes = block_bytes;
  call.window_begin = window_begin;
  call.send = {{send, block_bytes}};
  call.receive = runs(count, pieces);
  return start_call(communicator, std::move(call), request);
}

template <class Size>
int reduce_scatter(void* communicator, int count, Piece<Size>* pieces, void* receive, std::size_t block_bytes,
                   std::size_t window_begin, std::size_t window_bytes, int type, int reduction, void*, void** request) {
  Call call;
  call.kind = Kind::kReduceScatter;
  call.type = type;
  call.reduction = reduction;
  call.element = reduces(type, reduction) ? bytes_of(type) : 0;
  call.bytes = window_bytes;
  call.block_bytes = block_bytes;
  call.window_begin = window_begin;
  call.send = runs(count, pieces);
  call.receive = {{receive, block_bytes}};
  return start_call(communicator, std::move(call), request);
}

int flush(void*, void*, int, void*, void** request) {
  *request = nullptr;  // host memory: nothing to wait for
  return kSuccess;
}

int test(void* opaque, int* done, int* bytes) {
  auto* request = static_cast<Request*>(opaque);
  std::size_t moved = 0;
  *done = 0;
  try {
    *done = !request->owner || request->owner->finished(request, &moved);
  } catch (const Failure& failure) {
    return failure.result;
  }
  if (*done && bytes) *bytes = static_cast<int>(moved);
  return kSuccess;
}

int close(void* communicator) {
  delete static_cast<Communicator*>(communicator);
  return kSuccess;
}

int close_listen(void* listener) {
  delete static_cast<Listener*>(listener);
  return kSuccess;
}

int finalize(void*) { return kSuccess; }

template <class StartTable, class Count, class Size>
constexpr CollNetBody<StartTable, Count, Size> body(StartTable begin) {
  return {begin,           connect,           reduce_support,   register_memory,      register_dma_buffer, deregister_memory,
          all_reduce<Count>, all_gather<Size>, reduce_scatter<Size>, flush, test, close, close_listen};
}

template <class Properties>
constexpr Start<Properties> start_table() {
  return {"Coppice", init, count_devices, properties<Properties>, listen};
}

template <class Properties>
constexpr CollNetV11<Properties> table_v11() {
  using Begin = CollNetStartV11<Properties>;
  return {body<Begin, std::size_t, std::size_t>({"Coppice", init_context, count_devices, properties<Properties>, listen_context}),
          nullptr, finalize};
}

constexpr CollNetV9 table_v9() {
  return {body<Start<PropertiesV9>, std::size_t, std::size_t>(start_table<PropertiesV9>()), nullptr};
}

}  // namespace

COPPICE_EXPORTED const CollNetV8 ncclCollNetPlugin_v8;
COPPICE_EXPORTED const CollNetV9 ncclCollNetPlugin_v9;
COPPICE_EXPORTED const CollNetV9 ncclCollNetPlugin_v10;
COPPICE_EXPORTED const CollNetV11<PropertiesV11> ncclCollNetPlugin_v11;
COPPICE_EXPORTED const CollNetV11<PropertiesV12> ncclCollNetPlugin_v12;

const CollNetV8 ncclCollNetPlugin_v8 = body<Start<PropertiesV8>, int, std::uint32_t>(start_table<PropertiesV8>());
const CollNetV9 ncclCollNetPlugin_v9 = table_v9();
const CollNetV9 ncclCollNetPlugin_v10 = table_v9();
const CollNetV11<PropertiesV11> ncclCollNetPlugin_v11 = table_v11<PropertiesV11>();
const CollNetV11<PropertiesV12> ncclCollNetPlugin_v12 = table_v11<PropertiesV12>();

}  // namespace coppice::collnet

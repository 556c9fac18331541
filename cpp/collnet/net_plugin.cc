// ncclNetPlugin_v8 to v12: NCCL takes a collective network only from a library that has a plain one too.
#include "collnet/devices.h"
#include "collnet/transfers.h"

namespace coppice::collnet::plain {

namespace {

int init(Logger log) {
  logger() = log;
  return kSuccess;
}

int init_v10(Logger log, void*) { return init(log); }

int init_v11(void** context, std::uint64_t, void*, Logger log, void*) {
  *context = nullptr;
  return init(log);
}

int listen(int index, void* handle, void** opened) {
  return guarded([&] {
    auto made = std::make_unique<Doorway>();
    made->listener = listen_on(device(index), handle);
    *opened = made.release();
  });
}

int listen_v11(void*, int index, void* handle, void** opened) { return listen(index, handle, opened); }

int connect(int, void* handle, void** channel, void**) {
  *channel = nullptr;
  return guarded([&] { *channel = connect_to(handle).release(); });
}

int connect_v10(int index, void*, void* handle, void** channel, void** offload) {
  return connect(index, handle, channel, offload);
}

int connect_v11(void*, int index, void* handle, void** channel, void** offload) {
  return connect(index, handle, channel, offload);
}

int accept(void* opened, void** channel, void**) {
  *channel = nullptr;
  return guarded([&] { *channel = static_cast<Doorway*>(opened)->accept().release(); });
}

template <class Size>
int send(void* channel, void* data, Size bytes, int, void*, void** request) {
  *request = nullptr;
  return guarded([&] { *request = static_cast<Channel*>(channel)->post(data, static_cast<std::size_t>(bytes)); });
}

template <class Size>
int receive(void* channel, int count, void** data, Size* bytes, int*, void**, void** request) {
  *request = nullptr;
  if (count != 1) return kInternalError;  // getProperties says that receives are not grouped
  return guarded([&] { *request = static_cast<Channel*>(channel)->post(data[0], static_cast<std::size_t>(bytes[0])); });
}

int send_v10(void* channel, void* data, std::size_t bytes, int tag, void* memory, void*, void** request) {
  return send<std::size_t>(channel, data, bytes, tag, memory, request);
}

int receive_v10(void* channel, int count, void** data, std::size_t* bytes, int* tags, void** memory, void**,
                void** request) {
  return receive<std::size_t>(channel, count, data, bytes, tags, memory, request);
}

int flush(void*, int, void**, int*, void**, void** request) {
  *request = nullptr;
  return kSuccess;
}

int test(void* opaque, int* done, int* sizes) {
  auto* message = static_cast<Channel::Message*>(opaque);
  std::size_t bytes = 0;
  *done = 0;
  return guarded([&] {
    *done = message->channel->finished(message, &bytes);
    if (*done && sizes) sizes[0] = static_cast<int>(bytes);
  });
}

int close_channel(void* channel) {
  delete static_cast<Channel*>(channel);
  return kSuccess;
}

int close_listen(void* opened) {
  delete static_cast<Doorway*>(opened);
  return kSuccess;
}

int finalize(void*) { return kSuccess; }

constexpr NetRegistration registration() { return {accept, register_memory, nullptr, deregister_memory}; }

constexpr NetMemory memory() { return {flush, test, close_channel, close_channel, close_listen, nullptr, nullptr}; }

template <class Properties>
constexpr NetV11<Properties> table_v11() {
  return {{"Coppice", init_v11, count_devices, properties<Properties>, listen_v11},
          connect_v11,
          registration(),
          send_v10,
          receive_v10,
          memory(),
          nullptr,
          finalize,
          nullptr};
}

}  // namespace

COPPICE_EXPORTED const NetV8 ncclNetPlugin_v8;
COPPICE_EXPORTED const NetV9 ncclNetPlugin_v9;
COPPICE_EXPORTED const NetV10 ncclNetPlugin_v10;
COPPICE_EXPORTED const NetV11<PropertiesV11> ncclNetPlugin_v11;
COPPICE_EXPORTED const NetV11<PropertiesV12> ncclNetPlugin_v12;

const NetV8 ncclNetPlugin_v8 = {{"Coppice", init, count_devices, properties<PropertiesV8>, listen},
                                connect,   registration(), send<int>, receive<int>, memory()};
const NetV9 ncclNetPlugin_v9 = {{"Coppice", init, count_devices, properties<PropertiesV9>, listen},
                                connect,   registration(), send<std::size_t>, receive<std::size_t>, memory(), nullptr};
const NetV10 ncclNetPlugin_v10 = {{"Coppice", init_v10, count_devices, properties<PropertiesV9>, listen},
                                  connect_v10, registration(), send_v10, receive_v10, memory(), nullptr};
const NetV11<PropertiesV11> ncclNetPlugin_v11 = table_v11<PropertiesV11>();
const NetV11<PropertiesV12> ncclNetPlugin_v12 = table_v11<PropertiesV12>();

}  // namespace coppice::collnet::plain

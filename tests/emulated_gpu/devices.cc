#include "emulated_gpu/devices.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <mutex>
#include <set>
#include <string>

#include "emulated_gpu/errors.h"
#include "emulated_gpu/memory.h"
#include "emulated_gpu/operations.h"
#include "emulated_gpu/streams.h"

namespace coppice::emulated_gpu {
namespace {

thread_local int current = 0;

struct Context {
  int device;
  bool made = false;  // by cuCtxCreate
};

std::mutex contexts_lock;

std::set<Context*>& contexts() {
  static auto* all = new std::set<Context*>;
  return *all;
}

thread_local Context* current_context = nullptr;

Context* primary(int device) {
  std::lock_guard held(contexts_lock);
  for (Context* each : contexts()) {
    if (each->device == device && !each->made) return each;
  }
  return *contexts().insert(new Context{device}).first;
}

// What a GPU of the last generations answers; those that depend on the box are elsewhere.
struct Fixed {
  int attribute, value;
};
constexpr Fixed kFixed[] = {
    {1, 1024},  {2, 1024},      {3, 1024},        {4, 64},     {5, 2147483647}, {6, 65535},   {7, 65535}, {8, 49152},
    {9, 65536}, {10, 32},       {11, 2147483647}, {12, 65536}, {13, 1980000},   {14, 512},    {15, 1},    {17, 0},
    {18, 0},    {19, 1},        {20, 0},          {30, 512},   {31, 1},         {32, 1},      {35, 0},    {36, 2619000},
    {37, 5120}, {38, 52428800}, {39, 2048},       {40, 3},     {41, 1},         {51, 32},     {78, 1},    {79, 1},
    {80, 1},    {81, 233472},   {82, 65536},      {83, 1},     {84, 0},         {85, 0},      {86, 0},    {88, 0},
    {89, 1},    {90, 1},        {91, 1},          {95, 1},     {96, 0},         {97, 232448}, {98, 1},    {99, 1},
    {100, 0},   {101, 0},       {102, 1},         {103, 1},    {104, 0},        {105, 0},     {106, 32},  {107, 0},
    {108, 0},   {109, 0},       {110, 0},         {111, 1024}, {112, 1},        {113, 1},     {114, 1},   {115, 1},
    {116, 0},   {117, 0},       {118, 0},         {119, 0},    {121, 1},        {122, 1},     {123, 1},   {124, 0},
    {125, 0},   {126, 4},       {127, 0},         {128, 0},    {129, 1},        {130, 0},     {131, -1},  {133, 0},
    {141, 1},   {142, 0},       {143, 0},         {144, 0},    {145, 0},        {146, 0},     {147, 0},
};

int processors(const Gpu& gpu) { return gpu.capability >= 100 ? 148 : gpu.capability >= 90 ? 132 : 108; }

}  // namespace

bool is_device(int device) { return device >= 0 && device < static_cast<int>(box().gpus.size()); }

int current_device() { return current; }

void set_current_device(int device) {
  current = device;
  current_context = nullptr;
}

bool attribute_of(int device, int attribute, int& value) {
  const Gpu& gpu = box().gpus[static_cast<std::size_t>(device)];
  switch (attribute) {
    case 16: value = processors(gpu); return true;
    case 33: value = static_cast<int>(gpu.bus); return true;
    case 34: value = static_cast<int>(gpu.device); return true;
    case 50: value = static_cast<int>(gpu.domain); return true;
    case 75: value = gpu.capability / 10; return true;
    case 76: value = gpu.capability % 10; return true;
    case 120: value = gpu.capability >= 90; return true;
    case 132: value = gpu.multicast; return true;
    case 134: value = gpu.numa; return true;
    case 139: value = 0x233010de; return true;
    case 140: value = 0; return true;
    default: break;
  }
  const auto* found = std::find_if(std::begin(kFixed), std::end(kFixed),
                                   [&](const Fixed& each) { return each.attribute == attribute; });
  if (found == std::end(kFixed)) return false;
  value = found->value;
  return true;
}

}  // namespace coppice::emulated_gpu

using namespace coppice::emulated_gpu;

COPPICE_CUDA cudaGetDeviceCount(int* count) {
  *count = static_cast<int>(box().gpus.size());
  return answer(*count ? kSuccess : kNoDevice);
}

COPPICE_CUDA cudaGetDevice(int* device) {
  if (box().gpus.empty()) return answer(kNoDevice);
  *device = current;
  return kSuccess;
}

COPPICE_CUDA cudaSetDevice(int device) {
  if (!is_device(device)) return answer(kInvalidDevice);
  set_current_device(device);
  return kSuccess;
}

COPPICE_CUDA cudaInitDevice(int device, unsigned, unsigned) {
  return answer(is_device(device) ? kSuccess : kInvalidDevice);
}
COPPICE_CUDA cudaSetDeviceFlags(unsigned) { return kSuccess; }

COPPICE_CUDA cudaGetDeviceFlags(unsigned* flags) {
  *flags = 0;
  return kSuccess;
}

COPPICE_CUDA cudaDeviceGetAttribute(int* value, int attribute, int device) {
  if (!is_device(device)) return answer(kInvalidDevice);
  return answer(attribute_of(device, attribute, *value) ? kSuccess : kInvalidValue);
}

COPPICE_CUDA cudaGetDeviceProperties(DeviceProperties* properties, int device) {
  if (!is_device(device)) return answer(kInvalidDevice);
  const Gpu& gpu = box().gpus[static_cast<std::size_t>(device)];
  const auto value = [&](int attribute) {
    int found = 0;
    attribute_of(device, attribute, found);
    return found;
  };
  const auto size = [&](int attribute) { return static_cast<std::size_t>(value(attribute)); };
  DeviceProperties made{};
  std::snprintf(made.name, sizeof made.name, "%s", gpu.model.c_str());
  const std::uint64_t id = identity(gpu);
  std::memcpy(made.uuid, &id, sizeof id);
  made.total_bytes = gpu.bytes;
  made.shared_bytes_per_block = size(8);
  made.registers_per_block = value(12);
  made.warp = value(10);
  made.pitch = size(11);
  made.most_threads_per_block = value(1);
  for (int i = 0; i < 3; ++i) made.most_block[i] = value(2 + i), made.most_grid[i] = value(5 + i);
  made.constant_bytes = size(9);
  made.major = value(75);
  made.minor = value(76);
  made.texture_alignment = size(14);
  made.texture_pitch_alignment = size(51);
  made.processors = value(16);
  made.can_map_host_memory = made.concurrent_kernels = made.ecc = made.unified_addressing = 1;
  made.surface_alignment = size(30);
  made.pci_bus = value(33);
  made.pci_device = value(34);
  made.pci_domain = value(50);
  made.async_engines = value(40);
  made.memory_bus_bits = value(37);
  made.l2_bytes = value(38);
  made.threads_per_processor = value(39);
  made.stream_priorities = made.l1_global = made.l1_local = made.managed_memory = made.concurrent_managed_access = 1;
  made.shared_bytes_per_processor = size(81);
  made.registers_per_processor = value(82);
  made.preemption = made.host_pointer_of_registered = made.cooperative_launch = made.host_register = 1;
  made.shared_bytes_per_block_optin = size(97);
  made.blocks_per_processor = value(106);
  made.reserved_shared_bytes = size(111);
  made.memory_pools = 1;
  made.cluster_launch = value(120);
  made.unified_functions = value(129);
  made.numa_id = value(131);
  made.host_numa_id = value(134);
  made.pci_device_id = 0x233010de;
  *properties = made;
  return kSuccess;
}

COPPICE_CUDA cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (!is_device(device)) return answer(kInvalidDevice);
  const Gpu& gpu = box().gpus[static_cast<std::size_t>(device)];
  if (length < 13) return answer(kInvalidValue);
  std::snprintf(text, static_cast<std::size_t>(length), "%04x:%02x:%02x.0", gpu.domain, gpu.bus, gpu.device);
  return kSuccess;
}

COPPICE_CUDA cudaDeviceGetByPCIBusId(int* device, const char* bus_id) {
  *device = gpu_at(bus_id);
  return answer(*device < 0 ? kInvalidDevice : kSuccess);
}

COPPICE_CUDA cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!is_device(device) || !is_device(peer)) return answer(kInvalidDevice);
  *can = device != peer;
  return kSuccess;
}

COPPICE_CUDA cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  if (!is_device(peer) || peer == current) return answer(kInvalidDevice);
  if (flags) return answer(kInvalidValue);
  if (Memory::instance().peer_enabled(current, peer)) return answer(kPeerAccessAlreadyEnabled);
  Memory::instance().enable_peer(current, peer, true);
  return kSuccess;
}

COPPICE_CUDA cudaDeviceDisablePeerAccess(int peer) {
  if (!is_device(peer)) return answer(kInvalidDevice);
  if (!Memory::instance().peer_enabled(current, peer)) return answer(kPeerAccessNotEnabled);
  Memory::instance().enable_peer(current, peer, false);
  return kSuccess;
}

COPPICE_CUDA cudaDeviceGetP2PAttribute(int* value, int attribute, int from, int to) {
  if (!is_device(from) || !is_device(to) || from == to) return answer(kInvalidDevice);
  *value = attribute == 2 || attribute == 3;  // access, native atomics; rank and arrays: 0
  return kSuccess;
}

COPPICE_CUDA cudaDeviceSetLimit(int, std::size_t) { return kSuccess; }

COPPICE_CUDA cudaDeviceGetLimit(std::size_t* value, int) {
  *value = 1024;
  return kSuccess;
}

COPPICE_CUDA cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return kSuccess;
}

COPPICE_CUDA cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return kSuccess;
}

COPPICE_CUDA cudaDriverGetVersion(int* version) {
  *version = box().driver;
  return kSuccess;
}

COPPICE_CUDA cuInit(unsigned) { return box().gpus.empty() ? kNoDevice : kSuccess; }
COPPICE_CUDA cuDriverGetVersion(int* version) { return cudaDriverGetVersion(version); }
COPPICE_CUDA cuDeviceGetCount(int* count) { return cudaGetDeviceCount(count); }

COPPICE_CUDA cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return is_device(ordinal) ? kSuccess : kInvalidDevice;
}

COPPICE_CUDA cuDeviceGetAttribute(int* value, int attribute, int device) {
  if (!is_device(device)) return kInvalidDevice;
  return attribute_of(device, attribute, *value) ? kSuccess : kInvalidValue;
}

COPPICE_CUDA cuDeviceGetName(char* name, int length, int device) {
  if (!is_device(device)) return kInvalidDevice;
  std::snprintf(name, static_cast<std::size_t>(length), "%s",
                box().gpus[static_cast<std::size_t>(device)].model.c_str());
  return kSuccess;
}

COPPICE_CUDA cuDeviceGetUuid(unsigned char* uuid, int device) {
  if (!is_device(device)) return kInvalidDevice;
  const std::uint64_t id = identity(box().gpus[static_cast<std::size_t>(device)]);
  std::memset(uuid, 0, 16);
  std::memcpy(uuid, &id, sizeof id);
  return kSuccess;
}

COPPICE_CUDA cuCtxCreate(void** context, void*, unsigned, int device) {
  if (!is_device(device)) return kInvalidDevice;
  auto* made = new Context{device, true};
  {
    std::lock_guard held(contexts_lock);
    contexts().insert(made);
  }
  current = device;
  current_context = made;
  *context = made;
  return kSuccess;
}

COPPICE_CUDA cuCtxDestroy(void* context) {
  std::lock_guard held(contexts_lock);
  auto* given = static_cast<Context*>(context);
  if (!contexts().contains(given) || !given->made) return kInvalidContext;
  if (current_context == given) current_context = nullptr;
  contexts().erase(given);
  delete given;
  return kSuccess;
}

COPPICE_CUDA cuCtxGetCurrent(void** context) {
  if (!current_context) current_context = primary(current);
  *context = current_context;
  return kSuccess;
}

COPPICE_CUDA cuCtxSetCurrent(void* context) {
  if (!context) {
    current_context = nullptr;
    return kSuccess;
  }
  std::lock_guard held(contexts_lock);
  auto* given = static_cast<Context*>(context);
  if (!contexts().contains(given)) return kInvalidContext;
  current = given->device;
  current_context = given;
  return kSuccess;
}

COPPICE_CUDA cuCtxGetDevice(int* device) {
  *device = current;
  return kSuccess;
}

COPPICE_CUDA cuDevicePrimaryCtxRetain(void** context, int device) {
  if (!is_device(device)) return kInvalidDevice;
  *context = primary(device);
  return kSuccess;
}

COPPICE_CUDA cuDevicePrimaryCtxRelease(int device) { return is_device(device) ? kSuccess : kInvalidDevice; }

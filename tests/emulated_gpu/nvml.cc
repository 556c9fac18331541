// libnvidia-ml.so.1 of the emulated box: what NCCL asks of it. Layouts are those of NVML's public header.
#include <cstdio>
#include <cstdint>
#include <cstring>

#include "emulated_gpu/box.h"

using namespace coppice::emulated_gpu;

namespace {

enum Result : int {
  kOk = 0,
  kUninitialized = 1,
  kBadArgument = 2,
  kNotThere = 3,
  kNotFoundError = 6,
};

// The older layout, in which the bus id is short. The newer one has a longer bus id behind it, for which there is only
// room where the caller has it: it is left alone.
struct PciInfo {
  char bus_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
};

struct PciInfoExt {
  unsigned version, domain, bus, device, device_id, subsystem_id, base_class, sub_class;
  char bus_id[32];
};

struct FieldValue {
  unsigned field, scope;
  long long time, latency;
  int type, result;
  union {
    double real;
    unsigned number;
    unsigned long long wide;
  } value;
};

struct FabricInfo {
  unsigned version;
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
  unsigned health;
};

struct ConfidentialState {
  unsigned environment, feature, tools;
};

struct ConfidentialSettings {
  unsigned version, environment, feature, tools, multi_gpu;
};

enum Field : unsigned { kLinkSpeed = 90, kLinkCount = 91, kGetSpeed = 164, kGetState = 165, kGetVersion = 166 };

// Handles are the GPUs of the box.
const Gpu* gpu_of(const void* handle) {
  const auto& gpus = box().gpus;
  const Gpu* given = static_cast<const Gpu*>(handle);
  return given >= gpus.data() && given < gpus.data() + gpus.size() ? given : nullptr;
}

const NvLink* link_of(const Gpu& gpu, unsigned link) { return link < gpu.links.size() ? &gpu.links[link] : nullptr; }

unsigned links_of(const Gpu& gpu) { return static_cast<unsigned>(gpu.links.size()); }

void fill(PciInfo& info, const char* bus_id, bool is_switch) {
  info = {};
  std::sscanf(bus_id, "%x:%x:%x", &info.domain, &info.bus, &info.device);
  std::snprintf(info.bus_id, sizeof info.bus_id, "%04x:%02x:%02x.0", info.domain & 0xffff, info.bus & 0xff,
                info.device & 0xff);
  info.device_id = is_switch ? 0x22a310de : 0x233010de;
}

int links_speed(const Gpu& gpu) { return gpu.capability >= 100 ? 53125 : gpu.capability >= 90 ? 26562 : 25781; }

}  // namespace

#define COPPICE_NVML extern "C" __attribute__((visibility("default"))) int

COPPICE_NVML nvmlInit() { return box().gpus.empty() ? kNotThere : kOk; }
COPPICE_NVML nvmlInit_v2() { return nvmlInit(); }
COPPICE_NVML nvmlInitWithFlags(unsigned) { return nvmlInit(); }
COPPICE_NVML nvmlShutdown() { return kOk; }

extern "C" __attribute__((visibility("default"))) const char* nvmlErrorString(int error) {
  switch (error) {
    case kOk: return "Success";
    case kUninitialized: return "Uninitialized";
    case kBadArgument: return "Invalid Argument";
    case kNotThere: return "Not Supported";
    case kNotFoundError: return "Not Found";
    default: return "Unknown Error";
  }
}

COPPICE_NVML nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(box().gpus.size());
  return kOk;
}

COPPICE_NVML nvmlDeviceGetCount(unsigned* count) { return nvmlDeviceGetCount_v2(count); }

COPPICE_NVML nvmlDeviceGetHandleByIndex_v2(unsigned index, const void** handle) {
  if (index >= box().gpus.size()) return kBadArgument;
  *handle = &box().gpus[index];
  return kOk;
}

COPPICE_NVML nvmlDeviceGetHandleByIndex(unsigned index, const void** handle) {
  return nvmlDeviceGetHandleByIndex_v2(index, handle);
}

COPPICE_NVML nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, const void** handle) {
  const int found = gpu_at(bus_id);
  if (found < 0) return kNotFoundError;
  *handle = &box().gpus[static_cast<std::size_t>(found)];
  return kOk;
}

COPPICE_NVML nvmlDeviceGetHandleByPciBusId(const char* bus_id, const void** handle) {
  return nvmlDeviceGetHandleByPciBusId_v2(bus_id, handle);
}

COPPICE_NVML nvmlDeviceGetIndex(const void* handle, unsigned* index) {
  const Gpu* gpu = gpu_of(handle);
  if (!gpu) return kBadArgument;
  *index = static_cast<unsigned>(gpu - box().gpus.data());
  return kOk;
}

COPPICE_NVML nvmlDeviceGetName(const void* handle, char* name, unsigned length) {
  const Gpu* gpu = gpu_of(handle);
  if (!gpu) return kBadArgument;
  std::snprintf(name, length, "%s", gpu->model.c_str());
  return kOk;
}

COPPICE_NVML nvmlDeviceGetCudaComputeCapability(const void* handle, int* major, int* minor) {
  const Gpu* gpu = gpu_of(handle);
  if (!gpu) return kBadArgument;
  *major = gpu->capability / 10;
  *minor = gpu->capability % 10;
  return kOk;
}

COPPICE_NVML nvmlDeviceGetPciInfo_v3(const void* handle, void* info) {
  const Gpu* gpu = gpu_of(handle);
  if (!gpu) return kBadArgument;
  PciInfo made{};
  fill(made, gpu->bus_id.c_str(), false);
  std::memcpy(info, &made, sizeof made);
  return kOk;
}

COPPICE_NVML nvmlDeviceGetPciInfoExt(const void* handle, PciInfoExt* info) {
  const Gpu* gpu = gpu_of(handle);
  if (!gpu) return kBadArgument;
  info->domain = gpu->domain;
  info->bus = gpu->bus;
  info->device = gpu->device;
  info->device_id = 0x233010de;
  info->subsystem_id = 0;
  info->base_class = 3;
  info->sub_class = 2;
  std::snprintf(info->bus_id, 16, "%04x:%02x:%02x.0", gpu->domain & 0xffff, gpu->bus & 0xff, gpu->device & 0xff);
  return kOk;
}

COPPICE_NVML nvmlDeviceGetPcieLinkMaxSpeed(const void* handle, unsigned* speed) {
  if (!gpu_of(handle)) return kBadArgument;
  *speed = 32000;
  return kOk;
}

COPPICE_NVML nvmlDeviceGetCurrPcieLinkGeneration(const void* handle, unsigned* generation) {
  if (!gpu_of(handle)) return kBadArgument;
  *generation = 5;
  return kOk;
}

COPPICE_NVML nvmlDeviceGetCurrPcieLinkWidth(const void* handle, unsigned* width) {
  if (!gpu_of(handle)) return kBadArgument;
  *width = 16;
  return kOk;
}

COPPICE_NVML nvmlDeviceGetNvLinkState(const void* handle, unsigned link, int* active) {
  const Gpu* gpu = gpu_of(handle);
  if (!gpu) return kBadArgument;
  *active = link_of(*gpu, link) != nullptr;
  return *active ? kOk : kNotThere;
}

COPPICE_NVML nvmlDeviceGetNvLinkRemotePciInfo_v2(const void* handle, unsigned link, void* info) {
  const Gpu* gpu = gpu_of(handle);
  if (!gpu) return kBadArgument;
  const NvLink* found = link_of(*gpu, link);
  if (!found) return kNotThere;
  PciInfo made{};
  fill(made, found->to.c_str(), found->is_switch);
  std::memcpy(info, &made, sizeof made);
  return kOk;
}

COPPICE_NVML nvmlDeviceGetNvLinkRemotePciInfo(const void* handle, unsigned link, void* info) {
  return nvmlDeviceGetNvLinkRemotePciInfo_v2(handle, link, info);
}

// 0 is peer to peer over the link, 2 is atomics of it, 5 whether there is one.
COPPICE_NVML nvmlDeviceGetNvLinkCapability(const void* handle, unsigned link, int capability, unsigned* value) {
  const Gpu* gpu = gpu_of(handle);
  if (!gpu) return kBadArgument;
  if (!link_of(*gpu, link)) return kNotThere;
  *value = capability == 0 || capability == 2 || capability == 5;
  return kOk;
}

// Read, write and atomics are possible between all GPUs of the box; NVLink where a link or a common switch joins them.
COPPICE_NVML nvmlDeviceGetP2PStatus(const void* one, const void* other, int index, int* status) {
  const Gpu *from = gpu_of(one), *to = gpu_of(other);
  if (!from || !to) return kBadArgument;
  bool joined = false;
  for (const NvLink& link : from->links)
    joined |= link.is_switch ? !to->links.empty() : gpu_at(link.to) == to - box().gpus.data();
  *status = index == 2 && !joined ? 5 : 0;
  return kOk;
}

COPPICE_NVML nvmlDeviceGetFieldValues(const void* handle, int count, FieldValue* values) {
  const Gpu* gpu = gpu_of(handle);
  if (!gpu) return kBadArgument;
  for (int i = 0; i < count; ++i) {
    FieldValue& each = values[i];
    each.result = kOk;
    each.type = 1;
    each.value.wide = 0;
    switch (each.field) {
      case kLinkCount: each.value.number = links_of(*gpu); break;
      case kGetState: each.value.number = link_of(*gpu, each.scope) != nullptr; break;
      case kLinkSpeed:
      case kGetSpeed: each.value.number = static_cast<unsigned>(links_speed(*gpu)); break;
      case kGetVersion: each.value.number = gpu->capability >= 100 ? 5 : gpu->capability >= 90 ? 4 : 3; break;
      default: each.result = kNotThere;
    }
  }
  return kOk;
}

// GPUs of one box are in no fabric of several.
COPPICE_NVML nvmlDeviceGetGpuFabricInfoV(const void* handle, FabricInfo* info) {
  if (!gpu_of(handle)) return kBadArgument;
  const unsigned version = info->version;
  *info = {};
  info->version = version;
  return kOk;
}

COPPICE_NVML nvmlDeviceGetPlatformInfo(const void*, void*) { return kNotThere; }

COPPICE_NVML nvmlSystemGetConfComputeState(ConfidentialState* state) {
  *state = {};
  return kOk;
}

COPPICE_NVML nvmlSystemGetConfComputeSettings(ConfidentialSettings* settings) {
  const unsigned version = settings->version;
  *settings = {};
  settings->version = version;
  return kOk;
}

COPPICE_NVML nvmlSystemGetDriverVersion(char* text, unsigned length) {
  std::snprintf(text, length, "580.00.emulated");
  return kOk;
}

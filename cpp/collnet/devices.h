// What both plugins tell NCCL of this node: a device for every chosen network interface, for host memory only.
#pragma once

#include "collnet/abi.h"
#include "collnet/log.h"
#include "collnet/sockets.h"

namespace coppice::collnet {

/// The chosen interfaces, looked up once in a process.
inline const std::vector<Interface>& devices() {
  static const std::vector<Interface> known = interfaces();
  return known;
}

/// Runs what a function of the plugin does; a failure becomes a line of the log and a code.
template <class Body>
int guarded(Body body) {
  try {
    body();
    return kSuccess;
  } catch (const Failure& failure) {
    warn(failure.what());
    return failure.result;
  } catch (const std::exception& error) {
    warn(error.what());
    return kSystemError;
  }
}

inline const Interface& device(int index) {
  if (index < 0 || index >= static_cast<int>(devices().size()))
    throw Failure(kInvalidArgument, "expected a device below " + std::to_string(devices().size()) + ", found " +
                                        std::to_string(index));
  return devices()[static_cast<std::size_t>(index)];
}

inline int count_devices(int* count) {
  return guarded([&] { *count = static_cast<int>(devices().size()); });
}

constexpr std::size_t kMostBytes = std::size_t{512} << 20;  // of a message or a call

template <class Properties>
void describe_common(int index, Properties* to) {
  const Interface& own = device(index);
  *to = Properties{};
  to->name = own.name.c_str();
  to->pci_path = own.pci_path.empty() ? nullptr : own.pci_path.c_str();
  to->guid = static_cast<std::uint64_t>(index);
  to->pointer_support = kHostPointer;
  to->speed_mbit = own.speed_mbit;
  to->most_comms = 65536;
  to->most_receives = 1;
}

template <class Properties>
void describe_sizes(int index, Properties* to) {
  describe_common(index, to);
  to->virtual_device.count = 1;
  to->virtual_device.devices[0] = index;
  to->most_p2p_bytes = to->most_collective_bytes = kMostBytes;
}

inline void describe(int index, PropertiesV8* to) { describe_common(index, to); }
inline void describe(int index, PropertiesV9* to) { describe_sizes(index, to); }
inline void describe(int index, PropertiesV11* to) {
  describe_sizes(index, &to->common);
  to->most_requests = 1;
}
inline void describe(int index, PropertiesV12* to) {
  describe_sizes(index, to);
  to->most_requests = 1;
  to->rail = to->plane = kUndefined;
}

template <class Properties>
int properties(int index, Properties* to) {
  return guarded([&] { describe(index, to); });
}

/// Memory needs no registration; only host memory is taken.
inline int register_memory(void*, void* data, std::size_t, int kind, void** memory) {
  if (kind != kHostPointer) return kInvalidArgument;
  *memory = data;
  return kSuccess;
}
inline int deregister_memory(void*, void*) { return kSuccess; }

}  // namespace coppice::collnet

#define COPPICE_EXPORTED extern "C" __attribute__((visibility("default")))

// What crosses the boundary of CUDA's libraries: numbers and layouts of the public headers of CUDA 13, declared anew.
//
// The runtime and the driver share their error numbers and their handles, so that one declaration serves both.
#pragma once

#include <cstddef>
#include <cstdint>

namespace coppice::emulated_gpu {

enum Error : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kInvalidMemcpyDirection = 21,
  kInvalidDeviceFunction = 98,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kPeerAccessUnsupported = 217,
  kOperatingSystem = 304,
  kInvalidHandle = 400,
  kIllegalState = 401,
  kSymbolNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kPeerAccessAlreadyEnabled = 704,
  kPeerAccessNotEnabled = 705,
  kHostMemoryAlreadyRegistered = 712,
  kHostMemoryNotRegistered = 713,
  kMisalignedAddress = 716,
  kNotPermitted = 800,
  kNotSupported = 801,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureMerge = 902,
  kCaptureUnmatched = 903,
  kCaptureUnjoined = 904,
  kCaptureIsolation = 905,
  kCaptureImplicit = 906,
  kCapturedEvent = 907,
  kCaptureWrongThread = 908,
  kUnknown = 999,
};

inline constexpr int kVersion = 13000;  // of the runtime and of the driver

enum CopyKind : int { kHostToHost = 0, kHostToDevice = 1, kDeviceToHost = 2, kDeviceToDevice = 3, kByAddress = 4 };
enum MemoryType : int { kUnregisteredMemory = 0, kHostMemory = 1, kDeviceMemory = 2, kManagedMemory = 3 };
enum CaptureMode : int { kGlobalCapture = 0, kThreadCapture = 1, kRelaxedCapture = 2 };
enum CaptureStatus : int { kNoCapture = 0, kActiveCapture = 1, kInvalidatedCapture = 2 };
enum NodeType : int {
  kKernelNode = 0,
  kMemcpyNode = 1,
  kMemsetNode = 2,
  kHostNode = 3,
  kGraphNode = 4,
  kEmptyNode = 5,
  kWaitEventNode = 6,
  kRecordEventNode = 7,
  kMemoryOperationsNode = 12,
};
enum LocationType : int { kNoLocation = 0, kOnDevice = 1, kOnHost = 2, kOnHostNuma = 3, kOnHostNumaCurrent = 4 };
enum HandleType : int { kNoHandle = 0, kFileDescriptor = 1, kFabricHandle = 8 };
enum MemoryOperationKind : int {
  kWait32 = 1,
  kWrite32 = 2,
  kFlushRemoteWrites = 3,
  kWait64 = 4,
  kWrite64 = 5,
  kBarrier = 6,
};
enum WaitFlags : unsigned { kAtLeast = 0, kEqual = 1, kAnd = 2, kNor = 3, kWaitFlush = 1u << 30 };

using DevicePointer = unsigned long long;
using MemoryHandle = unsigned long long;
using HostFunction = void (*)(void*);

struct Location {
  int type;
  int id;
};

struct AllocationProperties {
  int type;  // 1: pinned
  int handle_types;
  Location location;
  void* unused;
  struct {
    unsigned char compression, rdma_capable;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};
static_assert(sizeof(AllocationProperties) == 32);

struct AccessDescription {
  Location location;
  int flags;  // 0 none, 1 read, 3 read and write
};

struct MulticastProperties {
  unsigned devices;
  std::size_t size;
  unsigned long long handle_types, flags;
};

union MemoryOperation {
  int kind;
  struct {
    int kind;
    DevicePointer address;
    std::uint64_t value;
    unsigned flags;
    DevicePointer alias;
  } value;  // of waits and of writes
  std::uint64_t pad[6];
};
static_assert(sizeof(MemoryOperation) == 48);

struct MemoryOperationsNode {
  void* context;
  unsigned count;
  MemoryOperation* operations;
  unsigned flags;
};

struct CopyAttributes {
  int source_order;  // 1 in stream order, 2 during the call, 3 any
  Location source_hint, target_hint;
  unsigned flags;
};

struct PointerAttributes {
  int type, device;
  void *device_pointer, *host_pointer;
  long reserved[8];
};

struct IpcHandle {
  char bytes[64];
};

struct Dim3 {
  unsigned x, y, z;
};

struct LaunchConfiguration {
  Dim3 grid, block;
  std::size_t shared_bytes;
  void* stream;
  void* attributes;
  unsigned attributes_count;
};

struct DriverLaunchConfiguration {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  void* attributes;
  unsigned attributes_count;
};

struct KernelNode {
  void* function;
  Dim3 grid, block;
  unsigned shared_bytes;
  void **parameters, **extra;
};

struct HostNode {
  HostFunction function;
  void* data;
};

struct MemsetNode {
  void* target;
  std::size_t pitch;
  unsigned value, element_bytes;
  std::size_t width, height;
};

struct FunctionAttributes {
  std::size_t shared_bytes, constant_bytes, local_bytes;
  int most_threads, registers, ptx_version, binary_version, cache_mode, most_dynamic_shared_bytes;
  int others[24];
};

struct PoolProperties {
  int type, handle_types;
  Location location;
  void* unused;
  std::size_t most_bytes;
  unsigned short usage;
  unsigned char reserved[54];
};

struct DeviceProperties {
  char name[256];
  unsigned char uuid[16];
  char luid[8];
  unsigned luid_mask;
  std::size_t total_bytes, shared_bytes_per_block;
  int registers_per_block, warp;
  std::size_t pitch;
  int most_threads_per_block, most_block[3], most_grid[3];
  std::size_t constant_bytes;
  int major, minor;
  std::size_t texture_alignment, texture_pitch_alignment;
  int processors, integrated, can_map_host_memory;
  int textures_and_surfaces[39];
  std::size_t surface_alignment;
  int concurrent_kernels, ecc, pci_bus, pci_device, pci_domain, tcc, async_engines, unified_addressing;
  int memory_bus_bits, l2_bytes, l2_persisting_bytes, threads_per_processor, stream_priorities, l1_global, l1_local;
  std::size_t shared_bytes_per_processor;
  int registers_per_processor, managed_memory, multi_gpu_board, board_group, host_native_atomics, pageable_access;
  int concurrent_managed_access, preemption, host_pointer_of_registered, cooperative_launch;
  std::size_t shared_bytes_per_block_optin;
  int pageable_by_host_tables, direct_managed_access, blocks_per_processor, access_policy_window;
  std::size_t reserved_shared_bytes;
  int host_register, sparse_arrays, host_register_read_only, timeline_semaphores, memory_pools, gpu_direct_rdma;
  unsigned gpu_direct_flush_options;
  int gpu_direct_ordering;
  unsigned pool_handle_types;
  int deferred_arrays, ipc_events, cluster_launch, unified_functions, numa_config, numa_id, mps, host_numa_id;
  unsigned pci_device_id, pci_subsystem_id;
  int host_numa_ipc, reserved[56];
};

}  // namespace coppice::emulated_gpu

// What a library of CUDA exports.
#define COPPICE_CUDA extern "C" __attribute__((visibility("default"))) int

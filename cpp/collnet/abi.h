// What NCCL and its network plugins have agreed on: the tables of functions that a library exports as
// ncclNetPlugin_vN and ncclCollNetPlugin_vN, versions 8 to 12, in declarations of our own.
//
// Only the layout matters to NCCL: the order of members, their sizes, and what functions take. Enumerations are passed as
// int. A version says from when on a member exists; members that hold nothing for us are null (no device offload, no
// virtual devices, no DMA-BUF).
#pragma once

#include <cstddef>
#include <cstdint>

namespace coppice::collnet {

enum Result : int {
  kSuccess = 0,
  kSystemError = 2,      // a system call failed here
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,      // another node closed the connection, or is no longer reached
};

enum LogLevel : int { kWarn = 2, kInfo = 3 };
enum LogTopic : unsigned long { kLogInit = 0x1, kLogNet = 0x10, kLogEnv = 0x80 };
enum PointerKind : int { kHostPointer = 0x1 };

constexpr int kHandleBytes = 128;
constexpr int kUndefined = -1;

using Logger = void (*)(int level, unsigned long topics, const char* file, int line, const char* format, ...);

struct PropertiesV8 {
  const char* name;
  const char* pci_path;
  std::uint64_t guid;
  int pointer_support, registration_is_global, speed_mbit, port;
  float latency;
  int most_comms, most_receives, device_type, device_version;
};

template <int Devices>
struct VirtualDevice {
  int count;
  int devices[Devices];
};

struct PropertiesV9 {  // version 10 too
  const char* name;
  const char* pci_path;
  std::uint64_t guid;
  int pointer_support, registration_is_global, force_flush, speed_mbit, port;
  float latency;
  int most_comms, most_receives, device_type, device_version;
  VirtualDevice<4> virtual_device;
  std::size_t most_p2p_bytes, most_collective_bytes;
};

struct PropertiesV11 {
  PropertiesV9 common;
  int most_requests;
};

struct PropertiesV12 {
  const char* name;
  const char* pci_path;
  std::uint64_t guid;
  int pointer_support, registration_is_global, force_flush, speed_mbit, port;
  float latency;
  int most_comms, most_receives, device_type, device_version;
  VirtualDevice<8> virtual_device;
  std::size_t most_p2p_bytes, most_collective_bytes;
  int most_requests;
  std::int16_t rail, plane;
};

/// A part of a buffer in several pieces.
template <class Size>
struct Piece {
  void* memory;  // what regMr gave
  void* address;
  Size bytes;
};

/// Beginning of both tables: how a library is started differs by version.
template <class Properties>
struct Start {
  const char* name;
  int (*init)(Logger);
  int (*devices)(int*);
  int (*properties)(int, Properties*);
  int (*listen)(int, void*, void**);
};

template <class Properties>
struct StartV10 {  // of ncclNet only
  const char* name;
  int (*init)(Logger, void* profiler);
  int (*devices)(int*);
  int (*properties)(int, Properties*);
  int (*listen)(int, void*, void**);
};

template <class Properties>
struct NetStartV11 {
  const char* name;
  int (*init)(void**, std::uint64_t, void* config, Logger, void* profiler);
  int (*devices)(int*);
  int (*properties)(int, Properties*);
  int (*listen)(void*, int, void*, void**);
};

template <class Properties>
struct CollNetStartV11 {
  const char* name;
  int (*init)(void**, std::uint64_t, Logger);
  int (*devices)(int*);
  int (*properties)(int, Properties*);
  int (*listen)(void*, int, void*, void**);
};

template <class StartTable, class Count, class Size>
struct CollNetBody {
  StartTable start;
  int (*connect)(void*[], int, int, void*, void**);
  int (*reduce_support)(int, int, int*);
  int (*register_memory)(void*, void*, std::size_t, int, void**);
  int (*register_dma_buffer)(void*, void*, std::size_t, int, std::uint64_t, int, void**);
  int (*deregister_memory)(void*, void*);
  int (*all_reduce)(void*, void*, void*, Count, int, int, void*, void*, void**);
  int (*all_gather)(void*, void*, int, Piece<Size>*, std::size_t, std::size_t, std::size_t, void*, void**);
  int (*reduce_scatter)(void*, int, Piece<Size>*, void*, std::size_t, std::size_t, std::size_t, int, int, void*, void**);
  int (*flush)(void*, void*, int, void*, void**);
  int (*test)(void*, int*, int*);
  int (*close)(void*);
  int (*close_listen)(void*);
};

using CollNetV8 = CollNetBody<Start<PropertiesV8>, int, std::uint32_t>;

struct CollNetV9 {  // version 10 too
  CollNetBody<Start<PropertiesV9>, std::size_t, std::size_t> body;
  void* make_virtual_device;
};

template <class Properties>
struct CollNetV11 {  // version 12 with its properties
  CollNetBody<CollNetStartV11<Properties>, std::size_t, std::size_t> body;
  void* make_virtual_device;
  int (*finalize)(void*);
};

struct NetMemory {  // functions between irecv and the end, the same in all versions
  int (*flush)(void*, int, void**, int*, void**, void**);
  int (*test)(void*, int*, int*);
  int (*close_send)(void*);
  int (*close_receive)(void*);
  int (*close_listen)(void*);
  void* device_memory;
  void* receive_consumed;
};

struct NetRegistration {
  int (*accept)(void*, void**, void**);
  int (*register_memory)(void*, void*, std::size_t, int, void**);
  void* register_dma_buffer;
  int (*deregister_memory)(void*, void*);
};

struct NetV8 {
  Start<PropertiesV8> start;
  int (*connect)(int, void*, void**, void**);
  NetRegistration registration;
  int (*send)(void*, void*, int, int, void*, void**);
  int (*receive)(void*, int, void**, int*, int*, void**, void**);
  NetMemory memory;
};

struct NetV9 {
  Start<PropertiesV9> start;
  int (*connect)(int, void*, void**, void**);
  NetRegistration registration;
  int (*send)(void*, void*, std::size_t, int, void*, void**);
  int (*receive)(void*, int, void**, std::size_t*, int*, void**, void**);
  NetMemory memory;
  void* make_virtual_device;
};

struct NetV10 {
  StartV10<PropertiesV9> start;
  int (*connect)(int, void* config, void*, void**, void**);
  NetRegistration registration;
  int (*send)(void*, void*, std::size_t, int, void*, void*, void**);
  int (*receive)(void*, int, void**, std::size_t*, int*, void**, void**, void**);
  NetMemory memory;
  void* make_virtual_device;
};

template <class Properties>
struct NetV11 {  // version 12 with its properties
  NetStartV11<Properties> start;
  int (*connect)(void*, int, void*, void**, void**);
  NetRegistration registration;
  int (*send)(void*, void*, std::size_t, int, void*, void*, void**);
  int (*receive)(void*, int, void**, std::size_t*, int*, void**, void**, void**);
  NetMemory memory;
  void* make_virtual_device;
  int (*finalize)(void*);
  void* set_attributes;
};

}  // namespace coppice::collnet

// Devices, allocations, copies and their errors, memory for other processes.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "emulated_gpu/box.h"
#include "emulated_gpu/calls.h"
#include "emulated_gpu/operations.h"
#include "testing/testing.h"

namespace coppice::emulated_gpu {
namespace {

template <class T>
T* allocated(std::size_t count, int device = 0) {
  void* made = nullptr;
  cudaSetDevice(device);
  CHECK_EQ(cudaMalloc(&made, count * sizeof(T)), 0);
  cudaSetDevice(0);
  return static_cast<T*>(made);
}

void* new_stream(int device = 0) {
  void* stream = nullptr;
  cudaSetDevice(device);
  CHECK_EQ(cudaStreamCreateWithFlags(&stream, 1), 0);
  cudaSetDevice(0);
  return stream;
}

TEST(emulated_devices_are_the_box) {
  DeviceProperties properties{};
  CHECK_EQ(cudaGetDeviceProperties(&properties, 1), 0);
  CHECK_EQ(properties.major, 9);
  char bus_id[16];
  CHECK_EQ(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, 1), 0);
  CHECK_EQ(std::string(bus_id), "0000:0f:00.0");
  CHECK_EQ(cudaSetDevice(2), kInvalidDevice);
  CHECK_EQ(cudaGetLastError(), kInvalidDevice);
  CHECK_EQ(cudaGetLastError(), 0);
}

TEST(emulated_box_is_read_from_text) {
  Box box;
  std::string error;
  CHECK(parse_box("driver 12040\ngpu 0001:c1:00.0 100 1000 1 1 B200\nlink 0 0001:02:00.0 switch\n", box, error));
  CHECK_EQ(box.driver, 12040);
  CHECK_EQ(box.gpus.at(0).domain, 1u);
  CHECK_EQ(box.gpus.at(0).bus, 0xc1u);
  CHECK(box.gpus.at(0).links.at(0).is_switch);
  CHECK(!parse_box("gpu 0001:c1:00.0 100 1000 1 1 B200\nlink 1 0001:02:00.0 switch\n", box, error));
  CHECK_EQ(error, "says 'link 1 0001:02:00.0 switch' in line 2");
}

TEST(emulated_copies_go_between_host_and_devices) {
  std::vector<int> given(1000), back(1000);
  for (int i = 0; i < 1000; ++i) given[static_cast<std::size_t>(i)] = i;
  int *one = allocated<int>(1000), *other = allocated<int>(1000, 1);
  CHECK_EQ(cudaMemcpy(one, given.data(), 4000, kHostToDevice), 0);
  CHECK_EQ(cudaMemcpy(other, one, 4000, kDeviceToDevice), 0);
  CHECK_EQ(cudaMemcpy(back.data(), other, 4000, kDeviceToHost), 0);
  CHECK(given == back);
  PointerAttributes attributes{};
  cudaPointerGetAttributes(&attributes, other + 3);
  CHECK_EQ(attributes.type, static_cast<int>(kDeviceMemory));
  CHECK_EQ(attributes.device, 1);
  cudaPointerGetAttributes(&attributes, given.data());
  CHECK_EQ(attributes.type, static_cast<int>(kUnregisteredMemory));
  CHECK_EQ(cudaMemcpy(one + 990, given.data(), 100, kHostToDevice), kInvalidValue);  // beyond its end
  CHECK_EQ(cudaMemcpy(given.data(), one, 4000, kDeviceToDevice), kInvalidValue);     // not of a device
  CHECK_EQ(cudaFree(one + 1), kInvalidValue);
  CHECK_EQ(cudaFree(one), 0);
  CHECK_EQ(cudaFree(one), kInvalidValue);
  CHECK_EQ(cudaFree(other), 0);
}

TEST(emulated_copies_of_rows_leave_the_rest) {
  auto* target = allocated<char>(64);
  cudaMemcpy(target, std::string(64, '.').data(), 64, kHostToDevice);
  const std::string rows = "abcdefgh";
  CHECK_EQ(cudaMemcpy2DAsync(target, 16, rows.data(), 4, 4, 2, kHostToDevice, nullptr), 0);
  std::string back(64, ' ');
  cudaMemcpy(back.data(), target, 64, kDeviceToHost);
  CHECK_EQ(back.substr(0, 24), "abcd............efgh....");
  cudaFree(target);
}

// The source of an asynchronous copy may change after the call if it is pageable, and not if it is pinned.
TEST(emulated_pageable_sources_are_read_at_once) {
  Scheduler::instance().configure({3, 2, std::chrono::milliseconds(20)});
  void *stream = new_stream(), *pinned = nullptr;
  auto* target = allocated<std::uint64_t>(2);
  CHECK_EQ(cudaMallocHost(&pinned, 8), 0);
  std::uint64_t pageable = 1;
  auto* there = static_cast<std::uint64_t*>(pinned);
  __atomic_store_n(there, 1, __ATOMIC_RELAXED);
  cudaMemcpyAsync(target, &pageable, 8, kHostToDevice, stream);
  cudaMemcpyAsync(target + 1, pinned, 8, kHostToDevice, stream);
  pageable = 2;
  __atomic_store_n(there, 2, __ATOMIC_RELAXED);
  std::uint64_t seen[2];
  cudaStreamSynchronize(stream);
  cudaMemcpy(seen, target, 16, kDeviceToHost);
  CHECK_EQ(seen[0], 1u);
  CHECK_EQ(seen[1], 2u);  // an idle stream had not begun
  cudaFree(target);
  cudaFreeHost(pinned);
  cudaStreamDestroy(stream);
  Scheduler::instance().configure({});
}

TEST(emulated_peers_need_access) {
  auto* far = allocated<std::uint64_t>(1, 1);
  void* stream = new_stream();
  cudaDeviceDisablePeerAccess(1);
  cudaGetLastError();
  cudaMemcpy(far, std::string(8, '\0').data(), 8, kHostToDevice);
  CHECK_EQ(cuStreamWriteValue64(stream, reinterpret_cast<DevicePointer>(far), 5, 0), 0);
  CHECK_EQ(cudaStreamSynchronize(stream), kIllegalAddress);
  CHECK_EQ(cudaStreamSynchronize(stream), kIllegalAddress);  // and stays
  cudaDeviceReset();
  CHECK_EQ(cudaDeviceEnablePeerAccess(1, 0), 0);
  CHECK_EQ(cudaDeviceEnablePeerAccess(1, 0), kPeerAccessAlreadyEnabled);
  CHECK_EQ(cuStreamWriteValue64(stream, reinterpret_cast<DevicePointer>(far), 5, 0), 0);
  CHECK_EQ(cudaStreamSynchronize(stream), 0);
  std::uint64_t seen = 0;
  cudaMemcpy(&seen, far, 8, kDeviceToHost);
  CHECK_EQ(seen, 5u);
  cudaFree(far);
  cudaStreamDestroy(stream);
}

TEST(emulated_values_are_waited_for) {
  void *stream = new_stream(), *other = new_stream();
  auto* flag = allocated<std::uint32_t>(2);
  cudaMemcpy(flag, std::string(8, '\0').data(), 8, kHostToDevice);
  const auto address = reinterpret_cast<DevicePointer>(flag);
  CHECK_EQ(cuStreamWaitValue32(stream, address, 0x80000000u + 3, kAtLeast), 0);  // by the sign of the difference
  MemoryOperation batch[2] = {};
  batch[0].value = {kWait32, address, 2, kAnd, 0};
  batch[1].value = {kWrite32, address + 4, 7, 0, 0};
  CHECK_EQ(cuStreamBatchMemOp(stream, 2, batch, 0), 0);
  CHECK_EQ(cudaStreamQuery(stream), kNotReady);
  cudaGetLastError();
  CHECK_EQ(cuStreamWriteValue32(other, address, 0x80000000u + 3, 0), 0);
  CHECK_EQ(cudaStreamSynchronize(stream), 0);
  std::uint32_t seen[2];
  cudaMemcpy(seen, flag, 8, kDeviceToHost);
  CHECK_EQ(seen[1], 7u);
  CHECK_EQ(cuStreamWaitValue64(stream, address + 4, 0, 0), kInvalidValue);  // not aligned
  cudaFree(flag);
  cudaStreamDestroy(stream);
  cudaStreamDestroy(other);
}

constexpr std::size_t kPage = std::size_t{2} << 20;

struct Mapped {
  DevicePointer address = 0;
  MemoryHandle handle = 0;
};

Mapped mapped_at(MemoryHandle handle, std::size_t bytes, int device) {
  Mapped made{0, handle};
  CHECK_EQ(cuMemAddressReserve(&made.address, bytes, 0, 0, 0), 0);
  CHECK_EQ(cuMemMap(made.address, bytes, 0, handle, 0), 0);
  const AccessDescription access{{kOnDevice, device}, 3};
  CHECK_EQ(cuMemSetAccess(made.address, bytes, &access, 1), 0);
  return made;
}

MemoryHandle physical(int device) {
  AllocationProperties properties{};
  properties.type = 1;
  properties.handle_types = kFileDescriptor;
  properties.location = {kOnDevice, device};
  MemoryHandle handle = 0;
  CHECK_EQ(cuMemCreate(&handle, kPage, &properties, 0), 0);
  return handle;
}

void unmap(const Mapped& mapped, std::size_t bytes) {
  CHECK_EQ(cuMemUnmap(mapped.address, bytes), 0);
  CHECK_EQ(cuMemAddressFree(mapped.address, bytes), 0);
  CHECK_EQ(cuMemRelease(mapped.handle), 0);
}

TEST(emulated_physical_memory_is_mapped_where_one_likes) {
  const Mapped one = mapped_at(physical(0), kPage, 0);
  int descriptor = -1;
  CHECK_EQ(cuMemExportToShareableHandle(&descriptor, one.handle, kFileDescriptor, 0), 0);
  MemoryHandle imported = 0;
  CHECK_EQ(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)),
                                          kFileDescriptor),
           0);
  close(descriptor);
  const Mapped other = mapped_at(imported, kPage, 0);
  const std::uint64_t value = 77;
  CHECK_EQ(cudaMemcpy(reinterpret_cast<void*>(one.address + 8), &value, 8, kHostToDevice), 0);
  std::uint64_t seen = 0;
  CHECK_EQ(cudaMemcpy(&seen, reinterpret_cast<void*>(other.address + 8), 8, kDeviceToHost), 0);
  CHECK_EQ(seen, 77u);
  DevicePointer base = 0;
  std::size_t bytes = 0;
  CHECK_EQ(cuMemGetAddressRange(&base, &bytes, other.address + 100), 0);
  CHECK_EQ(base, other.address);
  CHECK_EQ(bytes, kPage);
  // Without access of the device that copies.
  const AccessDescription none{{kOnDevice, 0}, 0};
  CHECK_EQ(cuMemSetAccess(other.address, kPage, &none, 1), 0);
  CHECK_EQ(cudaMemcpy(&seen, reinterpret_cast<void*>(other.address), 8, kDeviceToHost), kIllegalAddress);
  cudaDeviceReset();
  unmap(one, kPage);
  unmap(other, kPage);
  CHECK_EQ(cudaMemcpy(&seen, reinterpret_cast<void*>(one.address), 8, kDeviceToDevice), kInvalidValue);
}

TEST(emulated_multicast_reaches_all_that_is_bound) {
  MulticastProperties properties{2, kPage, kFileDescriptor, 0};
  MemoryHandle object = 0;
  CHECK_EQ(cuMulticastCreate(&object, &properties), 0);
  CHECK_EQ(cuMulticastAddDevice(object, 0), 0);
  const Mapped one = mapped_at(physical(0), kPage, 0), other = mapped_at(physical(1), kPage, 1);
  std::atomic<bool> bound{false};
  std::thread binding([&] {
    CHECK_EQ(cuMulticastBindMem(object, 0, one.handle, 0, kPage, 0), 0);  // waits for all devices
    bound = true;
  });
  CHECK(!bound);
  CHECK_EQ(cuMulticastAddDevice(object, 1), 0);
  binding.join();
  CHECK_EQ(cuMulticastBindMem(object, 0, other.handle, 0, kPage, 0), 0);
  const Mapped all = mapped_at(object, kPage, 0);
  const std::uint64_t value = 99;
  auto* source = allocated<std::uint64_t>(1);
  cudaMemcpy(source, &value, 8, kHostToDevice);
  CHECK_EQ(cudaMemcpyAsync(reinterpret_cast<void*>(all.address + 16), source, 8, kDeviceToDevice, nullptr), 0);
  CHECK_EQ(cudaDeviceSynchronize(), 0);
  for (const auto& [mapped, device] : {std::pair{one, 0}, std::pair{other, 1}}) {
    std::uint64_t seen = 0;
    cudaSetDevice(device);
    CHECK_EQ(cudaMemcpy(&seen, reinterpret_cast<void*>(mapped.address + 16), 8, kDeviceToHost), 0);
    CHECK_EQ(seen, 99u);
  }
  cudaSetDevice(0);
  cudaFree(source);
  unmap(all, kPage);
  unmap(one, kPage);
  unmap(other, kPage);
}

// The part of the other process; nothing without what the first one hands over.
TEST(emulated_ipc_handles_in_the_other_process) {
  const char* text = std::getenv("COPPICE_EMULATED_GPU_HANDLE");
  if (!text) return;
  IpcHandle handle{};
  for (std::size_t i = 0; i < sizeof handle; ++i) {
    handle.bytes[i] = static_cast<char>(std::stoi(std::string(text + 2 * i, 2), nullptr, 16));
  }
  void *opened = nullptr, *again = nullptr;
  CHECK_EQ(cudaIpcOpenMemHandle(&opened, handle, 1), 0);
  CHECK_EQ(cudaIpcOpenMemHandle(&again, handle, 1), 0);
  CHECK_EQ(opened, again);
  const std::uint64_t value = 4321;
  CHECK_EQ(cudaMemcpy(static_cast<char*>(opened) + 8, &value, 8, kHostToDevice), 0);
  CHECK_EQ(cudaIpcCloseMemHandle(opened), 0);
  CHECK_EQ(cudaIpcCloseMemHandle(opened), 0);
  CHECK_EQ(cudaIpcCloseMemHandle(opened), kInvalidValue);
}

TEST(emulated_ipc_handles_reach_other_processes) {
  if (std::getenv("COPPICE_EMULATED_GPU_HANDLE")) return;
  auto* memory = allocated<std::uint64_t>(2);
  IpcHandle handle{};
  CHECK_EQ(cudaIpcGetMemHandle(&handle, memory), 0);
  void* here = nullptr;
  CHECK_EQ(cudaIpcOpenMemHandle(&here, handle, 1), kInvalidContext);  // of the same process
  std::string text = "COPPICE_EMULATED_GPU_HANDLE=";
  for (char each : handle.bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    text += {kDigits[static_cast<unsigned char>(each) >> 4], kDigits[each & 15]};
  }
  std::string program = "/proc/self/exe", what = "emulated_ipc_handles_in_the_other_process";
  char* arguments[] = {program.data(), what.data(), nullptr};
  char* environment[] = {text.data(), nullptr};
  pid_t child = 0;
  CHECK_EQ(posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments, environment), 0);
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  std::uint64_t seen = 0;
  CHECK_EQ(cudaMemcpy(&seen, memory + 1, 8, kDeviceToHost), 0);
  CHECK_EQ(seen, 4321u);
  cudaFree(memory);
  cudaGetLastError();
}

TEST(emulated_calls_that_are_missing_say_so) {
  CHECK_EQ(cudaGraphClone(), kNotSupported);
  CHECK_EQ(cudaGetLastError(), kNotSupported);
}

}  // namespace
}  // namespace coppice::emulated_gpu

// The calls of CUDA that tests make, as the emulator exports them.
#pragma once

#include "emulated_gpu/abi.h"

extern "C" {
int cudaSetDevice(int);
int cudaGetLastError();
int cudaMalloc(void**, std::size_t);
int cudaFree(void*);
int cudaMallocHost(void**, std::size_t);
int cudaFreeHost(void*);
int cudaHostRegister(void*, std::size_t, unsigned);
int cudaHostUnregister(void*);
int cudaMemcpy(void*, const void*, std::size_t, int);
int cudaMemcpyAsync(void*, const void*, std::size_t, int, void*);
int cudaMemcpy2DAsync(void*, std::size_t, const void*, std::size_t, std::size_t, std::size_t, int, void*);
int cudaMemcpyBatchAsync(void* const*, const void* const*, const std::size_t*, std::size_t,
                         coppice::emulated_gpu::CopyAttributes*, std::size_t*, std::size_t, void*);
int cudaMemsetAsync(void*, int, std::size_t, void*);
int cudaStreamCreateWithFlags(void**, unsigned);
int cudaStreamDestroy(void*);
int cudaStreamSynchronize(void*);
int cudaStreamQuery(void*);
int cudaStreamWaitEvent(void*, void*, unsigned);
int cudaEventCreateWithFlags(void**, unsigned);
int cudaEventDestroy(void*);
int cudaEventRecord(void*, void*);
int cudaEventRecordWithFlags(void*, void*, unsigned);
int cudaEventQuery(void*);
int cudaEventSynchronize(void*);
int cudaDeviceSynchronize();
int cudaDeviceReset();
int cudaDeviceEnablePeerAccess(int, unsigned);
int cudaDeviceDisablePeerAccess(int);
int cudaLaunchHostFunc(void*, coppice::emulated_gpu::HostFunction, void*);
int cudaLaunchKernel(const void*, coppice::emulated_gpu::Dim3, coppice::emulated_gpu::Dim3, void**, std::size_t, void*);
int cudaStreamBeginCapture(void*, int);
int cudaStreamEndCapture(void*, void**);
int cudaStreamIsCapturing(void*, int*);
int cudaStreamGetCaptureInfo(void*, int*, unsigned long long*, void**, void* const**, const void**, std::size_t*);
int cudaStreamUpdateCaptureDependencies(void*, void**, const void*, std::size_t, unsigned);
int cudaThreadExchangeStreamCaptureMode(int*);
int cudaGraphCreate(void**, unsigned);
int cudaGraphDestroy(void*);
int cudaGraphAddChildGraphNode(void**, void*, void* const*, std::size_t, void*);
int cudaGraphAddEventRecordNode(void**, void*, void* const*, std::size_t, void*);
int cudaGraphAddHostNode(void**, void*, void* const*, std::size_t, const coppice::emulated_gpu::HostNode*);
int cudaGraphAddMemcpyNode1D(void**, void*, void* const*, std::size_t, void*, const void*, std::size_t, int);
int cudaGraphAddDependencies(void*, void* const*, void* const*, const void*, std::size_t);
int cudaGraphGetNodes(void*, void**, std::size_t*);
int cudaGraphNodeGetType(void*, int*);
int cudaGraphInstantiate(void**, void*, unsigned long long);
int cudaGraphLaunch(void*, void*);
int cudaGraphExecDestroy(void*);
int cudaUserObjectCreate(void**, void*, coppice::emulated_gpu::HostFunction, unsigned, unsigned);
int cudaGraphRetainUserObject(void*, void*, unsigned, unsigned);
int cudaIpcGetMemHandle(coppice::emulated_gpu::IpcHandle*, void*);
int cudaIpcOpenMemHandle(void**, coppice::emulated_gpu::IpcHandle, unsigned);
int cudaIpcCloseMemHandle(void*);
int cudaPointerGetAttributes(coppice::emulated_gpu::PointerAttributes*, const void*);
int cudaGetDeviceProperties(coppice::emulated_gpu::DeviceProperties*, int);
int cudaDeviceGetPCIBusId(char*, int, int);
int cudaGraphClone();
int cuStreamWaitValue64(void*, coppice::emulated_gpu::DevicePointer, std::uint64_t, unsigned);
int cuStreamWriteValue64(void*, coppice::emulated_gpu::DevicePointer, std::uint64_t, unsigned);
int cuStreamWaitValue32(void*, coppice::emulated_gpu::DevicePointer, std::uint32_t, unsigned);
int cuStreamWriteValue32(void*, coppice::emulated_gpu::DevicePointer, std::uint32_t, unsigned);
int cuStreamBatchMemOp(void*, unsigned, coppice::emulated_gpu::MemoryOperation*, unsigned);
int cuMemCreate(coppice::emulated_gpu::MemoryHandle*, std::size_t, const coppice::emulated_gpu::AllocationProperties*,
                unsigned long long);
int cuMemRelease(coppice::emulated_gpu::MemoryHandle);
int cuMemAddressReserve(coppice::emulated_gpu::DevicePointer*, std::size_t, std::size_t,
                        coppice::emulated_gpu::DevicePointer, unsigned long long);
int cuMemAddressFree(coppice::emulated_gpu::DevicePointer, std::size_t);
int cuMemMap(coppice::emulated_gpu::DevicePointer, std::size_t, std::size_t, coppice::emulated_gpu::MemoryHandle,
             unsigned long long);
int cuMemUnmap(coppice::emulated_gpu::DevicePointer, std::size_t);
int cuMemSetAccess(coppice::emulated_gpu::DevicePointer, std::size_t, const coppice::emulated_gpu::AccessDescription*,
                   std::size_t);
int cuMemExportToShareableHandle(void*, coppice::emulated_gpu::MemoryHandle, int, unsigned long long);
int cuMemImportFromShareableHandle(coppice::emulated_gpu::MemoryHandle*, void*, int);
int cuMemGetAddressRange(coppice::emulated_gpu::DevicePointer*, std::size_t*, coppice::emulated_gpu::DevicePointer);
int cuMulticastCreate(coppice::emulated_gpu::MemoryHandle*, const coppice::emulated_gpu::MulticastProperties*);
int cuMulticastAddDevice(coppice::emulated_gpu::MemoryHandle, int);
int cuMulticastBindMem(coppice::emulated_gpu::MemoryHandle, std::size_t, coppice::emulated_gpu::MemoryHandle,
                       std::size_t, std::size_t, unsigned long long);
}

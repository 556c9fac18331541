// Calls of the runtime that are not emulated: each says so once, by name, and answers cudaErrorNotSupported.
#include "emulated_gpu/errors.h"

#define COPPICE_NOT_EMULATED(X) \
    X(cudaArrayGetInfo) X(cudaArrayGetMemoryRequirements) X(cudaArrayGetPlane) X(cudaArrayGetSparseProperties)        \
    X(cudaChooseDevice) X(cudaCreateSurfaceObject) X(cudaCreateTextureObject) X(cudaCtxResetPersistingL2Cache)        \
    X(cudaDestroyExternalMemory) X(cudaDestroyExternalSemaphore) X(cudaDestroySurfaceObject)                          \
    X(cudaDestroyTextureObject) X(cudaDeviceFlushGPUDirectRDMAWrites) X(cudaDeviceGetCacheConfig)                     \
    X(cudaDeviceGetDefaultMemPool) X(cudaDeviceGetGraphMemAttribute) X(cudaDeviceGetHostAtomicCapabilities)           \
    X(cudaDeviceGetMemPool) X(cudaDeviceGetNvSciSyncAttributes) X(cudaDeviceGetP2PAtomicCapabilities)                 \
    X(cudaDeviceGetSharedMemConfig) X(cudaDeviceGetTexture1DLinearMaxWidth) X(cudaDeviceGraphMemTrim)                 \
    X(cudaDeviceRegisterAsyncNotification) X(cudaDeviceSetCacheConfig) X(cudaDeviceSetGraphMemAttribute)              \
    X(cudaDeviceSetMemPool) X(cudaDeviceSetSharedMemConfig) X(cudaDeviceUnregisterAsyncNotification)                  \
    X(cudaExternalMemoryGetMappedBuffer) X(cudaExternalMemoryGetMappedMipmappedArray) X(cudaFreeArray)                \
    X(cudaFreeMipmappedArray) X(cudaFuncGetName) X(cudaFuncGetParamInfo) X(cudaFuncSetCacheConfig)                    \
    X(cudaFuncSetSharedMemConfig) X(cudaGetChannelDesc) X(cudaGetExportTable) X(cudaGetKernel)                        \
    X(cudaGetMipmappedArrayLevel) X(cudaGetSurfaceObjectResourceDesc) X(cudaGetSymbolAddress) X(cudaGetSymbolSize)    \
    X(cudaGetTextureObjectResourceDesc) X(cudaGetTextureObjectResourceViewDesc) X(cudaGetTextureObjectTextureDesc)    \
    X(cudaGraphAddExternalSemaphoresSignalNode) X(cudaGraphAddExternalSemaphoresWaitNode) X(cudaGraphAddMemAllocNode) \
    X(cudaGraphAddMemFreeNode) X(cudaGraphAddMemcpyNode) X(cudaGraphAddMemcpyNodeFromSymbol)                          \
    X(cudaGraphAddMemcpyNodeToSymbol) X(cudaGraphAddNode) X(cudaGraphChildGraphNodeGetGraph) X(cudaGraphClone)        \
    X(cudaGraphConditionalHandleCreate) X(cudaGraphDebugDotPrint) X(cudaGraphDestroyNode)                             \
    X(cudaGraphEventRecordNodeGetEvent) X(cudaGraphEventRecordNodeSetEvent) X(cudaGraphEventWaitNodeGetEvent)         \
    X(cudaGraphEventWaitNodeSetEvent) X(cudaGraphExecChildGraphNodeSetParams) X(cudaGraphExecEventRecordNodeSetEvent) \
    X(cudaGraphExecEventWaitNodeSetEvent) X(cudaGraphExecExternalSemaphoresSignalNodeSetParams)                       \
    X(cudaGraphExecExternalSemaphoresWaitNodeSetParams) X(cudaGraphExecGetFlags) X(cudaGraphExecHostNodeSetParams)    \
    X(cudaGraphExecKernelNodeSetParams) X(cudaGraphExecMemcpyNodeSetParams) X(cudaGraphExecMemcpyNodeSetParams1D)     \
    X(cudaGraphExecMemcpyNodeSetParamsFromSymbol) X(cudaGraphExecMemcpyNodeSetParamsToSymbol)                         \
    X(cudaGraphExecMemsetNodeSetParams) X(cudaGraphExecNodeSetParams) X(cudaGraphExecUpdate)                          \
    X(cudaGraphExternalSemaphoresSignalNodeGetParams) X(cudaGraphExternalSemaphoresSignalNodeSetParams)               \
    X(cudaGraphExternalSemaphoresWaitNodeGetParams) X(cudaGraphExternalSemaphoresWaitNodeSetParams)                   \
    X(cudaGraphGetRootNodes) X(cudaGraphHostNodeGetParams) X(cudaGraphHostNodeSetParams)                              \
    X(cudaGraphInstantiateWithParams) X(cudaGraphKernelNodeCopyAttributes) X(cudaGraphKernelNodeGetAttribute)         \
    X(cudaGraphKernelNodeGetParams) X(cudaGraphKernelNodeSetAttribute) X(cudaGraphKernelNodeSetParams)                \
    X(cudaGraphMemAllocNodeGetParams) X(cudaGraphMemFreeNodeGetParams) X(cudaGraphMemcpyNodeGetParams)                \
    X(cudaGraphMemcpyNodeSetParams) X(cudaGraphMemcpyNodeSetParams1D) X(cudaGraphMemcpyNodeSetParamsFromSymbol)       \
    X(cudaGraphMemcpyNodeSetParamsToSymbol) X(cudaGraphMemsetNodeGetParams) X(cudaGraphMemsetNodeSetParams)           \
    X(cudaGraphNodeFindInClone) X(cudaGraphNodeGetDependencies) X(cudaGraphNodeGetDependentNodes)                     \
    X(cudaGraphNodeGetEnabled) X(cudaGraphNodeSetEnabled) X(cudaGraphNodeSetParams) X(cudaGraphRemoveDependencies)    \
    X(cudaGraphicsMapResources) X(cudaGraphicsResourceGetMappedMipmappedArray)                                        \
    X(cudaGraphicsResourceGetMappedPointer) X(cudaGraphicsResourceSetMapFlags)                                        \
    X(cudaGraphicsSubResourceGetMappedArray) X(cudaGraphicsUnmapResources) X(cudaGraphicsUnregisterResource)          \
    X(cudaImportExternalMemory) X(cudaImportExternalSemaphore) X(cudaIpcGetEventHandle) X(cudaIpcOpenEventHandle)     \
    X(cudaKernelSetAttributeForDevice) X(cudaLibraryEnumerateKernels) X(cudaLibraryGetGlobal) X(cudaLibraryGetKernel) \
    X(cudaLibraryGetKernelCount) X(cudaLibraryGetManaged) X(cudaLibraryGetUnifiedFunction) X(cudaLibraryLoadData)     \
    X(cudaLibraryLoadFromFile) X(cudaLibraryUnload) X(cudaLogsCurrent) X(cudaLogsDumpToFile) X(cudaLogsDumpToMemory) \
    X(cudaLogsRegisterCallback) X(cudaLogsUnregisterCallback) X(cudaMalloc3D) X(cudaMalloc3DArray) X(cudaMallocArray) \
    X(cudaMallocMipmappedArray) X(cudaMemAdvise) X(cudaMemDiscardAndPrefetchBatchAsync) X(cudaMemDiscardBatchAsync)   \
    X(cudaMemGetDefaultMemPool) X(cudaMemGetMemPool) X(cudaMemPoolExportPointer)                                      \
    X(cudaMemPoolExportToShareableHandle) X(cudaMemPoolGetAccess) X(cudaMemPoolGetAttribute)                          \
    X(cudaMemPoolImportFromShareableHandle) X(cudaMemPoolImportPointer) X(cudaMemPoolSetAccess)                       \
    X(cudaMemPrefetchAsync) X(cudaMemPrefetchBatchAsync) X(cudaMemRangeGetAttribute) X(cudaMemRangeGetAttributes)     \
    X(cudaMemSetMemPool) X(cudaMemcpy2DArrayToArray) X(cudaMemcpy2DFromArray) X(cudaMemcpy2DFromArrayAsync)           \
    X(cudaMemcpy2DToArray) X(cudaMemcpy2DToArrayAsync) X(cudaMemcpy3D) X(cudaMemcpy3DAsync) X(cudaMemcpy3DBatchAsync) \
    X(cudaMemcpy3DPeer) X(cudaMemcpy3DPeerAsync) X(cudaMemcpyArrayToArray) X(cudaMemcpyFromArray)                     \
    X(cudaMemcpyFromArrayAsync) X(cudaMemcpyFromSymbol) X(cudaMemcpyFromSymbolAsync) X(cudaMemcpyToArray)             \
    X(cudaMemcpyToArrayAsync) X(cudaMemcpyToSymbol) X(cudaMemcpyToSymbolAsync) X(cudaMemset3D) X(cudaMemset3DAsync)   \
    X(cudaMipmappedArrayGetMemoryRequirements) X(cudaMipmappedArrayGetSparseProperties)                               \
    X(cudaOccupancyAvailableDynamicSMemPerBlock) X(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)            \
    X(cudaOccupancyMaxActiveClusters) X(cudaOccupancyMaxPotentialClusterSize) X(cudaSetValidDevices)                  \
    X(cudaSignalExternalSemaphoresAsync) X(cudaStreamAddCallback) X(cudaStreamAttachMemAsync)                         \
    X(cudaStreamCopyAttributes) X(cudaStreamGetAttribute) X(cudaStreamSetAttribute)                                   \
    X(cudaWaitExternalSemaphoresAsync)

#define COPPICE_REFUSE(name) \
  COPPICE_CUDA name() { return coppice::emulated_gpu::not_supported(#name); }

COPPICE_NOT_EMULATED(COPPICE_REFUSE)

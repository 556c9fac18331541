// Compares our declarations of the plugins' tables with NCCL's own headers: sizes of all, places of what differs by version.
#include "cuda_runtime.h"
#include "plugin/nccl_net.h"
#include "plugin/nccl_env.h"
#include "collnet/abi.h"
#include "nccl_env/abi.h"

using namespace coppice::collnet;

#define SAME_SIZE(ours, theirs) static_assert(sizeof(ours) == sizeof(theirs), #theirs)
#define SAME_PLACE(ours, member, theirs, other) static_assert(offsetof(ours, member) == offsetof(theirs, other), #theirs "." #other)

using OursV11 = PropertiesV11;
using CollV12 = CollNetV11<PropertiesV12>;
using CollV11 = CollNetV11<PropertiesV11>;
using NetTableV11 = NetV11<PropertiesV11>;
using NetTableV12 = NetV11<PropertiesV12>;

SAME_SIZE(PropertiesV8, ncclNetProperties_v8_t);
SAME_SIZE(PropertiesV9, ncclNetProperties_v9_t);
SAME_SIZE(PropertiesV9, ncclNetProperties_v10_t);
SAME_SIZE(PropertiesV11, ncclNetProperties_v11_t);
SAME_SIZE(PropertiesV12, ncclNetProperties_v12_t);
SAME_PLACE(PropertiesV8, latency, ncclNetProperties_v8_t, latency);
SAME_PLACE(PropertiesV8, device_version, ncclNetProperties_v8_t, netDeviceVersion);
SAME_PLACE(PropertiesV9, force_flush, ncclNetProperties_v10_t, forceFlush);
SAME_PLACE(PropertiesV9, virtual_device, ncclNetProperties_v9_t, vProps);
SAME_PLACE(PropertiesV9, most_collective_bytes, ncclNetProperties_v10_t, maxCollBytes);
SAME_PLACE(PropertiesV11, most_requests, ncclNetProperties_v11_t, maxMultiRequestSize);
SAME_PLACE(PropertiesV12, most_p2p_bytes, ncclNetProperties_v12_t, maxP2pBytes);
SAME_PLACE(PropertiesV12, most_requests, ncclNetProperties_v12_t, maxMultiRequestSize);
SAME_PLACE(PropertiesV12, rail, ncclNetProperties_v12_t, railId);
SAME_PLACE(PropertiesV12, plane, ncclNetProperties_v12_t, planeId);

SAME_SIZE(Piece<std::uint32_t>, ncclNetSGE_v8_t);
SAME_SIZE(Piece<std::size_t>, ncclNetSGE_v12_t);
SAME_PLACE(Piece<std::size_t>, bytes, ncclNetSGE_v12_t, size);

SAME_SIZE(CollNetV8, ncclCollNet_v8_t);
SAME_SIZE(CollNetV9, ncclCollNet_v9_t);
SAME_SIZE(CollNetV9, ncclCollNet_v10_t);
SAME_SIZE(CollV11, ncclCollNet_v11_t);
SAME_SIZE(CollV12, ncclCollNet_v12_t);
SAME_PLACE(CollNetV8, all_reduce, ncclCollNet_v8_t, iallreduce);
SAME_PLACE(CollNetV8, close_listen, ncclCollNet_v8_t, closeListen);
SAME_PLACE(CollNetV9, body.reduce_scatter, ncclCollNet_v10_t, ireducescatter);
SAME_PLACE(CollV12, body.connect, ncclCollNet_v12_t, connect);
SAME_PLACE(CollV12, body.flush, ncclCollNet_v12_t, iflush);
SAME_PLACE(CollV12, make_virtual_device, ncclCollNet_v12_t, makeVDevice);
SAME_PLACE(CollV12, finalize, ncclCollNet_v12_t, finalize);

SAME_SIZE(NetV8, ncclNet_v8_t);
SAME_SIZE(NetV9, ncclNet_v9_t);
SAME_SIZE(NetV10, ncclNet_v10_t);
SAME_SIZE(NetTableV11, ncclNet_v11_t);
SAME_SIZE(NetTableV12, ncclNet_v12_t);
SAME_PLACE(NetV8, registration.accept, ncclNet_v8_t, accept);
SAME_PLACE(NetV8, send, ncclNet_v8_t, isend);
SAME_PLACE(NetV9, memory.flush, ncclNet_v9_t, iflush);
SAME_PLACE(NetV10, receive, ncclNet_v10_t, irecv);
SAME_PLACE(NetTableV12, memory.receive_consumed, ncclNet_v12_t, irecvConsumed);
SAME_PLACE(NetTableV12, finalize, ncclNet_v12_t, finalize);
SAME_PLACE(NetTableV12, set_attributes, ncclNet_v12_t, setNetAttr);

using coppice::nccl_env::EnvV1;
using coppice::nccl_env::EnvV2;
SAME_SIZE(EnvV1, ncclEnv_v1_t);
SAME_SIZE(EnvV2, ncclEnv_v2_t);
SAME_PLACE(EnvV2, get, ncclEnv_v2_t, getEnv);

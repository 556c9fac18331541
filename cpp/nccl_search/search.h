// The channels that NCCL finds for one pattern: rings, trees, NVLS or CollNet.
//
// A channel is an order of the GPUs of a box, with a port of the network at each end. NCCL 2.30 (src/graph/search.cc)
// tries falling speeds for all channels. At each speed it walks depth first over GPUs, takes the speed from every link
// on the way, and goes on to the next channel where one is complete; what is best by channels times speed is kept. A
// walk ends when its budget of steps is spent. Between speeds it relaxes what a channel may be: other orders than the
// first channel's, a simpler tree, worse classes of paths inside and to the network, other NICs out than in. A second
// pass then raises speeds at the same number of channels.
//
// This follows the same order of steps, so that it stops where NCCL stops. Rates are single precision, rounded to
// thousandths after each change, for the same reason. Cost: a step is a few links; budgets are 2^14 steps a walk and
// about 2^19 in all. tests/reference/nccl_search.py says the same in Python.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/stop.h"

namespace coppice {

enum NcclNodeKind : int { kNcclGpu, kNcclPci, kNcclNvs, kNcclCpu, kNcclNic, kNcclNet, kNcclDev };
enum NcclPathKind : int {
  kPathLoc, kPathNvl, kPathNvb, kPathC2c, kPathPix, kPathPxb, kPathP2c, kPathPxn, kPathPhb, kPathSys, kPathNet, kPathDis
};
enum NcclPattern : int { kBalancedTree = 1, kSplitTree, kPlainTree, kRing, kNvls, kCollnetDirect };

/// What a box looks like. Nodes and links are numbered; ranks are 0 .. gpus - 1, of any GPU.
struct NcclSystem {
  // By node
  std::span<const std::int32_t> kind;        // NcclNodeKind
  std::span<const std::int32_t> capability;  // Compute capability x 10 of a chip, else 0
  std::span<const std::int32_t> maker;       // Of a processor: 1 Intel, 2 AMD, 3 IBM; else 0
  // By link
  std::span<const std::int32_t> to;       // Node that it leads to
  std::span<const std::int32_t> link;     // Class (NcclPathKind)
  std::span<const std::int32_t> back;     // The link of its class in the other direction, or -1
  std::span<const double> rate;           // GB/s
  // By GPU
  std::span<const std::int32_t> gpu;      // Node
  std::span<const std::int32_t> rank;     // Rank
  std::span<const std::int32_t> pcie;     // Its chip's PCIe link up, or -1
  // By port of the network
  std::span<const std::int32_t> net;        // Node
  std::span<const double> net_rate;         // GB/s
  std::span<const double> net_latency;      // Microseconds
  std::span<const std::int32_t> rail;       // Equal for ports of one number on one NIC
  std::span<const std::int32_t> adds;       // Its network adds
  std::span<const std::int32_t> local_gpu;  // GPU that it serves first, or -1
  // Lists by GPU and by port: item i has entries first[i] .. first[i + 1]
  std::span<const std::int32_t> preferred_first, preferred;  // Ports that a GPU prefers
  std::span<const std::int32_t> near_first, near;            // GPUs nearest to a port
  // Paths: GPU to GPU, GPU to port, port to GPU, GPU to NVSwitch, NVSwitch to GPU, row by row
  std::span<const std::int32_t> path_kind, path_first, path_link;
  std::span<const double> path_rate;
  int nvswitch = -1;       // Node of the NVSwitch, or -1
  int chips = 0;           // Number of chips
  int capability_least = 0;
  int processor = 0;       // Maker of the first processor
  bool several = false;    // Other boxes take part
  double most = 0;         // GB/s of the best path
  double total = 0;        // GB/s of all links of a chip
};

struct NcclSearch {
  int pattern = kRing;
  int least = 1, most = 32;  // Number of channels
  bool adds = false;         // Only through ports whose network adds
  int cross_nic = 2;         // NCCL_CROSS_NIC
  std::span<const double> speeds;
};

struct NcclChannels {
  int pattern = kRing;
  int least = 1, most = 32;
  int count = 0;
  float within = 0, across = 0, latency = 0;
  int within_type = 0, across_type = 0;
  int same = 0, cross_nic = 0, hops = 0;
  std::vector<std::int32_t> orders;  // count x GPUs: ranks
  std::vector<std::int32_t> ports;   // count x 2: port in, port out, or -1
};

/// Throws std::invalid_argument where columns do not fit together.
NcclChannels nccl_search(const NcclSystem& system, const NcclSearch& search, const StopFlag& stop = {});

}  // namespace coppice

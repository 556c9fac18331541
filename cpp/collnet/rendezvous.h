// How nodes find each other: a listener whose address travels in NCCL's handle, and one connection for every edge of a tree.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collnet/forest.h"
#include "collnet/sockets.h"

namespace coppice::collnet {

/// What lies in the 128 bytes that NCCL carries from a listener to those who connect.
struct Handle {
  std::uint64_t magic;
  std::uint64_t cookie;  // who connects shows it, so that strangers are turned away
  std::uint64_t stage;   // the connecting side's memory between calls, 0 at first
  unsigned char address[28];

  Address where() const;
};
static_assert(sizeof(Handle) <= kHandleBytes);

struct Listener {
  Descriptor descriptor;
  std::uint64_t cookie = 0;
};

/// Listens at the interface of a device and fills in the handle; throws Failure.
std::unique_ptr<Listener> listen_on(const Interface& interface, void* handle);

/// Reads a handle; throws Failure(kInvalidArgument) for one that is not ours.
Handle read_handle(const void* handle);

/// One edge of a tree at one of its two nodes.
struct Edge {
  int tree = 0;
  int peer = 0;
  Descriptor descriptor;
};

/// Connects this node with its neighbours in all trees, the lower node of an edge calling the higher one. All nodes do so
/// at the same time, and all succeed or all fail. Throws Failure where one is missing at the end of the time, or has
/// another forest.
std::vector<Edge> join_forest(const Forest& forest, int node, void* const* handles, Listener& listener, int seconds);

}  // namespace coppice::collnet

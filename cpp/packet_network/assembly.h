// The nodes of one job of any protocol, joined as a star of workers around a switch or as a tree of two levels of
// switches: what the simulated network and the search drive.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "aggregation/node.h"
#include "aggregation/protocols.h"

namespace coppice::aggregation {

class Assembly {
 public:
  // `groups` says how many workers are below each switch: one number for a star, several for leaves below a root; their
  // sum is the job's workers. Nodes are numbered workers first, then the switches (leaves, then the root), then the
  // server if the protocol has one. Throws std::invalid_argument where the protocol cannot serve the job so.
  Assembly(const Protocol& protocol, Job job, std::span<const int> groups);

  const Job& job() const { return job_; }
  int workers() const { return job_.workers; }
  int size() const { return static_cast<int>(above_.size()); }
  // The next node on the way to the top; kNobody of the top.
  Endpoint above(Endpoint node) const { return above_[static_cast<std::size_t>(node)]; }
  bool is_worker(Endpoint node) const { return node < job_.workers; }
  bool is_server(Endpoint node) const { return server_ != kNobody && node == server_; }
  // Of a switch or server, as it was opened with them.
  std::vector<Endpoint> children(Endpoint node) const;
  // A new node for that place, opened with the job.
  std::unique_ptr<Node> make(Endpoint node) const;

 private:
  const Protocol& protocol_;
  Job job_;
  int leaves_;
  Endpoint root_, server_;
  std::vector<Endpoint> above_;
};

}  // namespace coppice::aggregation

#include "packet_network/assembly.h"

#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace coppice::aggregation {

Assembly::Assembly(const Protocol& protocol, Job job, std::span<const int> groups)
    : protocol_(protocol), job_(std::move(job)), leaves_(static_cast<int>(groups.size())) {
  for (int size : groups) {
    if (size < 1) throw std::invalid_argument("expected a worker or more below each switch, found " + std::to_string(size));
  }
  const int found = std::accumulate(groups.begin(), groups.end(), 0);
  if (found != job_.workers || groups.empty()) {
    throw std::invalid_argument("expected groups of " + std::to_string(job_.workers) + " workers in all, found " +
                                std::to_string(found));
  }
  root_ = job_.workers + (leaves_ > 1 ? leaves_ : 0);
  server_ = protocol.make_server == nullptr ? kNobody : root_ + 1;
  for (int leaf = 0; leaf < leaves_; ++leaf) {
    above_.insert(above_.end(), static_cast<std::size_t>(groups[static_cast<std::size_t>(leaf)]), job_.workers + leaf);
  }
  if (leaves_ > 1) above_.insert(above_.end(), static_cast<std::size_t>(leaves_), root_);
  above_.push_back(server_);
  if (server_ != kNobody) above_.push_back(kNobody);
}

std::vector<Endpoint> Assembly::children(Endpoint node) const {
  std::vector<Endpoint> children;
  if (server_ != kNobody) {
    // A protocol with a server tells workers apart everywhere: a child for each, or nobody where it is not below.
    for (Endpoint w = 0; w < job_.workers; ++w) {
      const bool here = is_server(node) || above(w) == node;
      children.push_back(here ? w : node == root_ ? above(w) : kNobody);
    }
    return children;
  }
  for (Endpoint each = 0; each < size(); ++each) {
    if (above(each) == node) children.push_back(each);
  }
  return children;
}

std::unique_ptr<Node> Assembly::make(Endpoint node) const {
  if (is_worker(node)) return protocol_.make_worker(job_, node, above(node));
  std::unique_ptr<Aggregator> made = is_server(node) ? protocol_.make_server() : protocol_.make_switch(job_.slots);
  made->open(job_, children(node), is_server(node) ? root_ : above(node));
  return made;
}

}  // namespace coppice::aggregation

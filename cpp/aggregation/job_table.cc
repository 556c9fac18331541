#include "aggregation/job_table.h"

#include <stdexcept>
#include <string>

namespace coppice::aggregation {

void require(bool holds, const char* problem) {
  if (!holds) throw std::invalid_argument(problem);
}

JobParties::JobParties(std::span<const Endpoint> children, Endpoint parent)
    : children_(children.begin(), children.end()), parent_(parent) {
  require(!children.empty() && children.size() <= 1024, "expected 1 to 1024 children");
  for (std::size_t i = 0; i < children_.size(); ++i) {
    require(children_[i] != parent && children_[i] >= 0, "expected children other than the parent, by endpoints of 0 and more");
    require(numbers_.emplace(children_[i], static_cast<int>(i)).second, "expected every child once");
  }
}

void Senders::add(std::uint32_t job, const JobParties& parties) {
  std::unordered_map<Endpoint, Sender> all = senders_;
  const auto put = [&](Endpoint endpoint, int child) {
    if (!all.emplace(endpoint, Sender{job, child}).second) {
      throw std::invalid_argument("expected parties of no other job, found endpoint " + std::to_string(endpoint));
    }
  };
  for (std::size_t child = 0; child < parties.size(); ++child) put(parties[child], static_cast<int>(child));
  if (!parties.root()) put(parties.parent(), JobParties::kParent);
  senders_ = std::move(all);
}

void refuse_open(std::uint64_t job) {
  throw std::invalid_argument("job " + std::to_string(job) + " is open already");
}

void refuse_size(std::int64_t wanted, std::int64_t free, const char* what) {
  throw std::invalid_argument("expected at most the " + std::to_string(free) + " free " + what + ", found " +
                              std::to_string(wanted));
}

}  // namespace coppice::aggregation

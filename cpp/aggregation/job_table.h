// The jobs that a switch serves, each with what its protocol keeps for it: how every switch opens, finds and closes them,
// and how it tells who sent a packet.
//
// What a slot is, and whether a job has slots of its own, is the protocol's business.
#pragma once

#include <map>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "aggregation/node.h"

namespace coppice::aggregation {

// Throws std::invalid_argument with `problem` unless `holds`.
void require(bool holds, const char* problem);

// Who takes part in a job at one switch: its children in their order, and its parent if there is one.
class JobParties {
 public:
  static constexpr int kParent = -1, kUnknown = -2;

  JobParties() = default;
  // Throws std::invalid_argument unless there are 1 to 1024 children, all different, and none the parent.
  JobParties(std::span<const Endpoint> children, Endpoint parent);
  // The number of a child, `kParent` or `kUnknown`.
  int find(Endpoint endpoint) const {
    const auto found = numbers_.find(endpoint);
    if (found != numbers_.end()) return found->second;
    return endpoint == parent_ && endpoint != kNobody ? kParent : kUnknown;
  }
  std::span<const Endpoint> children() const { return children_; }
  Endpoint operator[](std::size_t child) const { return children_[child]; }
  // To send to one child, or to the parent.
  std::span<const Endpoint> one(int child) const { return {&children_[static_cast<std::size_t>(child)], 1}; }
  std::span<const Endpoint> above() const { return {&parent_, 1}; }
  // The numbers of the children whose bits are set.
  std::vector<int> numbers_in(std::uint64_t bits) const {
    std::vector<int> found;
    for (std::size_t child = 0; child < size(); ++child) {
      if ((bits >> child & 1) != 0) found.push_back(static_cast<int>(child));
    }
    return found;
  }
  std::size_t size() const { return children_.size(); }
  Endpoint parent() const { return parent_; }
  bool root() const { return parent_ == kNobody; }

 private:
  std::vector<Endpoint> children_;
  Endpoint parent_ = kNobody;
  std::unordered_map<Endpoint, int> numbers_;
};

// The parties of all jobs of a switch whose packets do not name their job: each endpoint is of one job.
class Senders {
 public:
  struct Sender {
    std::uint32_t job;
    int child;  // or JobParties::kParent
  };

  // Throws std::invalid_argument, and adds nobody, where an endpoint is of two jobs or stands twice.
  void add(std::uint32_t job, const JobParties& parties);
  void remove(std::uint32_t job) {
    std::erase_if(senders_, [job](const auto& each) { return each.second.job == job; });
  }
  const Sender* find(Endpoint endpoint) const {
    const auto found = senders_.find(endpoint);
    return found == senders_.end() ? nullptr : &found->second;
  }

 private:
  std::unordered_map<Endpoint, Sender> senders_;
};

// What a switch of any protocol knows of a job.
struct ServedJob {
  std::uint32_t id = 0;
  JobParties parties;
  std::int64_t reserved = 0;  // slots that are this job's alone
};

// Both throw std::invalid_argument, in a sentence.
[[noreturn]] void refuse_open(std::uint64_t job);
[[noreturn]] void refuse_size(std::int64_t wanted, std::int64_t free, const char* what);

// `Service` is a ServedJob; `Key` the number of the job, or what a protocol opens for itself under it.
template <class Service, class Key = std::uint32_t>
class JobTable {
 public:
  JobTable() = default;
  // A table with so many slots of all jobs together; `slots` is what the protocol calls them.
  explicit JobTable(std::int64_t slots, const char* what = "slots") : free_(slots), what_(what) {}

  // Throws std::invalid_argument where the job is open, or needs more slots than there are: before it takes memory.
  void expect_new(Key key, std::int64_t slots = 0) const {
    if (services_.contains(key)) refuse_open(key);
    expect_room(slots);
  }
  void expect_room(std::int64_t slots) const {
    if (slots > free_) refuse_size(slots, free_, what_);
  }
  void open(Key key, Service service, std::int64_t slots = 0) {
    service.reserved = slots;
    free_ -= slots;
    services_.emplace(key, std::move(service));
  }
  // Whether the job was there; its slots are free again.
  bool close(Key key) {
    const auto found = services_.find(key);
    if (found == services_.end()) return false;
    free_ += found->second.reserved;
    services_.erase(found);
    return true;
  }
  Service* find(Key key) {
    const auto found = services_.find(key);
    return found == services_.end() ? nullptr : &found->second;
  }
  const Service* find(Key key) const {
    const auto found = services_.find(key);
    return found == services_.end() ? nullptr : &found->second;
  }
  // Of a job that is open.
  Service& at(Key key) { return services_.at(key); }
  const Service& at(Key key) const { return services_.at(key); }
  // The job that a packet names and which of its parties sent it; no job where the sender is none of them.
  std::pair<Service*, int> sender(Key key, Endpoint from) {
    Service* const service = find(key);
    const int party = service == nullptr ? JobParties::kUnknown : service->parties.find(from);
    return {party == JobParties::kUnknown ? nullptr : service, party};
  }
  std::int64_t free() const { return free_; }
  // The sum of a number of each job.
  template <class Number>
  std::int64_t total(const Number& number) const {
    std::int64_t sum = 0;
    for (const auto& [key, service] : services_) sum += static_cast<std::int64_t>(number(service));
    return sum;
  }
  // In the order of their keys, as pairs of a key and a service.
  auto begin() { return services_.begin(); }
  auto end() { return services_.end(); }
  auto begin() const { return services_.begin(); }
  auto end() const { return services_.end(); }

 private:
  std::map<Key, Service> services_;
  std::int64_t free_ = 0;
  const char* what_ = "slots";
};

}  // namespace coppice::aggregation

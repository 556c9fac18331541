// A session of a job at a switch: its members, and what the switch remembers once it has ended.
//
// A job that is started again is a new session with a higher epoch.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "udp/connection.h"

namespace coppice::udp {

// A limit on how often something may happen, with some of it in stock.
struct Bucket {
  double tokens = -1;  // none were spent yet
  Time at = 0;
  bool spend(double per_second, Time now) {
    const double most = std::max(64.0, per_second / 10);
    if (tokens < 0) tokens = most, at = now;
    tokens = std::min(most, tokens + static_cast<double>(now - at) * 1e-9 * per_second);
    at = now;
    if (tokens < 1) return false;
    tokens -= 1;
    return true;
  }
};

// A worker, or a switch below this one, that joined or may join.
struct Member {
  Address address;
  std::uint64_t nonce = 0;
  bool taken = false, left = false;
  Time heard = 0;
  Bucket packets;
  bool forged = false;  // somebody asked for it with another secret
};

struct Session {
  Join wanted;
  std::uint32_t epoch = 0;
  std::uint64_t nonce = 0;
  Key key;
  bool open = false;
  std::vector<Member> members;
  aggregation::Endpoint first = 0;  // of its members, in their order, then what is above and the switch itself
  std::unique_ptr<Connection> uplink;  // to the switch above, where there is one
  std::uint32_t host = 0;  // of who joined first

  std::uint32_t job() const { return wanted.job.id; }
  std::size_t workers() const { return members.size(); }
  bool all_taken() const { return std::ranges::all_of(members, &Member::taken); }
  bool all_left() const { return std::ranges::all_of(members, &Member::left); }
  std::string name() const { return "job " + std::to_string(job()) + ", epoch " + std::to_string(epoch); }
};

// What is remembered of a session that has ended: no earlier epoch of its job may begin.
struct Tombstone {
  std::uint32_t epoch;
  std::string why;
};

// The tombstones of the last jobs, one a job.
class Tombstones {
 public:
  // Where this epoch of the job is over; nothing where it may still begin.
  const Tombstone* find(std::uint32_t job, std::uint32_t epoch) const {
    const auto found = tombstones_.find(job);
    return found != tombstones_.end() && epoch <= found->second.epoch ? &found->second : nullptr;
  }
  void put(std::uint32_t job, Tombstone tombstone) {
    if (tombstones_.insert_or_assign(job, std::move(tombstone)).second) order_.push_back(job);
    if (order_.size() <= kMost) return;
    tombstones_.erase(order_.front());
    order_.pop_front();
  }

 private:
  static constexpr std::size_t kMost = 1024;
  std::unordered_map<std::uint32_t, Tombstone> tombstones_;
  std::deque<std::uint32_t> order_;
};

}  // namespace coppice::udp

// The parties of in-network aggregation (switches, workers, servers) as state machines without sockets or clocks.
//
// A node is driven by packets and by time, and answers with packets. What drives it decides when a packet arrives and
// whether it is lost, doubled or late: the simulated network of network.h, the search through all interleavings of
// exploration.h, or sockets. So the machine whose every state was searched is the one that runs.
//
// A node never throws on a packet: one that it does not accept changes nothing and is counted under its reason.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace coppice::aggregation {

class StateWriter;  // state.h

// Who a packet comes from or goes to: whatever drives the nodes gives these numbers, 0 or more, one to each party of
// each job.
using Endpoint = std::int32_t;
inline constexpr Endpoint kNobody = -1;

// Nanoseconds of a clock that never goes back.
using Time = std::int64_t;
inline constexpr Time kNever = std::numeric_limits<Time>::max();

using Bytes = std::span<const std::uint8_t>;

// What a node sends while it is driven. The bytes are read before `send` returns.
class Outbox {
 public:
  virtual ~Outbox() = default;
  // One packet to each of `to`.
  virtual void send(std::span<const Endpoint> to, Bytes packet) = 0;
  void send(Endpoint to, Bytes packet) { send(std::span<const Endpoint>(&to, 1), packet); }
  // Bytes that wait on the way to `to`, where that is known: what explicit congestion notification looks at.
  virtual std::int64_t queued(Endpoint) const { return 0; }
};

// What happened to packets. The first group is the ordinary course, the second what was not accepted.
enum class Count : std::size_t {
  received,     // packets driven into the node
  aggregated,   // contributions added
  completed,    // sums completed
  duplicate,    // contributions seen before whose sum is still open: nothing to do
  answered,     // contributions seen before, answered from the copy of the sum
  forwarded,    // passed on without being aggregated
  evicted,      // partial sums pushed out of a slot
  collided,     // slot held by somebody else
  saturated,    // values that stuck at the end of their range
  marked,       // packets marked for congestion
  sent,         // packets sent for the first time
  resent,       // packets sent again
  malformed,    // length, type or fields that are not those of the protocol
  unknown_sender,  // sender is no party of the job
  out_of_range, // slot, worker or position beyond what the job has
  stale,        // of an earlier use of its slot
  future,       // of a later use of its slot than may be open
  bad_tag,      // not sealed with the key of the job
  bad_epoch,    // of an earlier session of the job
  over_quota,   // beyond what the job, or one sender, may have
  number
};
inline constexpr std::size_t kCounts = static_cast<std::size_t>(Count::number);
extern const std::array<std::string_view, kCounts> kCountNames;

struct Counters {
  std::array<std::uint64_t, kCounts> values{};
  std::uint64_t& operator[](Count what) { return values[static_cast<std::size_t>(what)]; }
  std::uint64_t operator[](Count what) const { return values[static_cast<std::size_t>(what)]; }
};

class Node {
 public:
  virtual ~Node() = default;
  // One packet from `from`. Allowed to change nothing but the node and `out`.
  virtual void receive(Endpoint from, Bytes packet, Time now, Outbox& out) = 0;
  // When the node wants to be woken next if no packet comes: `kNever` where it does not.
  virtual Time deadline() const { return kNever; }
  // Called at `deadline()` or later.
  virtual void wake(Time /*now*/, Outbox& /*out*/) {}
  // Of nodes that are searched: a copy, and everything that decides what the node does next. Equal bytes mean equal
  // behaviour; times are written relative to `now`.
  virtual std::unique_ptr<Node> clone() const = 0;
  virtual void save(Time now, StateWriter& state) const = 0;

  const Counters& counters() const { return counters_; }

 protected:
  void count(Count what) { ++counters_[what]; }
  Counters counters_;
};

enum class Element : std::uint8_t { int32, float32 };

// What all parties of a job agree on.
struct Job {
  std::uint32_t id = 0;
  int workers = 1;   // contributions that make a sum
  int slots = 1;     // aggregators of the job in a switch; of all jobs where the protocol shares them
  int values = 256;  // values of one packet
  int window = 1;    // packets (messages, where the protocol counts those) that a worker may have outstanding
  Element element = Element::int32;
  Time timeout = 10'000'000;              // of a worker, before it sends again
  Time give_up_timeout = 30'000'000'000;  // of a worker without any progress
  std::map<std::string, double> settings;  // what only one protocol knows, by name

  // The setting, or `otherwise` where it was not given.
  double setting(const std::string& name, double otherwise) const {
    const auto found = settings.find(name);
    return found == settings.end() ? otherwise : found->second;
  }
};

// A switch, or a box beside one, that adds up. It may serve several jobs, and keeps them apart.
class Aggregator : public Node {
 public:
  // Serves a job from now on. Contributions come from `children`, in the order of the job's workers (or of the
  // switches below, which count as workers); a sum goes to `parent` if there is one and comes back from there.
  // Throws std::invalid_argument, and changes nothing, where the job cannot be served.
  virtual void open(const Job& job, std::span<const Endpoint> children, Endpoint parent) = 0;
  // Gives back what the job holds; nothing happens where the job is not open.
  virtual void close(std::uint32_t job) = 0;
  // Slots that hold something now: 0 when every job is complete or closed.
  virtual std::int64_t slots_in_use() const = 0;
  // Children that a sum of the job waits for, as far as the protocol knows: whom to name when nothing moves.
  virtual std::vector<int> waits_for(std::uint32_t /*job*/) const { return {}; }
};

// One worker's end: adds up one tensor after the other with its fellows.
class Worker : public Node {
 public:
  // Starts the all-reduce of `count` elements of the job's type; `input` and `output` (which may be one memory) stay
  // the caller's and are read and written until `done`. Throws std::invalid_argument while one is under way.
  virtual void begin(const void* input, void* output, std::size_t count, Time now, Outbox& out) = 0;
  virtual bool done() const = 0;
  // Why the worker gave up, in one sentence; empty while it has not.
  virtual const std::string& failure() const { return failure_; }

 protected:
  std::string failure_;
};

}  // namespace coppice::aggregation

// NetAgg: boxes beside switches that merge the partial results of applications on their way to a master.
//
// After "NetAgg: Using Middleboxes for Application-Specific On-path Aggregation in Data Centres" (CoNEXT 2014), whose
// design this file follows: shims at the workers send each request to the first box on the path, a box merges what its
// children have for a request and passes on one result, several trees share the requests of an application by their
// hash, a box divides its time between applications by weights and measured task times, children of a box that died
// send again to the next one, and a box that waited long enough for a straggler passes on what it has and the late
// result separately. The packet format, the streams in place of TCP and what follows are ours:
//   * a message names the workers whose values are in it, as bits. What overlaps with what is merged already is dropped,
//     so nothing is counted twice, whatever was sent again by whom; a worker whose request stays without an answer
//     sends it once more for the master alone ("alone"), which boxes pass on unmerged, so that every sum completes.
//   * a message also names the workers that its sender stands for, once it knows them: a box is complete when it has
//     them all from all of its children.
//   * the root (a box or the master, both are this class) sends the result back down the tree and keeps copies for
//     those who ask again: a worker has at most half as many requests outstanding as a box has places, and at most 64.
//     Where a child's stream is full, since its acknowledgements were lost, the result follows when there is room.
//
// Message, big-endian: kind 1 (1 partial, 2 result), operation 1, flags 1 (bit 0: alone), zero 1, application 4,
// sequence 4, request 4, contributors 4, members 4 (0: not known yet), number of values 2, zero 2, values of 4 bytes.
// Acknowledgement: kind 1 (3), flags 1 (bit 0: send again what was refused), zero 2, application 4, first missing
// packet 4, which beyond it are there 8. Heartbeat: kind 1 (4), zero 3, application 4.
//
// Settings of a job: operation (0 sum, 1 minimum, 2 maximum, 3 the `k` largest of each chunk), k, sequence (first sequence
// number); of a box also members (bits of the workers below, if it shall not learn them), standby (how many at the end
// of the children only come when their own box has died), next and master (endpoints that take over from a dead parent,
// in this order), heartbeat (ns between signs of life; 0 none), dead (ns of silence of a dead box; 4 heartbeats),
// straggler (ns that a box waits for the rest of a request; 0 for ever), rate (bytes per second that the box merges for
// this application; 0 at once), latency (ns of a task), weight (share of the box). Of a worker: next, master, heartbeat
// and dead as above; trees and above_1, next_1, ... (boxes of further trees), again (ns before it sends alone; a quarter
// of its give-up timeout, and 1024 time-outs at most).
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aggregation/job_table.h"
#include "stream_trees/combine.h"
#include "stream_trees/fair_shares.h"
#include "stream_trees/stream.h"

namespace coppice::aggregation {

namespace netagg {

inline constexpr std::size_t kHeadBytes = 28, kAcknowledgementBytes = 20, kHeartbeatBytes = 8;
inline constexpr std::uint8_t kPartial = 1, kResult = 2, kAcknowledgement = 3, kHeartbeat = 4;

// How values of two messages become one. Both hold at most `most` values.
struct Merge {
  enum class Kind : std::uint8_t { sum, minimum, maximum, largest };
  Kind kind;
  Element element;
  std::size_t most;
  // Whether lists of these lengths can be merged.
  bool fits(std::size_t kept, std::size_t arrived) const { return kind == Kind::largest || kept == arrived; }
  void operator()(std::vector<std::uint32_t>& kept, const std::uint8_t* arrived, std::size_t count) const;
  // What one worker has for a chunk of its tensor.
  void prepare(std::vector<std::uint32_t>& values) const;
};

struct Options {
  explicit Options(const Job& job);
  Merge merge;
  std::uint32_t first, members, places;
  int standby;
  int outstanding;  // requests of a worker: at most half of the places
  int window;       // of streams
  std::vector<Endpoint> fallbacks;
  Time heartbeat, dead, straggler, latency, again;
  std::int64_t rate, weight;
  std::size_t most_bytes;
};

struct Head {
  std::uint8_t kind, operation, flags, zero;
  std::uint32_t application, sequence, request, contributors, members;
  std::uint16_t count, last_zero;
  bool alone() const { return flags != 0; }
};
Head read_head(const std::uint8_t* packet);
void write_head(std::uint8_t* packet, const Head& head);
bool valid(const Head& head, Bytes packet, const Options& options);
std::uint32_t tree_of(std::uint32_t request, std::uint32_t trees);
void send_acknowledgement(Endpoint to, std::uint32_t application, const ReceiveWindow& window, bool again, Outbox& out);

// The way up: the parent and those that take over from it, and the stream to the one that has the place now.
class Uplink {
 public:
  Uplink(const Job& job, const Options& options, Endpoint parent, std::vector<Endpoint> fallbacks);
  bool exists() const { return !uppers_.empty(); }
  SendWindow& stream() { return stream_; }
  const SendWindow& stream() const { return stream_; }
  Endpoint now_at() const { return uppers_[at_].first; }
  // The window of what an upper node sent, present or former; nullptr for others.
  ReceiveWindow* window_of(Endpoint from);
  void heard(Endpoint from, Time now);
  // When the upper node counts as dead, if it is watched and something is awaited from it.
  Time suspicion(bool awaiting) const;
  void watch(Time now) { heard_ = now; }
  // Goes over to the next upper node, with a new stream.
  void fail_over(Time now);
  void save(Time now, StateWriter& state) const;

 private:
  SendWindow fresh_stream() const;
  Job job_;
  std::vector<std::pair<Endpoint, ReceiveWindow>> uppers_;
  std::size_t at_ = 0, most_bytes_;
  std::uint32_t first_;
  Time dead_, heard_ = 0;
  SendWindow stream_;
};

}  // namespace netagg

class NetAgg final : public Aggregator {
 public:
  // `slots`: requests of all applications that are merged or kept at a time.
  explicit NetAgg(int slots) : applications_(slots) {}
  void receive(Endpoint from, Bytes packet, Time now, Outbox& out) override;
  Time deadline() const override;
  void wake(Time now, Outbox& out) override;
  std::unique_ptr<Node> clone() const override { return std::make_unique<NetAgg>(*this); }
  void save(Time now, StateWriter& state) const override;
  void open(const Job& job, std::span<const Endpoint> children, Endpoint parent) override;
  void close(std::uint32_t job) override;
  std::int64_t slots_in_use() const override;
  std::vector<int> waits_for(std::uint32_t job) const override;

 private:
  struct Child {
    Endpoint at;
    ReceiveWindow window;
    SendWindow down;
    std::uint32_t members = 0;  // the workers it stands for, once it has said so
    bool standby = false, refused = false;
    bool listens = true;  // results are for it: one on standby has to have sent something
    std::deque<std::uint32_t> owed = {};  // requests whose results had no room in its stream
  };
  struct Slot {
    enum class State : std::uint8_t { empty, open, done } state = State::empty;
    std::uint32_t request = 0, merged = 0, sent = 0;  // workers whose values are in, and those passed on
    std::vector<std::uint32_t> values;
  };
  struct Application : ServedJob {
    Application(const Job& job, const netagg::Options& with, JobParties of);
    Slot& slot(std::uint32_t request) { return slots[request & (options.places - 1)]; }
    std::uint32_t members() const;  // the workers below, 0 while not known
    std::uint32_t members_of(std::uint32_t contributors) const;
    netagg::Options options;
    std::vector<Child> children;
    netagg::Uplink up;
    std::vector<Slot> slots;
    std::int64_t open = 0, asked = 0;  // slots that are open, and those of them that went up
    std::deque<std::pair<Time, std::uint32_t>> stragglers;  // when to stop waiting for a request
    std::deque<std::vector<std::uint8_t>> outgoing;         // messages to the parent without room
    std::deque<std::pair<std::size_t, std::vector<std::uint8_t>>> tasks;  // child, message: not merged yet
    std::size_t asked_child = 0;  // that was asked last to send again what had been refused
    FairShare share;
    Time beat = kNever;
  };
  void from_child(Application& app, std::size_t child, Bytes packet, Time now, Outbox& out);
  void from_above(Application& app, ReceiveWindow& window, Endpoint from, Bytes packet, Time now, Outbox& out);
  void acknowledged(Application& app, Endpoint from, Bytes packet, Time now, Outbox& out);
  void merge(Application& app, std::size_t child, Bytes packet, Time now, Outbox& out);
  void complete(Application& app, Slot& slot, Time now, Outbox& out);
  void pass_on(Application& app, Slot& slot, Time now, Outbox& out);
  void send_up(Application& app, Bytes message, Time now, Outbox& out);
  void put_up(Application& app, Bytes message, Time now, Outbox& out);
  void send_result(Application& app, Child& child, const Slot& slot, Time now, Outbox& out);
  void pay(Application& app, Child& child, Time now, Outbox& out);
  void proceed(Application& app, Time now, Outbox& out);
  void start_task(Time now);
  void finish_task(Time now, Outbox& out);
  void fail_over(Application& app, Time now, Outbox& out);

  JobTable<Application> applications_;
  std::int64_t clock_ = 0;  // virtual time of the application that was served last
  Time task_start_ = 0, task_end_ = kNever;
  std::uint32_t served_ = 0;  // the application whose first task runs until `task_end_`
  std::vector<std::uint8_t> message_;
};

class NetAggWorker final : public Worker {
 public:
  NetAggWorker(const Job& job, int index, Endpoint above);
  void begin(const void* input, void* output, std::size_t count, Time now, Outbox& out) override;
  bool done() const override { return !active_ && failure_.empty(); }
  void receive(Endpoint from, Bytes packet, Time now, Outbox& out) override;
  Time deadline() const override;
  void wake(Time now, Outbox& out) override;
  std::unique_ptr<Node> clone() const override { return std::make_unique<NetAggWorker>(*this); }
  void save(Time now, StateWriter& state) const override;

 private:
  struct Request {
    bool answered = true;
    Time asked = 0;
  };
  netagg::Uplink& tree(std::uint32_t request) {
    return trees_[netagg::tree_of(request, static_cast<std::uint32_t>(trees_.size()))];
  }
  Request& outstanding(std::uint32_t request) { return requests_[request & (requests_.size() - 1)]; }
  void fill(Time now, Outbox& out);
  void ask(std::uint32_t request, bool alone, Time now, Outbox& out);
  void result(const netagg::Head& head, Bytes packet, Time now, Outbox& out);
  bool awaiting(std::size_t tree) const;

  Job job_;
  netagg::Options options_;
  int index_;
  std::vector<netagg::Uplink> trees_;
  std::vector<Request> requests_;
  std::uint32_t first_request_ = 0, base_ = 0, next_ = 0;  // of this tensor, first without answer, next to be asked
  std::uint32_t chunks_ = 0;                               // of this tensor
  bool active_ = false;
  const std::uint8_t* input_ = nullptr;
  std::uint8_t* output_ = nullptr;
  std::size_t count_ = 0;
  Time progress_ = 0;
  std::vector<std::uint32_t> values_;
};

}  // namespace coppice::aggregation

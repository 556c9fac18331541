// SwitchAgg: pairs of keys and values combined by the switches of a tree.
//
// After "SwitchAgg: A Further Step Towards In-Network Computing" (FPGA 2019, arXiv 1904.04024), whose idea this file
// implements: the analyser of a switch hands each pair to the processing engine for keys of its length, an engine
// combines by key in a small memory in front of a large one (pair_table.h), and what has no room in either is passed
// to the parent as it is. Once all children have said that they are at the end, the memories are emptied to the parent.
// The packet format and what follows are ours:
//   * links may lose, double and reorder packets. Every link is a stream (stream.h) in each direction; a packet is taken
//     at most once, so no pair is combined twice, and the end of a child counts once everything before it is there.
//   * the root has no parent and multicasts to its children; switches pass results down under the same sequence
//     numbers, and acknowledge what all of their children have. Workers combine what they get in order of the sequence, so they hold the same bits.
//   * a worker's input is a row of rounds, one after the other; each ends with a flush. So a tensor longer than the
//     memories is added up in pieces that fit.
//
// Packet, big-endian: kind 1 (1 pairs to the parent, 2 pairs to the children, 3 acknowledgement), operation 1, flags 1
// (bit 0: end of the round), zero 1, tree (job id) 4, sequence 4, acknowledged 4 (kind 1: first packet from the parent
// that is missing; else 0), round 2, number of pairs 2; then each pair: length of the key 1 (1 to 64), key, `lanes`
// values of 4 bytes.
// Acknowledgement: kind 1, flags 1 (bit 0: send again what was refused), child whose end is awaited + 1, or 0: 2, tree
// 4, first missing packet 4, which beyond it are there 8 (bit i: packet first missing + 1 + i).
//
// Settings of a job: operation (0 sum, 1 minimum, 2 maximum), lanes (elements of a value; all of a packet's by default),
// key_bytes (longest key, 4 to 64; there is an engine for lengths up to each of 4, 8, 16, 32, 64 as far as needed),
// back (entries of the large memory of an engine; 16 times the `slots` of the small one by default), round (pairs of
// one round of a tensor; as many as one engine's large memory holds by default), sequence (first sequence number).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "aggregation/job_table.h"
#include "stream_trees/pair_table.h"
#include "stream_trees/stream.h"

namespace coppice::aggregation {

namespace switchagg {

inline constexpr std::size_t kHeadBytes = 20;
inline constexpr std::size_t kAcknowledgementBytes = 20;
inline constexpr std::uint8_t kUp = 1, kDown = 2, kAcknowledgement = 3;

// The settings of a job, checked; throws std::invalid_argument.
struct Options {
  explicit Options(const Job& job);
  Operation operation;
  int lanes, key_bytes, engines, front, back, most_pairs, round;
  int window;  // of streams, at most 64
  std::uint32_t first;
  std::size_t most_bytes;
};

struct Head {
  std::uint8_t kind, operation, flags, zero;
  std::uint32_t tree, sequence, acknowledged;
  std::uint16_t round, count;
  bool end() const { return (flags & 1) != 0; }
};
Head read_head(const std::uint8_t* packet);
void write_head(std::uint8_t* packet, const Head& head);
// Whether a packet of pairs is one of the job: fields, lengths, end.
bool valid(const Head& head, Bytes packet, const Options& options);
// Calls each(key, values) for the pairs of a valid packet.
template <class Each>
void for_pairs(Bytes packet, std::uint16_t count, int lanes, Each&& each) {
  const std::uint8_t* at = packet.data() + kHeadBytes;
  for (int pair = 0; pair < count; ++pair) {
    const Bytes key(at + 1, at[0]);
    each(key, key.data() + key.size());
    at += 1 + key.size() + 4 * static_cast<std::size_t>(lanes);
  }
}

struct AcknowledgementFields {
  bool again;
  std::uint16_t awaited;
  std::uint32_t tree, next;
  std::uint64_t beyond;
};
void send_acknowledgement(Endpoint to, const AcknowledgementFields& fields, Outbox& out);
AcknowledgementFields read_acknowledgement(const std::uint8_t* packet);

}  // namespace switchagg

class SwitchAgg final : public Aggregator {
 public:
  // `slots`: entries of the small memories of all engines and jobs together.
  explicit SwitchAgg(int slots) : trees_(slots) {}
  void receive(Endpoint from, Bytes packet, Time now, Outbox& out) override;
  Time deadline() const override;
  void wake(Time now, Outbox& out) override;
  std::unique_ptr<Node> clone() const override { return std::make_unique<SwitchAgg>(*this); }
  void save(Time now, StateWriter& state) const override;
  void open(const Job& job, std::span<const Endpoint> children, Endpoint parent) override;
  void close(std::uint32_t job) override { trees_.close(job); }
  std::int64_t slots_in_use() const override;
  std::vector<int> waits_for(std::uint32_t job) const override;

 private:
  struct Child {
    Endpoint at;
    ReceiveWindow window;
    std::uint32_t end = 0;  // sequence number of the packet that ends the round
    bool ending = false;    // that packet is there
    bool complete = false;  // and all before it
    bool refused = false;   // something was refused for want of room
    bool early = false;     // something was refused as it belongs to a later round
  };
  struct Tree : ServedJob {
    Tree(const Job& job, const switchagg::Options& with, JobParties of);
    SendWindow& top() { return parties.root() ? down : up; }
    switchagg::Options options;
    std::vector<Child> children;
    ReceiveWindow from_parent;
    std::uint32_t answered;  // up to where the parent's packets were acknowledged
    SendWindow up, down;
    std::vector<PairTable> engines;
    std::vector<std::uint8_t> filling;  // the packet to the parent, or of the root to its children, that is being filled
    std::size_t filled = switchagg::kHeadBytes;
    int pairs = 0;
    std::uint16_t round = 0;
    int complete = 0;        // children
    std::size_t draining = 0;  // engine whose memories are emptied, while all children are complete
    std::size_t asked = 0;  // child that was asked last to send again what had been refused
  };
  void from_child(Tree& tree, std::size_t child, Bytes packet, Time now, Outbox& out);
  void from_parent(Tree& tree, Bytes packet, Time now, Outbox& out);
  void acknowledged(Tree& tree, Endpoint from, Bytes packet, Time now, Outbox& out);
  void answer_child(Tree& tree, Child& child, bool again, Outbox& out);
  void answer_parent(Tree& tree, Outbox& out);
  void emit(Tree& tree, const Pair& pair, Time now, Outbox& out);
  void send_filled(Tree& tree, bool end, Time now, Outbox& out);
  void proceed(Tree& tree, Time now, Outbox& out);

  JobTable<Tree> trees_;
};

// One end of a tree: sends pairs up, gets the combined pairs of all workers.
class SwitchAggWorker : public Worker {
 public:
  SwitchAggWorker(const Job& job, int index, Endpoint above);
  // A tensor: the key of a pair is the place of its block of `lanes` elements in the tensor.
  void begin(const void* input, void* output, std::size_t count, Time now, Outbox& out) override;
  // One round of any pairs; the result is in `combined()` once done. Throws std::invalid_argument for keys of a length
  // that the job does not have, values that are not of `lanes` elements, or while something is under way.
  using Pairs = std::vector<std::pair<std::string, std::vector<std::uint32_t>>>;
  void begin_pairs(Pairs pairs, Time now, Outbox& out);
  const std::unordered_map<std::string, std::vector<std::uint32_t>>& combined() const { return combined_; }
  bool done() const override { return !active_ && failure_.empty(); }
  void receive(Endpoint from, Bytes packet, Time now, Outbox& out) override;
  Time deadline() const override;
  void wake(Time now, Outbox& out) override;
  std::unique_ptr<Node> clone() const override { return std::make_unique<SwitchAggWorker>(*this); }
  void save(Time now, StateWriter& state) const override;

 private:
  void start(Time now, Outbox& out);
  void start_round();
  void fill(Time now, Outbox& out);
  void put_pair(std::uint8_t*& at) const;
  void deliver(Time now, Outbox& out);
  void deliver_packet(Bytes packet);
  void finish_round();

  Job job_;
  switchagg::Options options_;
  int index_;
  Endpoint above_;
  SendWindow up_;
  ReceiveWindow down_;
  std::uint32_t delivered_;                         // next result packet to be looked into
  std::vector<std::vector<std::uint8_t>> waiting_;  // result packets by sequence number, kMostWindow of them
  bool active_ = false, tensor_ = true;
  const std::uint8_t* input_ = nullptr;
  std::uint8_t* output_ = nullptr;
  std::size_t count_ = 0;                                    // elements of the tensor
  std::size_t total_ = 0, begun_ = 0, until_ = 0, given_ = 0;  // pairs: of all rounds, before and after this one, sent
  bool end_sent_ = true;
  std::uint16_t round_ = 0;
  std::vector<std::uint32_t> sums_;  // of the blocks of this round
  std::vector<std::uint8_t> have_;
  Pairs pairs_;
  std::unordered_map<std::string, std::vector<std::uint32_t>> combined_;
  Time progress_ = 0;
  bool probed_ = false;
  std::uint16_t awaited_ = 0;
};

}  // namespace coppice::aggregation

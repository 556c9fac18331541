// SwitchML: a switch that aggregates, slot by slot, a window of packets that its workers keep outstanding.
//
// Sources: Sapio et al., "Scaling Distributed Machine Learning with In-Network Aggregation" (NSDI'21), sections 3.4 to
// 3.7, and the published programs of p4lang/p4app-switchML, whose packets and scenarios these are.
//
// A packet is 10 bytes and then values, int32 in network order:
//   0     type 1 in the high four bits; how many values in the low ones (1: 64, 3: 256; 4, ours: as the job says)
//   1     low eight bits of the job
//   2-5   packet id, little-endian: packets are numbered on from tensor to tensor, modulo 2^32
//   6-7   pool index, big-endian: bit 15 is the set (version), bits 0 to 13 the slot
//   8-9   exponents, int8 each, of which the switch keeps the greatest. Of float32 the first announces that of the block
//         `lead` packets on, and the second (ours) is 1 where that block has a value that is infinite or NaN
//
// Each slot has two sets, used in turn: while one is summed the other keeps the last sum for those who missed it. That
// suffices, for a worker uses a set again only once the sum of the other has reached it, so no worker is two ahead of
// another. The published switch tells a retransmission from a new packet by this order alone, so it takes a duplicate
// that was long on its way for a new contribution. Here each set keeps the id of its packets, and the switch accepts
//   the id of either set:              adds it, has it already, or answers from the copy;
//   the next id, a round of slots on:  opens the other set, once the latest sum is complete (then nobody needs the copy
//                                      of the one before it any more, for all have sent what follows it);
//   no other:                          stale, or of the future.
// Ids are compared exactly, and by serial arithmetic (RFC 1982) only to name the fault, so they may wrap around.
//
// A restarted worker or switch is a new job, with an id or a setting `first_packet` of its own, or it would take part in
// the sums of the earlier one.
//
// Settings of a job: `first_packet` (0): id of the first packet of slot 0. `adaptive_timeout` (0): 1 lets a worker learn
// its time-out, at most `Job::timeout`, from the times its results take. `doubled_after` (100): time-outs without a
// result between doublings of the time-out, 0 for never. `published_rule` (0): 1 makes the switch go by the order of
// packets alone, as the published one does, so that what that costs can be seen.
//
// FPISA (Yuan et al., "Unlocking the power of inline floating-point operations on programmable switches", NSDI'22) is the
// same switch with an adder of floats (numerics/fpisa.h): float32 travels as it is, without exponents and their window
// ahead. Of its jobs: `approximate` (0): 1 for what today's pipelines can do. Sums that left their register count as
// saturated, and those lost to a larger value as evicted; the last bits of a sum depend on the order of arrival.
#pragma once

#include "aggregation/job_table.h"
#include "numerics/fpisa.h"

namespace coppice::aggregation {

struct SwitchMlPacket {
  static constexpr std::size_t kHead = 10;
  static constexpr int kMostValues = 2048;  // of a packet, which a jumbo frame carries; 360 fit into an ordinary one
  static constexpr int kMostWorkers = 32;  // of one switch
  static constexpr int kMostSlots = 8192;  // of one job

  std::uint8_t kind = 0, job = 0;
  std::uint32_t id = 0;
  bool set = false;
  int slot = 0;  // beyond every job's where bit 14 is set
  std::array<std::int8_t, 2> exponents{};

  // Throws std::invalid_argument where no switch or worker can serve the job.
  static void check(const Job& job);
  static std::uint32_t first_id(const Job& job);
  // What a packet with another id than expected is counted as.
  static Count wrong_id(std::uint32_t expected, std::uint32_t found);
  static std::uint8_t kind_of(int values);
  static std::size_t size_of(int values) { return kHead + 4 * static_cast<std::size_t>(values); }
  static SwitchMlPacket read(const std::uint8_t* from);
  void write(std::uint8_t* to) const;
  static std::string describe(Bytes packet);
};

class SwitchMlSwitch final : public Aggregator {
 public:
  struct Slot {
    std::array<std::uint32_t, 2> seen{};     // bit w: child w takes part in the set and has not gone on to the other
    std::array<std::uint32_t, 2> id{};       // of the packets of the set
    std::array<std::uint8_t, 2> missing{};   // contributions that the set still waits for
    std::array<bool, 2> settled{};           // the copy is the sum of all workers, of other switches as well
    std::array<std::array<std::int8_t, 2>, 2> exponents{};
    std::int8_t latest = -1;                 // set that was opened last
    bool busy() const { return latest >= 0 && !settled[static_cast<std::size_t>(latest)]; }
  };

  enum class Adder : std::uint8_t { integers, fpisa };
  explicit SwitchMlSwitch(int slots, Adder adder = Adder::integers) : jobs_(slots), adder_(adder) {}

  void open(const Job& job, std::span<const Endpoint> children, Endpoint parent) override;
  void close(std::uint32_t job) override;
  std::int64_t slots_in_use() const override;
  void receive(Endpoint from, Bytes packet, Time now, Outbox& out) override;
  std::unique_ptr<Node> clone() const override { return std::make_unique<SwitchMlSwitch>(*this); }
  void save(Time now, StateWriter& state) const override;

  // For tests, and for who asks which worker a job waits for.
  const Slot& slot(std::uint32_t job, int slot) const { return jobs_.at(job).slots[static_cast<std::size_t>(slot)]; }
  std::span<const std::int32_t> values(std::uint32_t job, int slot, int set) const;
  std::vector<int> waits_for(std::uint32_t job) const override;

 private:
  struct Service : ServedJob {
    std::uint32_t first = 0;
    bool published_rule = false;
    int values = 0;
    std::uint8_t kind = 0;
    std::vector<Slot> slots;
    std::vector<std::int32_t> sums;  // [slot][set][value]
    numerics::FpisaForm form;
    std::vector<std::int32_t> floats;  // [slot][set][exponents, mantissas][value], of FPISA
    std::vector<std::uint8_t> reply;

    std::int32_t* at(int slot, bool set) {
      return sums.data() + (2 * static_cast<std::size_t>(slot) + set) * static_cast<std::size_t>(values);
    }
  };

  void contribute(Service& service, int child, const SwitchMlPacket& head, Bytes packet, Outbox& out);
  void settle(Service& service, const SwitchMlPacket& head, Bytes packet, Outbox& out);
  void contribute_as_published(Service& service, int child, const SwitchMlPacket& head, Bytes packet, Outbox& out);
  void add(Service& service, int child, const SwitchMlPacket& head, Bytes packet, Outbox& out);
  void add_float(Service& service, const SwitchMlPacket& head, const std::uint8_t* from, bool first, bool last);
  void send(Service& service, int slot, bool set, std::span<const Endpoint> to, Outbox& out);

  JobTable<Service> jobs_;
  Senders senders_;
  Adder adder_;
};

class SwitchMlWorker final : public Worker {
 public:
  SwitchMlWorker(const Job& job, int index, Endpoint above);

  void begin(const void* input, void* output, std::size_t count, Time now, Outbox& out) override;
  bool done() const override { return remaining_ == 0; }
  void receive(Endpoint from, Bytes packet, Time now, Outbox& out) override;
  Time deadline() const override;
  void wake(Time now, Outbox& out) override;
  std::unique_ptr<Node> clone() const override { return std::make_unique<SwitchMlWorker>(*this); }
  void save(Time now, StateWriter& state) const override;

 private:
  // Packets of a tensor are numbered from 0; packet i carries block i - lead_ and announces the exponent of block i.
  struct Slot {
    std::int64_t packet = -1;  // of this tensor, that was sent last
    Time sent = 0;
    std::int32_t before = -1, after = -1;  // among those under way, in the order of their sending
    bool set = false;                      // that the next packet takes
    bool under_way = false, again = false;
  };

  std::size_t slot_of(std::int64_t packet) const {
    return static_cast<std::size_t>((first_slot_ + packet) % static_cast<std::int64_t>(slots_.size()));
  }
  bool has_returned(std::int64_t packet) const;
  void offer(std::int64_t packet, Time now, Outbox& out);
  void send(std::int64_t packet, Time now, Outbox& out);
  void write(std::int64_t packet, bool set, Outbox& out);
  void take(std::int64_t packet, const SwitchMlPacket& head, Bytes bytes);
  void learn(Time took);
  Time timeout() const;
  void unlink(Slot& slot);
  void enqueue(std::size_t slot);
  void fail(std::string why);

  Job job_;
  int index_;
  Endpoint above_;
  Time doubled_after_;
  bool adaptive_;

  const std::uint8_t* input_ = nullptr;
  std::uint8_t* output_ = nullptr;
  std::int64_t count_ = 0, blocks_ = 0, lead_ = 0;
  std::int64_t packets_ = 0, remaining_ = 0;  // of the tensor under way
  std::uint32_t first_id_;                    // of the tensor under way
  std::int64_t first_slot_ = 0;

  std::vector<Slot> slots_;
  std::int32_t oldest_ = -1, newest_ = -1;  // under way
  int under_way_ = 0;
  std::vector<std::int64_t> ready_;  // ring: packets that wait for the window
  std::size_t ready_at_ = 0, ready_size_ = 0;
  std::vector<std::int8_t> exponents_;  // agreed, of block i at i modulo lead_
  Time progress_ = 0, smooth_ = 0, spread_ = 0;
  std::int64_t silent_ = 0;  // time-outs since the last result
  std::vector<std::uint8_t> packet_;
  std::vector<std::int32_t> block_;
};

}  // namespace coppice::aggregation

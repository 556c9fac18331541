// The switch of ATP (Lao et al., NSDI 2021): aggregator slots that all jobs share, first come, first served.
//
// A slot is held by the tag (application, key) of whoever finds it free. A contribution that finds its slot held by
// another tag goes on to the server, marked. The sum of all contributions goes to the server, too: its result comes
// back through the switch, frees the slot and is multicast. A contribution sent again takes what its slot has along
// to the server and frees the slot. So whatever is lost, the server gets every contribution, alone or in a sum whose
// bitmap tells what is in it.
//
// Beyond the published switch: a chunk whose result passed takes no slot again, and a slot left with a chunk that was
// answered is anybody's.
//
// Two levels: a switch is opened with one child for every worker of the job, in order; one endpoint may stand several
// times (a switch below), and kNobody for a worker that is elsewhere. It sums up the workers it reaches.
#pragma once

#include <vector>

#include "aggregation/job_table.h"
#include "atp/atp_packet.h"

namespace coppice::aggregation {

class AtpSwitch final : public Aggregator {
 public:
  // At most 65,536 slots.
  explicit AtpSwitch(int slots);
  // Settings: `mark_bytes`, from how many bytes waiting on a link its packets are marked (1,000 cells of 80 bytes).
  void open(const Job& job, std::span<const Endpoint> children, Endpoint parent) override;
  void close(std::uint32_t job) override;
  std::int64_t slots_in_use() const override;
  std::vector<int> waits_for(std::uint32_t job) const override;
  void receive(Endpoint from, Bytes packet, Time now, Outbox& out) override;
  std::unique_ptr<Node> clone() const override { return std::make_unique<AtpSwitch>(*this); }
  void save(Time now, StateWriter& state) const override;

 private:
  struct Slot {
    bool taken = false;
    std::uint8_t flags = 0;  // that stick: congestion and collision
    std::uint16_t application = 0;
    std::uint32_t bitmap = 0;
    std::uint32_t length = 0;
    std::uint64_t key = 0;
    std::array<std::int32_t, atp::kValues> values{};

    bool holds(const atp::Header& header) const {
      return taken && application == header.application && key == header.key;
    }
  };
  struct Served : ServedJob {
    int workers = 0;
    atp::Ways ways;
    Endpoint parent = kNobody;
    std::int64_t mark_bytes = 0;
    atp::Answered answered{};
  };

  void up(Served& job, atp::Header& header, Bytes packet, Outbox& out);
  void down(Served& job, atp::Header& header, Bytes packet, Outbox& out);
  void evict(const Served& job, Slot& slot, atp::Header& header, Bytes packet, Outbox& out);
  void add(Slot& slot, Bytes packet, bool first);
  bool abandoned(const Slot& slot, const atp::Header& by) const;
  void send_up(const Served& job, atp::Header header, const Slot& slot, Outbox& out);
  void forward(const Served& job, const atp::Header& header, Bytes packet, Outbox& out);

  std::vector<Slot> slots_;
  JobTable<Served> jobs_;
  atp::Packet scratch_{};
};

}  // namespace coppice::aggregation

// The switch of NetReduce (Liu et al., arXiv 2009.09736; ASPLOS 2023): adds up what passes between hosts.
//
// A packet of a flow waits until the packets of all flows with the same message and position are there; then each goes
// on to where it was going, with the sum in place of its values. The hosts' acknowledgements pass untouched, and what
// they send again, since something was lost before or after the switch, gets the sum that is kept here.
//
// A worker may send message m + window once it has received message m. So the sums that are not complete are at most
// one window, and those that a worker may still ask for one more: the switch keeps two windows of messages, the
// contributions of one (only those of floats, which it adds in the order of the workers), and refuses what is beyond.
//
// Leaf and spine: a leaf (a switch with a parent) sends the sum of its hosts up, as one stream, and holds their packets
// until the sum of all comes back; its hosts are a ring of their own. A child that is a switch gets the sum itself.
#pragma once

#include <vector>

#include "aggregation/job_table.h"
#include "netreduce/netreduce_packet.h"

namespace coppice::aggregation {

class NetReduceSwitch final : public Aggregator {
 public:
  // A switch that keeps so many packets' sums; a job takes two windows of messages (rounded up to a power of two).
  explicit NetReduceSwitch(int slots);
  void open(const Job& job, std::span<const Endpoint> children, Endpoint parent) override;
  void close(std::uint32_t job) override;
  // Packets that wait for their fellows: at most a window of messages of each job.
  std::int64_t slots_in_use() const override;
  void receive(Endpoint from, Bytes bytes, Time now, Outbox& out) override;
  std::unique_ptr<Node> clone() const override { return std::make_unique<NetReduceSwitch>(*this); }
  std::vector<int> waits_for(std::uint32_t job) const override;
  void save(Time now, StateWriter& state) const override;

 private:
  enum class State : std::uint8_t { open, summed, final };  // summed: what the hosts gave; final: what they get
  struct Message {
    bool there = false;
    std::uint32_t number = 0;
    std::uint16_t packets = 0;
    std::uint16_t final = 0;   // packets that are
    std::uint64_t started = 0;   // children whose first packet is known
    std::uint64_t switches = 0;  // of those, the switches
  };
  struct Slot {
    State state = State::open;
    std::uint16_t values = 0;
    std::uint64_t bitmap = 0;
  };
  struct Served : ServedJob {
    std::size_t values = 0, packets = 0;   // at most, of a packet and of a message
    std::uint32_t window = 0, kept = 0;    // messages; powers of two but the window
    std::size_t contributions = 0;         // messages whose contributions of floats are held; 0 where integers add up
    std::int64_t held = 0;
    std::vector<Message> messages;         // by number modulo `kept`
    std::vector<std::uint32_t> starts;     // number of the first packet, by message and child
    std::vector<std::int32_t> flows;       // by child, the number it calls itself; -1 before its first packet
    std::vector<std::uint32_t> recent;     // by child, where its last packet was found
    std::vector<Slot> slots;               // by message and position
    std::vector<std::uint32_t> sums;       // by slot
    std::vector<std::uint32_t> each;       // by contributing message and position, then child
  };
  struct Place {
    std::size_t message;   // in `messages`
    std::size_t position;  // of the packet
  };

  void data(Served& job, int child, const netreduce::Packet& packet, Outbox& out);
  void acknowledgement(Served& job, int child, const netreduce::Packet& packet, Bytes bytes, Outbox& out);
  void down(Served& job, const netreduce::Packet& packet, Outbox& out);
  bool find(Served& job, int child, const netreduce::Packet& packet, Place& place);
  bool find_by_header(Served& job, int child, const netreduce::Packet& packet, Place& place);
  bool find_by_number(Served& job, int child, const netreduce::Packet& packet, Place& place);
  bool overlaps(const Served& job, int child, const netreduce::Packet& packet) const;
  bool may_start(const Served& job, std::uint32_t message) const;
  void add(Served& job, int child, const Place& place, const netreduce::Packet& packet);
  std::size_t write_sum(const Served& job, const Place& place, netreduce::Packet packet);
  void finish(Served& job, const Place& place, Outbox& out);
  void send_up(Served& job, const Place& place, Outbox& out);
  void send_on(Served& job, int child, const Place& place, Outbox& out);

  JobTable<Served> jobs_;
  Senders children_;
  std::vector<std::uint8_t> scratch_;
};

}  // namespace coppice::aggregation

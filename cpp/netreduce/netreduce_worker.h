// A host of NetReduce (Liu et al., arXiv 2009.09736; ASPLOS 2023): sends to the next host of the ring over a reliable
// connection, receives from the one before, and knows of the switch only that it puts in sums.
//
// Reliability is from end to end, as on RDMA's reliable connections: the receiver takes packets in the order of their
// numbers, acknowledges every message, and says once which number is missing where there is a gap; the sender goes
// back to that number, or after a time-out (doubled at each up to 64 times the job's) to the oldest that is not
// acknowledged. Message m + window is sent once result message m is there; and result message m says that every host
// has received message m - window, acknowledged or not.
//
// Done is a worker whose results are all there and whose neighbour has acknowledged all of its packets, or has left
// `linger` time-outs in a row unanswered: it has been told what it needs and may have gone.
#pragma once

#include <vector>

#include "aggregation/node.h"
#include "netreduce/netreduce_packet.h"

namespace coppice::aggregation {

class NetReduceWorker final : public Worker {
 public:
  // Settings: `message_packets` (16); `fixed_point`, the factor of floats sent as integers, 0 (as floats); `linger` (8).
  NetReduceWorker(const Job& job, int index, Endpoint above);
  void begin(const void* input, void* output, std::size_t count, Time now, Outbox& out) override;
  bool done() const override { return received_ == total_ && (unacked_ == next_psn_ || tries_ >= linger_); }
  void receive(Endpoint from, Bytes bytes, Time now, Outbox& out) override;
  Time deadline() const override;
  void wake(Time now, Outbox& out) override;
  std::unique_ptr<Node> clone() const override { return std::make_unique<NetReduceWorker>(*this); }
  void save(Time now, StateWriter& state) const override;

 private:
  struct Message {
    std::uint32_t start = 0;  // number of its first packet
    std::uint16_t packets = 0;
    std::uint16_t last = 0;  // values of its last packet
  };

  Message& message(std::uint64_t number) { return messages_[number % messages_.size()]; }
  std::size_t first_element(std::uint64_t number, std::size_t position) const;
  void refill(Time now, Outbox& out);
  void send(std::uint64_t number, std::size_t position, Outbox& out);
  void go_back(Time now, Outbox& out);
  void acknowledge(netreduce::Kind kind, std::uint16_t flow, Outbox& out);
  void acknowledged(const netreduce::Packet& packet, Time now, Outbox& out);
  void data(const netreduce::Packet& packet, Time now, Outbox& out);
  bool put(std::size_t element, std::size_t count, std::uint8_t* wire);
  void get(std::size_t element, std::size_t count, const std::uint8_t* wire);
  void advance(std::uint32_t psn, Time now);
  Time timeout() const { return job_.timeout << (tries_ < 6 ? tries_ : 6); }

  Job job_;
  int index_;
  Endpoint above_;
  int packets_;
  double factor_;
  double top_;  // largest number of fixed point of which the sum of all workers fits
  int linger_;

  const std::uint8_t* input_ = nullptr;
  std::uint8_t* output_ = nullptr;
  std::size_t count_ = 0;
  std::uint64_t first_ = 0, total_ = 0;  // messages before the tensor, and up to its end

  std::vector<Message> messages_;  // sent, by number
  std::uint64_t oldest_ = 0;       // message of the oldest packet that is not acknowledged
  std::uint64_t sent_ = 0;         // messages
  std::uint32_t unacked_, next_psn_;
  Time armed_ = 0;
  int tries_ = 0;

  std::uint64_t received_ = 0;  // messages
  std::size_t position_ = 0;    // packets of the next one
  std::uint32_t expected_;
  int flow_ = -1;      // that it receives; -1 before the first packet
  bool told_ = false;  // that the expected one is missing

  Time progress_ = 0;
  std::vector<std::uint8_t> scratch_;
};

}  // namespace coppice::aggregation

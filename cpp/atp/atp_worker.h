// A worker of ATP (Lao et al., NSDI 2021).
//
// It sends chunk after chunk, as far as its window goes from the oldest chunk without a result. The window is of bytes:
// a result marked for congestion halves it, once for all that was under way; a window of results without a mark adds
// 1,500 bytes. A chunk is sent again when its time-out ends (first `timeout` of the job, 50 ms as published; then
// 0.2 ms, doubled at each try up to the first), at once when a later chunk is answered, and when the server asks.
//
// Floats travel as fixed point, multiplied by 10^6 and rounded. A value beyond the range, or none (NaN), is sent as
// the end of the range, which the server takes as a request for float32.
#pragma once

#include "aggregation/node.h"
#include "atp/atp_packet.h"

namespace coppice::aggregation {

class AtpWorker final : public Worker {
 public:
  // Settings: `factor` of the fixed point; `short_timeout`, in nanoseconds, of a chunk sent before.
  AtpWorker(const Job& job, int index, Endpoint above);
  void begin(const void* input, void* output, std::size_t count, Time now, Outbox& out) override;
  bool done() const override { return base_ == end_; }
  void receive(Endpoint from, Bytes packet, Time now, Outbox& out) override;
  Time deadline() const override;
  void wake(Time now, Outbox& out) override;
  std::unique_ptr<Node> clone() const override { return std::make_unique<AtpWorker>(*this); }
  void save(Time now, StateWriter& state) const override;

  // Packets that the worker would have under way now.
  std::int64_t window() const;

 private:
  static constexpr std::uint64_t kChunks = 128;   // under way, at least the largest window
  static constexpr std::uint64_t kResults = 256;  // kept for a server that lost them, two windows

  struct Chunk {
    Time deadline = 0;
    Time timeout = 0;       // the next one
    bool answered = false;
    bool hurried = false;   // sent again since a later one was answered
    bool floats = false;
  };
  struct Result {
    bool there = false;
    std::uint64_t key = 0;
    std::uint8_t flags = 0;
    std::uint16_t next = 0;
    std::uint32_t length = 0;
    std::array<std::uint8_t, 4 * atp::kValues> values{};
  };

  std::uint32_t length(std::uint64_t key) const;
  void refill(Time now, Outbox& out);
  void send(std::uint64_t key, std::uint8_t flags, Outbox& out);
  void send_again(std::uint64_t key, Time now, Outbox& out);
  void send_result(std::uint64_t key, Outbox& out);
  void fixed(std::uint64_t key, std::uint32_t count);
  void result(const atp::Header& header, Bytes packet, Time now, Outbox& out);
  void asked(const atp::Header& header, Time now, Outbox& out);
  void put(std::uint64_t key, const std::uint8_t* wire, bool floats, std::uint32_t count);
  void adapt(const atp::Header& header);

  Job job_;
  std::uint32_t bit_;
  Endpoint above_;
  double factor_;
  Time short_timeout_;

  const std::uint8_t* input_ = nullptr;
  std::uint8_t* output_ = nullptr;
  std::size_t count_ = 0;
  std::uint64_t first_ = 0, base_ = 0, next_ = 0, end_ = 0;  // keys: of the tensor, unanswered, unsent, past the tensor
  Time progress_ = 0;

  std::int64_t window_bytes_;
  std::uint64_t round_ = 0;  // key at which a window is over
  std::uint64_t calm_ = 0;   // key from which on a mark halves again

  std::array<Chunk, kChunks> chunks_{};
  std::array<std::uint16_t, atp::kMostWindow> aggregators_{};  // by place in the window
  std::vector<Result> results_{kResults};
  atp::Packet scratch_{};
};

}  // namespace coppice::aggregation

// The parameter server of ATP (Lao et al., NSDI 2021): merges what the switches could not, and answers.
//
// For each chunk it keeps which workers' contributions it has; a sum that brings one it has is left out, as it cannot
// be taken apart (the workers whose contribution is missing send it again, alone). A complete sum with a value at an
// end of the range of int32 is asked for again as float32, if the job is of floats, and added in the workers' order.
//
// Beyond the published server: it may be started anew at any time. Where a worker asks for a chunk whose other
// contributions do not come, it asks the other workers, and one that has had the result gives it back.
//
// The switch is opened with this server as its parent. The server is opened with the switch as its parent, or with
// the endpoint that leads to each worker as its children: the workers themselves where there is no switch.
#pragma once

#include <vector>

#include "aggregation/job_table.h"
#include "atp/atp_packet.h"

namespace coppice::aggregation {

class AtpServer final : public Aggregator {
 public:
  void open(const Job& job, std::span<const Endpoint> children, Endpoint parent) override;
  void close(std::uint32_t job) override;
  // Chunks of which something is there, but not all.
  std::int64_t slots_in_use() const override;
  std::vector<int> waits_for(std::uint32_t job) const override;
  void receive(Endpoint from, Bytes packet, Time now, Outbox& out) override;
  std::unique_ptr<Node> clone() const override { return std::make_unique<AtpServer>(*this); }
  void save(Time now, StateWriter& state) const override;

 private:
  // Workers are apart by less than two windows; twice that, rounded up.
  static constexpr std::uint64_t kChunks = 256;

  enum class State : std::uint8_t { empty, open, floats, done };
  struct Chunk {
    State state = State::empty;
    std::uint8_t flags = 0;  // congestion and collision that stick; overflow of a result of floats
    std::uint16_t next = 0;  // of a result
    std::uint32_t bitmap = 0;
    std::uint32_t length = 0;
    std::uint64_t key = 0;
    std::array<std::int32_t, atp::kValues> values{};  // of floats, their bits
    std::vector<std::int32_t> each{};                 // in a round of floats, by worker
  };
  struct Served : ServedJob {
    int workers = 0;
    int slots = 0;
    Element element = Element::int32;
    atp::Ways ways;
    std::vector<Chunk> chunks;
  };

  void contribution(Served& job, Chunk& chunk, const atp::Header& header, Bytes packet, Outbox& out);
  void as_float(Served& job, Chunk& chunk, const atp::Header& header, Bytes packet, Outbox& out);
  bool merge(Chunk& chunk, const atp::Header& header, Bytes packet);
  void want_floats(const Served& job, Chunk& chunk);
  void finish(const Served& job, Chunk& chunk, const atp::Header& header, Outbox& out);
  void answer(const Served& job, const Chunk& chunk, const atp::Header& header, std::uint32_t whom, Outbox& out);
  void ask(const Served& job, const atp::Header& header, std::uint8_t flags, std::uint32_t whom, Outbox& out);

  JobTable<Served> jobs_;
  atp::Packet scratch_{};
};

}  // namespace coppice::aggregation

// Packets and pairs per second that the machines of SwitchAgg and NetAgg handle in memory, on one core.
#include "stream_trees/switchagg.h"

#include <cstdio>
#include <vector>

#include "aggregation/bytes.h"
#include "stream_trees/netagg.h"
#include "testing/perf.h"

using namespace coppice::aggregation;

namespace {

constexpr double kGoal = 3.0;  // seconds: 87,000 packets a second, and 5.6 million pairs

class Nowhere final : public Outbox {
 public:
  using Outbox::send;
  void send(std::span<const Endpoint>, Bytes) override {}
};

// One child sends pairs of 4,000 keys, another one nothing: all are combined, many after an eviction, none leaves.
void measure_pairs(int lanes, int pairs) {
  const Job job{.id = 1, .workers = 2, .slots = 1024, .values = lanes * pairs, .window = 64,
                .settings = {{"lanes", lanes}, {"back", 16'384}}};
  SwitchAgg machine(job.slots);
  machine.open(job, std::vector<Endpoint>{0, 1}, kNobody);
  Nowhere out;
  const std::size_t step = 5 + 4 * static_cast<std::size_t>(lanes);
  std::vector<std::uint8_t> packet(switchagg::kHeadBytes + static_cast<std::size_t>(pairs) * step);
  std::uint32_t key = 0, sequence = 0;
  const double took = coppice::perf::seconds([&] {
    for (const std::uint32_t end = sequence + (1 << 18); sequence != end; ++sequence) {
      switchagg::write_head(packet.data(), {switchagg::kUp, 0, 0, 0, 1, sequence, 0, 0, static_cast<std::uint16_t>(pairs)});
      for (std::uint8_t* at = packet.data() + switchagg::kHeadBytes; at < packet.data() + packet.size(); at += step) {
        *at = 4;
        store(at + 1, (key++ * 2654435761u) % 4'000);
      }
      machine.receive(0, packet, 0, out);
    }
  });
  char what[80];
  std::snprintf(what, sizeof what, "SwitchAgg, %2d pairs of %3d values: 2^18 packets", pairs, lanes);
  coppice::perf::report(what, took, kGoal);
}

void measure_requests(int workers) {
  const Job job{.id = 1, .workers = workers, .slots = 512, .values = 256, .window = 64, .settings = {}};
  NetAgg machine(job.slots);
  std::vector<Endpoint> children;
  for (int w = 0; w < workers; ++w) children.push_back(w);
  machine.open(job, children, kNobody);
  Nowhere out;
  std::vector<std::uint8_t> packet(netagg::kHeadBytes + 1024), answer(netagg::kAcknowledgementBytes);
  answer[0] = netagg::kAcknowledgement;
  store(answer.data() + 4, job.id);
  std::uint32_t request = 0;
  const double took = coppice::perf::seconds([&] {
    for (const std::uint32_t end = request + (1u << 18) / static_cast<unsigned>(workers); request != end; ++request) {
      store(answer.data() + 8, request + 1);
      for (int w = 0; w < workers; ++w) {
        const std::uint32_t me = std::uint32_t{1} << w;
        netagg::write_head(packet.data(), {netagg::kPartial, 0, 0, 0, job.id, request, request, me, me, 256, 0});
        machine.receive(w, packet, request, out);
      }
      for (int w = 0; w < workers; ++w) machine.receive(w, answer, request, out);
    }
  });
  char what[80];
  std::snprintf(what, sizeof what, "NetAgg, %2d workers, 256 values: 2^18 contributions and answers", workers);
  coppice::perf::report(what, took, kGoal);
}

}  // namespace

int main() {
  measure_pairs(256, 1);
  measure_pairs(16, 16);
  measure_pairs(1, 64);
  for (int workers : {2, 32}) measure_requests(workers);
  return 0;
}

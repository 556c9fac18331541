// Packets per second that the machines of SwitchML handle in memory, on one core.
#include <cstdio>
#include <vector>

#include "aggregation/switchml.h"
#include "testing/perf.h"

using namespace coppice::aggregation;

namespace {

// Copies the last packet: the least that anything that drives a node does.
class Last final : public Outbox {
 public:
  using Outbox::send;
  void send(std::span<const Endpoint>, Bytes bytes) override { packet.assign(bytes.begin(), bytes.end()), ++number; }
  std::vector<std::uint8_t> packet;
  std::int64_t number = 0;
};

void measure(int workers, int values) {
  Job job;
  job.workers = workers;
  job.slots = job.window = 256;
  job.values = values;
  SwitchMlSwitch machine(job.slots);
  std::vector<Endpoint> children;
  for (int w = 0; w < workers; ++w) children.push_back(w);
  machine.open(job, children, kNobody);
  std::vector<std::uint8_t> packet(SwitchMlPacket::size_of(values));
  Last out;
  std::uint32_t id = 0;
  const int rounds = 1 << 20;
  const double took = coppice::perf::seconds([&] {
    for (int i = 0; i < rounds; i += workers, ++id) {
      SwitchMlPacket{SwitchMlPacket::kind_of(values), 0, id, (id >> 8 & 1) != 0, static_cast<int>(id & 255), {}}.write(
          packet.data());
      for (int w = 0; w < workers; ++w) machine.receive(w, packet, 0, out);
    }
  });
  char what[80];
  std::snprintf(what, sizeof what, "switch, %2d workers, %3d values: 2^20 packets", workers, values);
  coppice::perf::report(what, took, 1.0);
}

}  // namespace

int main() {
  for (int values : {64, 256}) {
    for (int workers : {1, 4, 32}) measure(workers, values);
  }
  Job job;
  job.values = 64;
  job.slots = job.window = 256;
  std::vector<std::int32_t> data(64 << 20);
  SwitchMlWorker worker(job, 0, 9);
  const double took = coppice::perf::seconds([&] {
    std::vector<std::vector<std::uint8_t>> ring(256);
    struct Loop final : Outbox {
      using Outbox::send;
      explicit Loop(std::vector<std::vector<std::uint8_t>>& to) : ring(to) {}
      void send(std::span<const Endpoint>, Bytes bytes) override { ring[at++ & 255].assign(bytes.begin(), bytes.end()); }
      std::vector<std::vector<std::uint8_t>>& ring;
      std::size_t at = 0;
    } loop(ring);
    worker.begin(data.data(), data.data(), data.size(), 0, loop);
    std::vector<std::uint8_t> packet;
    for (std::size_t i = 0; !worker.done(); ++i) {
      packet.swap(ring[i & 255]);
      worker.receive(9, packet, 0, loop);
    }
  });
  coppice::perf::report("worker, 64 values: 2^20 packets sent and received", took, 1.0);
  return 0;
}

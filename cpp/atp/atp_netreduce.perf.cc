// Packets per second that the switches of ATP and NetReduce handle in memory, on one core.
#include <cstdio>
#include <vector>

#include "atp/atp_switch.h"
#include "netreduce/netreduce_switch.h"
#include "testing/perf.h"

using namespace coppice::aggregation;

namespace {

class Last final : public Outbox {
 public:
  using Outbox::send;
  void send(std::span<const Endpoint>, Bytes bytes) override { packet.assign(bytes.begin(), bytes.end()), ++number; }
  std::vector<std::uint8_t> packet;
  std::int64_t number = 0;
};

constexpr int kPackets = 1 << 20;

void report(const char* protocol, int workers, double took) {
  char what[80];
  std::snprintf(what, sizeof what, "%s switch, %2d workers: %.2f million packets/s", protocol, workers,
                kPackets / took / 1e6);
  coppice::perf::report(what, took, kPackets / 200e3);
}

std::vector<Endpoint> children_of(int workers) {
  std::vector<Endpoint> children;
  for (int w = 0; w < workers; ++w) children.push_back(w);
  return children;
}

void measure_atp(int workers) {
  Job job;
  job.workers = workers;
  job.values = atp::kValues;
  job.window = 100;
  job.slots = 40'000;
  AtpSwitch machine(job.slots);
  machine.open(job, children_of(workers), 99);
  atp::Packet packet{};
  Last out;
  std::uint64_t key = 0;
  report("atp", workers, coppice::perf::seconds([&] {
    for (int done = 0; done < kPackets; done += workers + 1, ++key) {
      const auto slot = static_cast<std::uint16_t>(key % 40'000);
      for (int w = 0; w < workers; ++w) {
        atp::write({1u << w, static_cast<std::uint8_t>(workers), 0, 0, slot, slot, key, 62}, packet.data());
        machine.receive(w, packet, 0, out);
      }
      out.packet[5] |= atp::kAck;
      const std::vector<std::uint8_t> answer = out.packet;
      machine.receive(99, answer, 0, out);
    }
  }));
}

void measure_netreduce(int workers, Element element) {
  Job job;
  job.workers = workers;
  job.window = 8;
  job.element = element;
  NetReduceSwitch machine(256);
  machine.open(job, children_of(workers), kNobody);
  Last out;
  std::vector<std::uint8_t> bytes(netreduce::kBase + netreduce::kHeader + 1024);
  std::uint32_t number = 0;
  report(element == Element::int32 ? "netreduce int32" : "netreduce float32", workers, coppice::perf::seconds([&] {
    for (int done = 0; done < kPackets; done += workers, ++number) {
      const auto position = static_cast<std::uint16_t>(number % 16);
      const auto flags = static_cast<std::uint8_t>(position == 0 ? netreduce::kHasHeader : position == 15 ? netreduce::kLast : 0);
      for (int w = 0; w < workers; ++w) {
        const std::size_t header = netreduce::write({netreduce::Kind::data, flags, static_cast<std::uint16_t>(w), number, 0,
                                                     number / 16, 16, position, {}}, bytes.data());
        machine.receive(w, Bytes(bytes.data(), header + 1024), 0, out);
      }
    }
  }));
}

}  // namespace

int main() {
  for (int workers : {2, 8, 32}) {
    measure_atp(workers);
    measure_netreduce(workers, Element::int32);
    measure_netreduce(workers, Element::float32);
  }
  return 0;
}

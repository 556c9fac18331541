// Packets per second that the switches of streaming, SHARP and Camdoop handle in memory, on one core.
#include <cstdio>
#include <vector>

#include "aggregation/protocols.h"
#include "hardware_trees/frame.h"
#include "testing/perf.h"

using namespace coppice::aggregation;

namespace {

class Nowhere final : public Outbox {
 public:
  using Outbox::send;
  void send(std::span<const Endpoint>, Bytes) override {}
};

// Frames of all workers in turn; of Camdoop, every worker acknowledges each sum, and one in two packets is that.
void measure(const char* name, int workers, int values, bool camdoop) {
  Job job{.id = 1, .workers = workers, .slots = 64, .values = values, .window = 64, .element = Element::float32, .settings = {}};
  const std::unique_ptr<Aggregator> machine = protocol(name).make_switch(64);
  std::vector<Endpoint> children;
  for (int w = 0; w < workers; ++w) children.push_back(w);
  machine->open(job, children, kNobody);
  Nowhere out;
  FrameBuffer frame(values + 1), other(1);
  const std::vector<Word> words(static_cast<std::size_t>(values) + camdoop, 0), life(1, 0);
  for (int w = 0; camdoop && w < workers; ++w) machine->receive(w, other.with({.type = 5, .job = 1}, life), 0, out);
  const int rounds = 1 << 20;
  std::uint32_t number = 0;
  const double took = coppice::perf::seconds([&] {
    for (int i = 0; i < rounds; i += workers, ++number) {
      const Bytes packet = frame.with({.type = 1, .job = 1, .number = number}, words);
      for (int w = 0; w < workers; ++w) machine->receive(w, packet, 0, out);
      for (int w = 0; camdoop && w < workers; ++w) {
        machine->receive(w, other.with({.type = 3, .job = 1, .number = number + 1, .extra = number + 65}, life), 0, out);
      }
    }
  });
  char what[80];
  std::snprintf(what, sizeof what, "%s, %2d workers, %3d floats: 2^20 frames", name, workers, values);
  coppice::perf::report(what, took, 5.0);
}

}  // namespace

int main() {
  for (int workers : {1, 4, 32}) {
    measure("streaming", workers, 256, false);
    measure("sharp", workers, 256, false);
    measure("camdoop", workers, 256, true);
  }
}

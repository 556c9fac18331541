// What tests of the trees of hardware share: frames, an outbox that keeps them, and whole jobs on a network with faults.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "hardware_trees/frame.h"
#include "testing/lossy.h"
#include "testing/testing.h"

namespace coppice::testing {

struct Sent final : aggregation::Outbox {
  using Outbox::send;
  void send(std::span<const aggregation::Endpoint> to, aggregation::Bytes packet) override {
    for (aggregation::Endpoint each : to) all.push_back({each, {packet.begin(), packet.end()}});
  }
  std::vector<std::pair<aggregation::Endpoint, std::vector<std::uint8_t>>> all;
};

inline std::vector<std::uint8_t> frame(std::uint8_t type, std::uint32_t number, std::vector<aggregation::Word> words,
                                       std::uint32_t extra = 0, std::uint32_t job = 7) {
  aggregation::FrameBuffer buffer(static_cast<int>(words.size()));
  const aggregation::Bytes bytes = buffer.with({.type = type, .job = job, .number = number, .extra = extra}, words);
  return {bytes.begin(), bytes.end()};
}

inline aggregation::Job job_of(int workers, int slots, int values, int window,
                               aggregation::Element element = aggregation::Element::int32) {
  return {.id = 7, .workers = workers, .slots = slots, .values = values, .window = window, .element = element,
          .timeout = 50'000, .give_up_timeout = 1'000'000'000'000, .settings = {}};
}

// Of 1 to 32 workers.
template <class T>
aggregation::Job drawn_job(std::mt19937_64& random) {
  const auto up_to = [&](std::uint64_t most) { return 1 + static_cast<int>(random() % most); };
  const int workers = up_to(32), slots = up_to(8), values = up_to(9), window = up_to(12);
  aggregation::Job job = job_of(workers, slots, values, window,
                                std::is_same_v<T, float> ? aggregation::Element::float32 : aggregation::Element::int32);
  if (random() % 2) job.settings["first"] = 4294967290.0;
  return job;
}

inline Faults drawn_faults(std::mt19937_64& random, aggregation::Time late) {
  return {.loss = 0.01 * static_cast<double>(random() % 21), .duplicates = 0.01 * static_cast<double>(random() % 11),
          .most_late = static_cast<aggregation::Time>(random() % 3) * late};
}

// All-reduces one after the other in a tree of switches: every sum is exact, and no slot is kept.
template <class T>
void check_sums(std::uint64_t seed, std::mt19937_64& random, const aggregation::Job& job, aggregation::Time late,
                SwitchedJob::MakeSwitch a_switch, SwitchedJob::MakeWorker a_worker) {
  LossyNetwork network(seed, drawn_faults(random, late));
  SwitchedJob made(network, job, a_switch, a_worker, static_cast<int>(random() % 3 == 0 ? 2 + random() % 4 : 0));
  Tensors<T> tensors(made.workers.size(), seed);
  for (int round = 0; round < 4; ++round) {
    tensors.start(network, made.workers, made.endpoints, random() % 80);
    CHECK(network.run([&] { return all_done(made.workers); }));
    CHECK(tensors.right());
  }
  CHECK(!network.run([] { return false; }));  // until nobody has anything left to do
  for (const auto& each : made.switches) CHECK_EQ(each->slots_in_use(), 0);
}

}  // namespace coppice::testing

#include "aggregation/switchml.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <stdexcept>

#include "aggregation/bytes.h"
#include "aggregation/protocols.h"
#include "testing/mail.h"
#include "testing/switchml_jobs.h"
#include "testing/testing.h"

using namespace coppice::aggregation;
using namespace coppice::aggregation::testing;

namespace {

// All-reduces of several tensors over one switch; returns whether every sum was exact and the switch is empty.
bool sums_are_exact(std::uint64_t seed, int workers, double fault, int slots, int window, std::uint32_t first) {
  std::mt19937_64 random(seed);
  Job job = job_of(workers, slots, 3);
  job.window = window;
  job.timeout = 50'000;
  job.settings["first_packet"] = first;
  SwitchMlSwitch middle(slots);
  middle.open(job, numbered(workers, 1), kNobody);
  std::vector<SwitchMlWorker> machines;
  std::map<Endpoint, Node*> nodes{{0, &middle}};
  for (int w = 0; w < workers; ++w) machines.emplace_back(job, w, 0);
  for (int w = 0; w < workers; ++w) nodes[w + 1] = &machines[static_cast<std::size_t>(w)];
  Lossy net(seed, fault);
  for (int tensor = 0; tensor < 3; ++tensor) {
    const std::size_t count = random() % 40;
    std::vector<std::vector<std::int32_t>> data(static_cast<std::size_t>(workers), std::vector<std::int32_t>(count));
    std::vector<std::int32_t> sum(count);
    for (auto& each : data) {
      for (std::size_t i = 0; i < count; ++i) {
        each[i] = static_cast<std::int32_t>(random());
        sum[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(sum[i]) + static_cast<std::uint32_t>(each[i]));
      }
    }
    for (int w = 0; w < workers; ++w) {
      Lossy::Box box(net, w + 1);
      auto& mine = data[static_cast<std::size_t>(w)];
      machines[static_cast<std::size_t>(w)].begin(mine.data(), mine.data(), count, net.now, box);
    }
    net.run(nodes);
    for (int w = 0; w < workers; ++w) {
      if (!machines[static_cast<std::size_t>(w)].done() || data[static_cast<std::size_t>(w)] != sum) return false;
    }
  }
  return middle.slots_in_use() == 0;
}

}  // namespace

TEST(switchml_random_sums_are_exact_under_loss_duplication_and_reordering) {
  std::uint64_t seed = 0;  // C3, C4, C6
  for (int workers : {1, 2, 3, 8, 32}) {
    for (double fault : {0.0, 0.001, 0.01, 0.1, 0.2}) {
      for (int repeat = 0; repeat < (workers < 8 ? 12 : 3); ++repeat, ++seed) {
        const int slots = 1 + static_cast<int>(seed % 5);
        const int window = 1 + static_cast<int>(seed / 5) % slots;
        const bool exact = sums_are_exact(seed, workers, fault, slots, window, seed % 2 == 0 ? 0 : 0xFFFFFFF0u);
        CHECK(exact);
        if (!exact) return void(std::printf("seed %d, %d workers, faults %g\n", static_cast<int>(seed), workers, fault));
      }
    }
  }
}

TEST(switchml_worker_goes_on_counting_across_tensors) {
  Job job = job_of(1, 4, 64);
  SwitchMlWorker worker(job, 0, 9);
  SwitchMlSwitch machine(4);
  machine.open(job, numbered(1), kNobody);
  std::vector<std::uint32_t> ids, pools;
  std::vector<std::int32_t> in(64 * 3, 1), result(64 * 3 + 1, 77);
  for (int tensor = 0; tensor < 4; ++tensor) {  // three packets each: C13's partial block in the last
    Sent out, down;
    const std::size_t count = tensor == 3 ? 64 * 2 + 1 : 64 * 3;
    worker.begin(in.data(), result.data(), count, 0, out);
    CHECK_THROWS(std::invalid_argument, worker.begin(in.data(), result.data(), count, 0, out));
    for (const Letter& letter : out.letters) {
      ids.push_back(SwitchMlPacket::read(letter.packet.data()).id);
      pools.push_back(load<std::uint16_t>(letter.packet.data() + 6));
      if (tensor == 3 && letter.packet == out.letters.back().packet) {
        for (int i = 1; i < 64; ++i) CHECK_EQ(value_of(letter.packet, i), 0);
      }
      machine.receive(0, letter.packet, 0, down);
    }
    const auto replies = down.letters;
    for (const Letter& letter : replies) worker.receive(9, letter.packet, 0, down);
    for (const Letter& letter : replies) worker.receive(9, letter.packet, 0, down);
    CHECK(worker.done());
    CHECK_EQ(worker.counters()[Count::stale], 3u * static_cast<unsigned>(tensor + 1));
    CHECK_EQ(result.back(), 77);
  }
  CHECK((ids == std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  CHECK((pools == std::vector<std::uint32_t>{0, 1, 2, 3, 0x8000, 0x8001, 0x8002, 0x8003, 0, 1, 2, 3}));
  Sent none;
  worker.begin(in.data(), result.data(), 0, 0, none);
  CHECK(worker.done() && none.letters.empty());
}

TEST(switchml_worker_sends_again_waits_longer_and_gives_up) {
  Job job = job_of(2, 2, 64);
  job.timeout = 10;
  job.give_up_timeout = 100'000;
  SwitchMlWorker worker(job, 1, 9);
  Sent out;
  std::vector<std::int32_t> data(64 * 5, 3);
  worker.begin(data.data(), data.data(), data.size(), 0, out);
  CHECK_EQ(out.letters.size(), 2u);
  Time now = 0;
  std::vector<Time> waits;
  while (worker.failure().empty()) {
    const Time due = worker.deadline();
    waits.push_back(due - now);
    now = due;
    worker.wake(now, out);
  }
  CHECK_EQ(waits[0], 10);
  CHECK_EQ(waits[49], 10);   // 100 time-outs of two packets
  CHECK_EQ(waits[50], 20);
  CHECK_EQ(waits[149], 20);  // then 200
  CHECK_EQ(waits[150], 40);
  CHECK_EQ(now, 100'000);
  CHECK(worker.deadline() == kNever && !worker.done());
  CHECK(worker.failure().find("worker 1") != std::string::npos && worker.failure().find("slot 0") != std::string::npos);
  for (const Letter& letter : out.letters) CHECK(letter.packet == out.letters[letter.packet[7]].packet);
}

TEST(switchml_worker_learns_its_timeout_if_asked) {
  Job job = job_of(1, 1, 64);
  job.settings["adaptive_timeout"] = 1;
  SwitchMlWorker worker(job, 0, 9);
  Sent out;
  std::vector<std::int32_t> data(64 * 50, 3);
  worker.begin(data.data(), data.data(), data.size(), 0, out);
  CHECK_EQ(worker.deadline(), job.timeout);
  Time now = 0;
  for (int i = 0; i < 49; ++i) {
    const auto packet = out.letters.back().packet;
    worker.receive(9, packet, now += 5'000, out);
  }
  CHECK(worker.deadline() - now >= 10'000 && worker.deadline() - now < 20'000);
}

TEST(switchml_floats_are_close_and_agreed_on_by_all) {
  std::mt19937 random(5);
  const float most = std::numeric_limits<float>::max(), least = std::numeric_limits<float>::denorm_min();
  for (int window : {1, 3, 4}) {
    for (std::size_t count : {0u, 1u, 63u, 64u, 65u, 257u, 1000u}) {
      for (int kind = 0; kind < 4; ++kind) {  // C10, C11, C13
        Job job = job_of(3, 4, 16);
        job.window = window;
        job.element = Element::float32;
        job.timeout = 50'000;
        SwitchMlSwitch middle(4);
        middle.open(job, numbered(3, 1), kNobody);
        std::vector<SwitchMlWorker> machines;
        std::map<Endpoint, Node*> nodes{{0, &middle}};
        for (int w = 0; w < 3; ++w) machines.emplace_back(job, w, 0);
        for (int w = 0; w < 3; ++w) nodes[w + 1] = &machines[static_cast<std::size_t>(w)];
        Lossy net(count, 0.1);
        for (int tensor = 0; tensor < 2; ++tensor) {
          std::vector<std::vector<float>> in(3, std::vector<float>(count)), out(3, std::vector<float>(count + 1, -7));
          std::vector<double> sum(count), greatest(count / 16 + 1);
          for (auto& each : in) {
            for (std::size_t i = 0; i < count; ++i) {
              const float unit = static_cast<float>(random()) * 0x1p-31f - 1;
              each[i] = kind == 0 ? unit : kind == 1 ? 0 : kind == 2 ? least * (random() % 3) : unit * most / 3;
              sum[i] += each[i];
              greatest[i / 16] = std::max(greatest[i / 16], std::abs(double{each[i]}));
            }
          }
          for (int w = 0; w < 3; ++w) {
            Lossy::Box box(net, w + 1);
            const auto at = static_cast<std::size_t>(w);
            machines[at].begin(in[at].data(), out[at].data(), count, net.now, box);
          }
          net.run(nodes);
          for (std::size_t w = 0; w < 3; ++w) {
            CHECK(machines[w].done());
            CHECK(out[w] == out[0]);
            CHECK_EQ(out[w][count], -7.0f);
          }
          for (std::size_t i = 0; i < count; ++i) {
            const double bound = std::max(greatest[i / 16] * 4 * 3 * 3 * 0x1p-32, 1e-44) + std::abs(sum[i]) * 0x1p-24;
            CHECK(kind == 1 ? out[0][i] == 0 : std::abs(out[0][i] - sum[i]) <= (kind == 2 ? 1e-37 : bound));
          }
        }
        CHECK_EQ(middle.slots_in_use(), 0);
      }
    }
  }
}

TEST(switchml_values_that_are_not_finite_stop_every_worker) {
  Job job = job_of(2, 2, 4);
  job.element = Element::float32;
  SwitchMlSwitch middle(2);
  middle.open(job, numbered(2, 1), kNobody);
  SwitchMlWorker a(job, 0, 0), b(job, 1, 0);
  Lossy net(1, 0.1);
  std::vector<float> x(100, 1), y(100, 2);
  y[57] = std::numeric_limits<float>::quiet_NaN();
  Lossy::Box from_a(net, 1), from_b(net, 2);
  a.begin(x.data(), x.data(), 100, 0, from_a);
  b.begin(y.data(), y.data(), 100, 0, from_b);
  net.run({{0, &middle}, {1, &a}, {2, &b}});
  for (const SwitchMlWorker* each : {&a, &b}) {
    CHECK(!each->done());
    CHECK(each->failure().find("from 56 on") != std::string::npos);
  }
}

TEST(switchml_is_registered) {
  const Protocol& found = protocol("switchml");
  CHECK(found.make_switch(4) != nullptr && found.make_server == nullptr);
  CHECK(found.make_worker(job_of(2, 4), 1, 0) != nullptr);
  CHECK_THROWS(std::invalid_argument, protocol("nothing"));
}

// Workers, switch and server of ATP together: the scenarios of best-effort aggregation, and whole all-reduces under
// loss, duplication and reordering.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <stdexcept>

#include "atp/atp_server.h"
#include "atp/atp_switch.h"
#include "atp/atp_worker.h"
#include "testing/parties.h"
#include "testing/testing.h"

using namespace coppice::aggregation;
using namespace coppice::aggregation::atp;
using coppice::testing::Parties;

namespace {

constexpr Endpoint kSwitch = 100;
constexpr Endpoint kServerAt = 101;

Job job_of(int workers, int slots, int window = 4) {
  Job job;
  job.id = 1;
  job.workers = workers;
  job.slots = slots;
  job.values = kValues;
  job.window = window;
  job.timeout = 50'000'000;
  return job;
}

// A job on one switch and one server, from endpoint `first` on; several may share them.
template <class T>
struct Rack {
  Rack(Parties& parties, AtpSwitch& tor, AtpServer& server, Job j, std::size_t count, Endpoint first_worker = 0,
       Endpoint server_at = kServerAt)
      : net(parties), job(std::move(j)), first(first_worker) {
    job.element = std::is_same_v<T, float> ? Element::float32 : Element::int32;
    std::vector<Endpoint> children;
    for (int index = 0; index < job.workers; ++index) {
      children.push_back(first + index);
      workers.push_back(std::make_unique<AtpWorker>(job, index, kSwitch));
      input.emplace_back(count);
      output.emplace_back(count);
      net.add(first + index, *workers.back());
      for (std::size_t at = 0; at < count; ++at) {
        input.back()[at] = static_cast<T>((index + 1) * 1000 + static_cast<int>(at));
      }
    }
    tor.open(job, children, server_at);
    server.open(job, children, kSwitch);
    net.add(kSwitch, tor);
    net.add(server_at, server);
  }

  void begin(std::size_t index) {
    Parties::Post out = net.post(first + static_cast<Endpoint>(index));
    workers[index]->begin(input[index].data(), output[index].data(), input[index].size(), net.now, out);
  }
  void begin() {
    for (std::size_t index = 0; index < workers.size(); ++index) begin(index);
  }
  bool done() const {
    return std::all_of(workers.begin(), workers.end(), [](const auto& worker) { return worker->done(); });
  }
  bool exact() const {
    for (std::size_t at = 0; at < input[0].size(); ++at) {
      double sum = 0;
      for (const auto& each : input) sum += each[at];
      for (const auto& each : output) {
        if (each[at] != static_cast<T>(sum)) return false;
      }
    }
    return true;
  }
  std::uint64_t resent() const {
    std::uint64_t all = 0;
    for (const auto& worker : workers) all += worker->counters()[Count::resent];
    return all;
  }

  Parties& net;
  Job job;
  Endpoint first;
  std::vector<std::unique_ptr<AtpWorker>> workers;
  std::vector<std::vector<T>> input, output;
};

Header header_of(const Parties::Letter& letter) {
  Header header;
  CHECK(read(letter.bytes, header));
  return header;
}

}  // namespace

TEST(atp_a1_without_collision_the_server_gets_one_packet_a_chunk) {
  Parties net;
  AtpSwitch tor(16);
  AtpServer server;
  Rack<std::int32_t> rack(net, tor, server, job_of(3, 16), 1000);
  rack.begin();
  net.settle();
  CHECK(rack.done() && rack.exact());
  CHECK_EQ(server.counters()[Count::received], 17U);
  CHECK_EQ(tor.counters()[Count::completed], 17U);
  CHECK_EQ(tor.counters()[Count::collided], 0U);
  CHECK_EQ(tor.slots_in_use(), 0);
  CHECK_EQ(server.slots_in_use(), 0);
  CHECK_EQ(rack.resent(), 0U);
  rack.begin();  // the next tensor goes on with keys and slots
  net.settle();
  CHECK(rack.done() && rack.exact());
  CHECK_EQ(server.counters()[Count::received], 34U);
}

TEST(atp_a2_of_two_jobs_on_one_slot_the_second_passes_through_and_is_given_another) {
  Parties net;
  AtpSwitch tor(8);
  AtpServer server;
  Job one = job_of(2, 1, 1), two = job_of(2, 8, 1);
  two.id = 2;
  // The second job's first slot is made the first one's by its id.
  while (first_aggregator(static_cast<std::uint16_t>(two.id), 0, 8) != 0) ++two.id;
  Rack<std::int32_t> first(net, tor, server, one, 62), second(net, tor, server, two, 62 * 40, 10);
  first.begin(0);
  net.settle();  // holds slot 0
  second.begin();
  net.settle();
  CHECK(second.done() && second.exact());
  CHECK_EQ(tor.counters()[Count::collided], 2U);  // both workers of the second job, once; then they have a new slot
  CHECK_EQ(server.counters()[Count::collided], 1U);
  first.begin(1);
  net.settle();
  CHECK(first.done() && first.exact());
  CHECK_EQ(tor.slots_in_use(), 0);
}

TEST(atp_a3_a_partial_sum_of_the_switch_and_the_rest_meet_at_the_server) {
  Parties net;
  AtpSwitch tor(4);
  AtpServer server;
  Rack<std::int32_t> rack(net, tor, server, job_of(4, 4, 1), 62);
  // Workers 0 and 1 in the slot; 2 loses its packet and sends it again, taking them along; 3 goes alone.
  bool lost = false;
  net.fate = [&](const Parties::Letter& letter) {
    const bool lose = letter.to == kSwitch && letter.from == 2 && !lost;
    lost |= lose;
    return lose ? 0 : 1;
  };
  for (std::size_t index : {0, 1, 2}) rack.begin(index);
  net.settle();
  CHECK_EQ(tor.slots_in_use(), 1);
  CHECK((tor.waits_for(1) == std::vector<int>{2, 3}));
  CHECK(net.wait());  // all three send again
  net.settle();
  CHECK_EQ(tor.slots_in_use(), 0);
  CHECK_EQ(tor.counters()[Count::evicted], 1U);
  CHECK((server.waits_for(1) == std::vector<int>{3}));
  rack.begin(3);
  net.settle();
  CHECK_EQ(tor.slots_in_use(), 1);
  CHECK(net.run([&] { return rack.done(); }));
  CHECK(rack.exact());
  CHECK_EQ(tor.slots_in_use(), 0);
}

TEST(atp_a4_after_an_eviction_the_late_contributor_opens_a_slot_anew) {
  Parties net;
  AtpSwitch tor(1);
  AtpServer server;
  Rack<std::int32_t> rack(net, tor, server, job_of(2, 1, 1), 62);
  rack.begin(0);
  net.settle();
  CHECK(net.wait());  // worker 0 alone: its sum goes to the server
  net.settle();
  CHECK_EQ(tor.slots_in_use(), 0);
  CHECK_EQ(server.slots_in_use(), 1);
  rack.begin(1);
  net.settle();
  CHECK_EQ(tor.slots_in_use(), 1);  // the sum of worker 1 alone, which never completes here
  CHECK(net.run([&] { return rack.done(); }));
  CHECK(rack.exact());
  CHECK_EQ(tor.slots_in_use(), 0);
  CHECK_EQ(server.slots_in_use(), 0);
}

TEST(atp_a5_a_lost_answer_leaves_the_slot_taken_until_a_worker_asks) {
  Parties net;
  AtpSwitch tor(4);
  AtpServer server;
  Rack<std::int32_t> rack(net, tor, server, job_of(2, 4, 1), 62);
  int answers = 0;
  net.fate = [&](const Parties::Letter& letter) { return letter.from == kServerAt && answers++ == 0 ? 0 : 1; };
  rack.begin();
  net.settle();
  CHECK(!rack.done());
  CHECK_EQ(tor.slots_in_use(), 1);
  CHECK_EQ(server.slots_in_use(), 0);
  CHECK(net.run([&] { return rack.done(); }, 1));
  CHECK(rack.exact());
  CHECK_EQ(tor.slots_in_use(), 0);
  CHECK_EQ(net.now, 50'000'000);
}

TEST(atp_a5_an_answer_lost_below_the_switch_comes_from_the_server_to_who_lacks_it) {
  Parties net;
  AtpSwitch tor(4);
  AtpServer server;
  Rack<std::int32_t> rack(net, tor, server, job_of(3, 4, 1), 62);
  int lost = 0;
  net.fate = [&](const Parties::Letter& letter) { return letter.to == 1 && lost++ == 0 ? 0 : 1; };
  rack.begin();
  net.settle();
  CHECK(rack.workers[0]->done() && !rack.workers[1]->done());
  CHECK(net.run([&] { return rack.done(); }, 1));
  CHECK(rack.exact());
  CHECK_EQ(rack.workers[0]->counters()[Count::received], 1U);  // the second answer was for worker 1 alone
}

TEST(atp_a6_sums_that_overlap_are_not_added_twice) {
  Parties net;
  AtpServer server;
  const Job job = job_of(3, 4, 1);
  const std::vector<Endpoint> children{0, 1, 2};
  server.open(job, children, kSwitch);
  const auto give = [&](std::uint32_t bitmap, std::int32_t value, std::uint8_t flags) {
    Packet packet{};
    write({bitmap, 3, flags, 1, 0, 0, 0, 1}, packet.data());
    store(packet.data() + kValuesAt, static_cast<std::uint32_t>(value));
    Parties::Post out = net.post(kServerAt);
    server.receive(kSwitch, packet, 0, out);
  };
  give(0b001, 1, kResend);
  give(0b011, 11, kResend);  // more than is here: taken instead
  give(0b110, 110, 0);       // brings worker 1 again: left out
  give(0b010, 10, 0);
  CHECK_EQ(server.counters()[Count::duplicate], 2U);
  CHECK(net.letters.empty());
  give(0b010, 10, kResend);  // worker 1 asks: so is worker 2
  CHECK_EQ(net.letters.size(), 1U);
  const Header question = header_of(net.letters.front());
  CHECK_EQ(question.bitmap, 0b100U);
  CHECK_EQ(static_cast<int>(question.flags), static_cast<int>(kResend));
  net.letters.clear();
  give(0b100, 100, kResend);
  CHECK_EQ(net.letters.size(), 1U);
  CHECK_EQ(load<std::uint32_t>(net.letters.front().bytes.data() + kValuesAt), 111U);
}

TEST(atp_a7_a_sum_that_sticks_is_added_again_as_floats_beside_the_switch) {
  Parties net;
  AtpSwitch tor(8);
  AtpServer server;
  Rack<float> rack(net, tor, server, job_of(3, 8, 1), 62 * 3);
  for (auto& each : rack.input) std::fill(each.begin(), each.end(), 0.5F);
  rack.input[0][70] = rack.input[1][70] = 1500.0F;  // 1,500 x 10^6 fits, twice that does not
  rack.input[2][70] = -1000.0F;                     // would bring the sum back into the range
  rack.input[2][71] = 1e20F;
  rack.input[1][72] = -std::numeric_limits<float>::infinity();
  rack.input[0][73] = std::numeric_limits<float>::quiet_NaN();
  rack.begin();
  net.settle();
  CHECK(rack.done());
  for (const auto& each : rack.output) {
    CHECK_EQ(each[0], 1.5F);
    CHECK_EQ(each[70], 2000.0F);
    CHECK_EQ(each[71], 1e20F);
    CHECK_EQ(each[72], -std::numeric_limits<float>::infinity());
    CHECK(std::isnan(each[73]));
    CHECK_EQ(each[62 * 3 - 1], 1.5F);
  }
  CHECK(tor.counters()[Count::saturated] >= 1);
  CHECK_EQ(tor.slots_in_use(), 0);
  CHECK_EQ(tor.counters()[Count::forwarded], 3U + 1 + 3);  // floats upwards; one question, three results downwards
}

TEST(atp_a7_integers_stick_at_the_ends) {
  Parties net;
  AtpSwitch tor(8);
  AtpServer server;
  Rack<std::int32_t> rack(net, tor, server, job_of(3, 8), 2);
  const std::int32_t top = std::numeric_limits<std::int32_t>::max(), bottom = std::numeric_limits<std::int32_t>::min();
  rack.input = {{top, bottom + 1}, {1, -2}, {-5, 5}};
  rack.begin();
  net.settle();
  for (const auto& each : rack.output) CHECK((each == std::vector<std::int32_t>{top, bottom}));
  CHECK_EQ(tor.counters()[Count::saturated], 1U);  // the second; the first was at the end from the start
}

TEST(atp_a8_a_marked_window_halves_once_and_one_without_a_mark_adds_a_frame) {
  Parties net;
  AtpSwitch tor(128);
  AtpServer server;
  Rack<std::int32_t> rack(net, tor, server, job_of(2, 128, 64), 62 * 64 * 40);
  net.waiting[kServerAt] = 80'000;
  rack.begin();
  CHECK_EQ(rack.workers[0]->window(), 64);
  std::set<std::int64_t> seen;
  while (rack.workers[0]->counters()[Count::completed] < 64) {
    const Parties::Letter letter = net.letters.front();
    net.letters.pop_front();
    net.deliver(letter);
    seen.insert(rack.workers[0]->window());
  }
  CHECK((seen == std::set<std::int64_t>{32, 64}));  // 64 marks, one window: halved once
  CHECK_EQ(rack.workers[0]->counters()[Count::marked], 64U);
  CHECK(tor.counters()[Count::marked] >= 128);
  net.waiting.clear();
  net.settle();
  CHECK(rack.done() && rack.exact());
  CHECK_EQ(rack.workers[0]->window(), 64);  // back, 1,500 bytes a window, and no further than the job's
}

TEST(atp_a8_the_mark_of_one_contribution_sticks_to_the_sum) {
  Parties net;
  AtpSwitch tor(4);
  AtpServer server;
  Rack<std::int32_t> rack(net, tor, server, job_of(2, 4, 2), 62);
  net.waiting[kServerAt] = 80'000;
  rack.begin(0);
  net.settle();
  net.waiting.clear();
  rack.begin(1);
  net.settle();
  CHECK_EQ(rack.workers[1]->counters()[Count::marked], 1U);
  CHECK_EQ(rack.workers[1]->window(), 1);
}

TEST(atp_a9_with_all_slots_taken_everything_goes_to_the_server) {
  Parties net;
  AtpSwitch tor(2);
  AtpServer server;
  Job idle = job_of(2, 2, 2);
  idle.id = 7;
  Rack<std::int32_t> hog(net, tor, server, idle, 62 * 2, 10), rack(net, tor, server, job_of(4, 2, 8), 62 * 50);
  hog.begin(0);
  net.settle();
  CHECK_EQ(tor.slots_in_use(), 2);
  rack.begin();
  net.settle();
  CHECK(rack.done() && rack.exact());
  CHECK_EQ(tor.counters()[Count::collided], 200U);  // as a server without a switch: every worker's every packet
  CHECK_EQ(tor.slots_in_use(), 2);
  tor.close(7);
  CHECK_EQ(tor.slots_in_use(), 0);
}

TEST(atp_a9_without_a_switch_the_server_does_it_alone) {
  Parties net;
  AtpServer server;
  const Job job = job_of(2, 4, 4);
  const std::vector<Endpoint> children{0, 1};
  server.open(job, children, kNobody);
  net.add(kServerAt, server);
  AtpWorker one(job, 0, kServerAt), two(job, 1, kServerAt);
  net.add(0, one);
  net.add(1, two);
  std::vector<std::int32_t> a(500, 3), b(500, 4), c(500), d(500);
  Parties::Post from_one = net.post(0), from_two = net.post(1);
  one.begin(a.data(), c.data(), 500, 0, from_one);
  two.begin(b.data(), d.data(), 500, 0, from_two);
  net.settle();
  CHECK(one.done() && two.done());
  CHECK(c == std::vector<std::int32_t>(500, 7) && d == c);
}

TEST(atp_a10_a_server_that_forgot_everything_is_helped_by_the_workers) {
  // Worker 0 has all results and is done, worker 1 has none of the last window; then the server is a new one.
  for (const bool floats : {false, true}) {
    Parties net;
    AtpSwitch tor(8);
    AtpServer server, fresh;
    Rack<float> rack(net, tor, server, job_of(2, 8), 62 * 4);
    if (floats) rack.input[0][0] = 1e10F;
    bool losing = true;
    net.fate = [&](const Parties::Letter& letter) {
      return losing && letter.to == 1 && header_of(letter).has(kAck) ? 0 : 1;
    };
    rack.begin();
    net.settle();
    CHECK(rack.workers[0]->done() && !rack.workers[1]->done());
    fresh.open(rack.job, std::vector<Endpoint>{0, 1}, kSwitch);
    net.add(kServerAt, fresh);
    losing = false;
    CHECK(net.run([&] { return rack.done(); }));
    CHECK_EQ(rack.workers[0]->counters()[Count::answered], 4U);
    CHECK(rack.output[0] == rack.output[1]);
    CHECK_EQ(rack.output[0][1], rack.input[0][1] + rack.input[1][1]);
  }
}

TEST(atp_a10_a_server_and_a_switch_started_anew_at_any_packet_leave_the_sums_exact) {
  for (unsigned at = 0; at < 60; ++at) {
    Parties net;
    AtpSwitch tor(4), other_tor(4);
    AtpServer server, fresh;
    Rack<std::int32_t> rack(net, tor, server, job_of(3, 4, 3), 62 * 6);
    const std::vector<Endpoint> children{0, 1, 2};
    fresh.open(rack.job, children, kSwitch);
    other_tor.open(rack.job, children, kServerAt);
    rack.begin();
    unsigned step = 0;
    net.fate = [&](const Parties::Letter&) {
      if (step++ == at) net.add(kServerAt, fresh);
      if (step == at / 2) net.add(kSwitch, other_tor);
      return step % 7 == 3 ? 0 : 1;
    };
    CHECK(net.run([&] { return rack.done(); }));
    CHECK(rack.exact());
  }
}

TEST(atp_a_chunk_overtaken_by_a_later_one_is_sent_again_at_once) {
  Parties net;
  AtpSwitch tor(8);
  AtpServer server;
  Rack<std::int32_t> rack(net, tor, server, job_of(2, 8), 62 * 3);
  int seen = 0;
  net.fate = [&](const Parties::Letter& letter) { return letter.to == kSwitch && seen++ == 0 ? 0 : 1; };
  rack.begin();
  net.settle();
  CHECK(rack.done() && rack.exact());
  CHECK_EQ(net.now, 0);
  CHECK(rack.resent() >= 1);
}

TEST(atp_time_outs_are_long_once_then_short_and_doubled) {
  Parties net;
  const Job job = job_of(2, 4, 1);
  AtpWorker worker(job, 0, kSwitch);
  std::int32_t value = 1;
  Parties::Post out = net.post(0);
  worker.begin(&value, &value, 1, 0, out);
  std::vector<Time> times;
  for (int tries = 0; tries < 11; ++tries) {
    times.push_back(worker.deadline());
    worker.wake(worker.deadline(), out);
  }
  CHECK_EQ(times[0], 50'000'000);
  CHECK_EQ(times[1] - times[0], 200'000);
  CHECK_EQ(times[2] - times[1], 400'000);
  CHECK_EQ(times[10] - times[9], 50'000'000);  // no further than the first
  CHECK_EQ(net.letters.size(), 12U);
  worker.wake(job.give_up_timeout, out);
  CHECK(worker.failure().find("worker 0 of job 1 had no result for 30000 ms") == 0);
  CHECK_EQ(worker.deadline(), kNever);
}

TEST(atp_two_levels_add_up_what_they_reach) {
  Parties net;
  AtpSwitch left(8), right(8), root(8);
  AtpServer server;
  const Job job = job_of(4, 8, 4);
  constexpr Endpoint kLeft = 50, kRight = 51;
  left.open(job, std::vector<Endpoint>{0, 1, kNobody, kNobody}, kSwitch);
  right.open(job, std::vector<Endpoint>{kNobody, kNobody, 2, 3}, kSwitch);
  root.open(job, std::vector<Endpoint>{kLeft, kLeft, kRight, kRight}, kServerAt);
  server.open(job, std::vector<Endpoint>{0, 1, 2, 3}, kSwitch);
  for (unsigned seed = 0; seed < 40; ++seed) {
    net = {};
    net.add(kLeft, left);
    net.add(kRight, right);
    net.add(kSwitch, root);
    net.add(kServerAt, server);
    std::vector<std::unique_ptr<AtpWorker>> workers;
    std::vector<std::vector<std::int32_t>> values;
    for (Endpoint index = 0; index < 4; ++index) {
      workers.push_back(std::make_unique<AtpWorker>(job, index, index < 2 ? kLeft : kRight));
      net.add(index, *workers.back());
      values.emplace_back(62 * 20, 1 << index);
    }
    for (Endpoint index = 0; index < 4; ++index) {
      Parties::Post out = net.post(index);
      auto& mine = values[static_cast<std::size_t>(index)];
      workers[static_cast<std::size_t>(index)]->begin(mine.data(), mine.data(), mine.size(), 0, out);
    }
    const auto done = [&] { return std::all_of(workers.begin(), workers.end(), [](auto& w) { return w->done(); }); };
    CHECK(seed == 0 ? net.run(done) : net.run_wildly(done, 0.1, 0.05, 6, seed));
    for (const auto& each : values) CHECK(each == std::vector<std::int32_t>(62 * 20, 15));
    if (seed == 0) CHECK_EQ(server.counters()[Count::received], 20U);
    for (AtpSwitch* each : {&left, &right, &root}) {
      each->close(1);
      CHECK_EQ(each->slots_in_use(), 0);
    }
    server.close(1);
    left.open(job, std::vector<Endpoint>{0, 1, kNobody, kNobody}, kSwitch);
    right.open(job, std::vector<Endpoint>{kNobody, kNobody, 2, 3}, kSwitch);
    root.open(job, std::vector<Endpoint>{kLeft, kLeft, kRight, kRight}, kServerAt);
    server.open(job, std::vector<Endpoint>{0, 1, 2, 3}, kSwitch);
  }
}

TEST(atp_sums_are_exact_whatever_is_lost_doubled_or_late) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    Parties net;
    const int workers = 1 + static_cast<int>(seed % 5), slots = 1 + static_cast<int>(seed % 7);
    AtpSwitch tor(8);
    AtpServer server;
    Job job = job_of(workers, slots, 1 + static_cast<int>(seed % 9));
    job.timeout = 1'000'000;
    Job other = job;
    other.id = 2;
    Rack<std::int32_t> rack(net, tor, server, job, 62 * 8 + seed % 62);
    Rack<float> second(net, tor, server, other, 62 * 5, 20);
    second.input[0][seed % 100] = 1e9F;
    rack.begin();
    second.begin();
    const auto done = [&] { return rack.done() && second.done(); };
    CHECK(net.run_wildly(done, 0.05 * (seed % 5), 0.05 * (seed % 3), 1 + seed % 12, seed));
    CHECK(rack.exact() && second.exact());
    rack.begin();
    second.begin();
    CHECK(net.run_wildly(done, 0.05 * (seed % 5), 0.05 * (seed % 3), 1 + seed % 12, seed));
    CHECK(rack.exact() && second.exact());
    net.settle();
    CHECK_EQ(server.slots_in_use(), 0);
    CHECK_EQ(tor.slots_in_use(), 0);
  }
}

TEST(atp_what_is_not_of_the_protocol_changes_nothing_and_is_counted) {
  Parties net;
  AtpSwitch tor(4);
  AtpServer server;
  Rack<std::int32_t> rack(net, tor, server, job_of(2, 4, 1), 62);
  rack.begin(0);
  net.settle();
  std::vector<std::uint8_t> before, after;
  before = state_of(tor, 0);
  Packet good{};
  write({0b10, 2, 0, 1, 0, 0, 0, 62}, good.data());
  Parties::Post out = net.post(kSwitch);
  const auto count = [&](Count what, Endpoint from, std::size_t at, std::uint8_t value) {
    Packet bad = good;
    bad[at] = value;
    const std::uint64_t was = tor.counters()[what];
    tor.receive(from, bad, 0, out);
    CHECK_EQ(tor.counters()[what], was + 1);
  };
  for (std::size_t size = 0; size < kBytes; size += 13) tor.receive(1, Bytes(good.data(), size), 0, out);
  CHECK_EQ(tor.counters()[Count::malformed], 22U);
  count(Count::malformed, 1, 3, 0);           // nobody's
  count(Count::malformed, 1, 3, 0b100);       // worker 2 of 2
  count(Count::malformed, 1, 4, 0);           // no workers
  count(Count::malformed, 1, 4, 3);           // another number of workers
  count(Count::malformed, 1, 4, 33);
  count(Count::malformed, 1, 5, kSecondHalf);
  count(Count::malformed, 1, 5, 0x20);        // another server's
  count(Count::malformed, 1, 9, 1);           // sequence and key differ
  count(Count::malformed, 1, 262, 0x80);
  count(Count::malformed, 1, 273, 0);
  count(Count::malformed, 1, 273, 63);
  count(Count::unknown_sender, 1, 7, 2);            // another job
  count(Count::unknown_sender, 0, 3, 0b10);         // another worker's
  count(Count::unknown_sender, 9, 3, 0b10);
  count(Count::out_of_range, 1, 11, 4);
  count(Count::out_of_range, 1, 13, 4);
  after = state_of(tor, 0);
  CHECK(before == after && net.letters.empty());
}

TEST(atp_jobs_that_cannot_be_served_are_refused) {
  AtpSwitch tor(4);
  AtpServer server;
  const std::vector<Endpoint> two{0, 1}, many(33, 5);
  const auto with = [](auto change) {
    Job job = job_of(2, 4, 4);
    change(job);
    return job;
  };
  CHECK_THROWS(std::invalid_argument, tor.open(job_of(33, 4), many, kServerAt));
  CHECK_THROWS(std::invalid_argument, tor.open(job_of(2, 5), two, kServerAt));
  CHECK_THROWS(std::invalid_argument, tor.open(job_of(3, 4), two, kServerAt));
  CHECK_THROWS(std::invalid_argument, tor.open(job_of(2, 4), two, kNobody));
  CHECK_THROWS(std::invalid_argument, tor.open(with([](Job& job) { job.id = 65536; }), two, kServerAt));
  CHECK_THROWS(std::invalid_argument, tor.open(with([](Job& job) { job.values = 63; }), two, kServerAt));
  CHECK_THROWS(std::invalid_argument, tor.open(with([](Job& job) { job.window = 101; }), two, kServerAt));
  CHECK_THROWS(std::invalid_argument, AtpWorker(job_of(2, 4), 2, kSwitch));
  CHECK_THROWS(std::invalid_argument, server.open(job_of(3, 4), two, kNobody));
  CHECK_THROWS(std::invalid_argument, server.open(job_of(33, 4), many, kSwitch));
  tor.open(job_of(2, 4), two, kServerAt);
  CHECK_THROWS(std::invalid_argument, tor.open(job_of(2, 4), two, kServerAt));
  CHECK_THROWS(std::invalid_argument, AtpSwitch(0));
  tor.close(1);
  tor.close(1);
  tor.open(job_of(2, 4), two, kServerAt);
}

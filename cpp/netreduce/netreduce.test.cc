// Hosts and switches of NetReduce together: sums in packets on their way, under loss, duplication and reordering.
#include <algorithm>
#include <limits>
#include <memory>
#include <stdexcept>

#include "netreduce/netreduce_switch.h"
#include "netreduce/netreduce_worker.h"
#include "testing/parties.h"
#include "testing/testing.h"

using namespace coppice::aggregation;
using namespace coppice::aggregation::netreduce;
using coppice::testing::Parties;

namespace {

constexpr Endpoint kSwitch = 100;

Job job_of(int workers, int window = 2, int packets = 4, int values = 8, Element element = Element::int32) {
  Job job;
  job.id = 5;
  job.workers = workers;
  job.values = values;
  job.window = window;
  job.element = element;
  job.timeout = 1'000'000;
  job.settings["message_packets"] = packets;
  return job;
}

template <class T>
struct Ring {
  Ring(Parties& parties, Job j, std::size_t count, Endpoint first_host = 0, Endpoint switch_at = kSwitch,
       int count_here = 0)
      : net(parties), job(std::move(j)), first(first_host), at(switch_at) {
    for (int index = 0; index < (count_here > 0 ? count_here : job.workers); ++index) {
      children.push_back(first + index);
      hosts.push_back(std::make_unique<NetReduceWorker>(job, count_here > 0 ? first + index : index, at));
      net.add(first + index, *hosts.back());
      input.emplace_back(count);
      output.emplace_back(count);
      for (std::size_t place = 0; place < count; ++place) {
        input.back()[place] = static_cast<T>((static_cast<std::size_t>(index) * 7919 + place * 31) % 1000);
      }
    }
  }
  void begin(std::size_t index) {
    Parties::Post out = net.post(first + static_cast<Endpoint>(index));
    hosts[index]->begin(input[index].data(), output[index].data(), input[index].size(), net.now, out);
  }
  void begin() {
    for (std::size_t index = 0; index < hosts.size(); ++index) begin(index);
  }
  bool done() const {
    return std::all_of(hosts.begin(), hosts.end(), [](const auto& host) { return host->done(); });
  }
  std::vector<T> sums() const {
    std::vector<T> all = input[0];
    for (std::size_t index = 1; index < input.size(); ++index) {
      for (std::size_t place = 0; place < all.size(); ++place) all[place] += input[index][place];
    }
    return all;
  }
  bool exact() const {
    const std::vector<T> expected = sums();
    return std::all_of(output.begin(), output.end(), [&](const auto& each) { return each == expected; });
  }
  std::uint64_t all(Count what) const {
    std::uint64_t sum = 0;
    for (const auto& host : hosts) sum += host->counters()[what];
    return sum;
  }

  Parties& net;
  Job job;
  Endpoint first, at;
  std::vector<Endpoint> children;
  std::vector<std::unique_ptr<NetReduceWorker>> hosts;
  std::vector<std::vector<T>> input, output;
};

std::vector<std::uint8_t> bytes_of(Packet packet, const std::vector<std::uint32_t>& values) {
  std::vector<std::uint8_t> bytes(kBase + kHeader + 4 * values.size());
  const std::size_t header = write(packet, bytes.data());
  for (std::size_t at = 0; at < values.size(); ++at) store(bytes.data() + header + 4 * at, values[at]);
  bytes.resize(header + 4 * values.size());
  return bytes;
}

}  // namespace

TEST(netreduce_every_flow_goes_on_with_the_sum_in_its_own_packets) {
  Parties net;
  NetReduceSwitch tor(1024);
  Ring<std::int32_t> ring(net, job_of(3, 2, 4, 8), 75);  // three messages; the last of two packets, 8 and 3 values
  tor.open(ring.job, ring.children, kNobody);
  net.add(kSwitch, tor);
  std::vector<Packet> from_switch;
  std::size_t sizes = 0;
  net.fate = [&](const Parties::Letter& letter) {
    Packet packet;
    CHECK(read(letter.bytes, packet));
    if (packet.kind != Kind::data) return 1;
    CHECK_EQ(packet.has_header(), packet.psn == first_number(5) ||
                                      packet.psn == first_number(5) + 4 ||
                                      packet.psn == first_number(5) + 8);
    if (letter.to == kSwitch) {
      CHECK_EQ(static_cast<int>(packet.flow), letter.from);
    } else {
      CHECK_EQ((packet.flow + 1) % 3, letter.to);
      from_switch.push_back(packet);
      sizes += packet.values();
    }
    return 1;
  };
  ring.begin();
  net.settle();
  CHECK(ring.done() && ring.exact());
  CHECK_EQ(from_switch.size(), 30U);
  CHECK_EQ(sizes, 3 * 75U);
  CHECK_EQ(ring.all(Count::resent), 0U);
  CHECK_EQ(tor.counters()[Count::completed], 10U);
  CHECK_EQ(tor.counters()[Count::forwarded], 9U);  // one acknowledgement a message and flow
  CHECK_EQ(tor.slots_in_use(), 0);
  net.fate = nullptr;
  ring.begin();
  net.settle();
  CHECK(ring.done() && ring.exact());
}

TEST(netreduce_one_lost_packet_stalls_all_flows_and_is_made_good_by_going_back) {
  // Wherever a packet is lost, before the switch or after it, once or twice.
  for (int lose = 0; lose < 200; ++lose) {
    Parties net;
    NetReduceSwitch tor(1024);
    Ring<std::int32_t> ring(net, job_of(3, 2, 3, 4), 60);
    tor.open(ring.job, ring.children, kNobody);
    net.add(kSwitch, tor);
    int seen = 0;
    net.fate = [&](const Parties::Letter&) { return seen++ == lose ? 0 : 1; };
    ring.begin();
    net.settle();
    CHECK(net.run([&] { return ring.done(); }, 20));
    CHECK(ring.exact());
    CHECK_EQ(tor.slots_in_use(), 0);
  }
}

TEST(netreduce_a_gap_is_told_once_and_answered_from_the_kept_sums) {
  Parties net;
  NetReduceSwitch tor(1024);
  Ring<std::int32_t> ring(net, job_of(3, 1, 8, 4), 32);
  tor.open(ring.job, ring.children, kNobody);
  net.add(kSwitch, tor);
  bool lost = false;
  int told = 0;
  net.fate = [&](const Parties::Letter& letter) {
    Packet packet;
    read(letter.bytes, packet);
    if (packet.kind == Kind::missing && letter.to == kSwitch) ++told;
    const bool lose = !lost && letter.to == 1 && packet.kind == Kind::data && packet.psn == first_number(5) + 2;
    lost |= lose;
    return lose ? 0 : 1;
  };
  ring.begin();
  net.settle();
  CHECK(ring.done() && ring.exact());
  CHECK_EQ(net.now, 0);  // without a time-out
  CHECK_EQ(told, 1);
  CHECK_EQ(ring.all(Count::resent), 6U);  // host 0, from packet 2 of 8 on
  CHECK_EQ(tor.counters()[Count::answered], 6U);
}

TEST(netreduce_packets_out_of_order_are_a_gap) {
  Parties net;
  NetReduceSwitch tor(1024);
  Ring<std::int32_t> ring(net, job_of(2, 1, 4, 4), 16);
  tor.open(ring.job, ring.children, kNobody);
  net.add(kSwitch, tor);
  ring.begin();
  // Everything up to the switch's packets to host 1, of which the second comes first.
  while (std::count_if(net.letters.begin(), net.letters.end(), [](const auto& each) { return each.to == kSwitch; }) > 0) {
    const auto next = std::find_if(net.letters.begin(), net.letters.end(), [](auto& each) { return each.to == kSwitch; });
    const Parties::Letter letter = *next;
    net.letters.erase(next);
    net.deliver(letter);
  }
  const auto to_one = [](const Parties::Letter& letter) { return letter.to == 1; };
  const auto early = std::find_if(net.letters.begin(), net.letters.end(), to_one);
  std::iter_swap(early, std::find_if(early + 1, net.letters.end(), to_one));
  net.settle();
  CHECK(ring.done() && ring.exact());
  CHECK_EQ(ring.all(Count::future), 3U);  // 1; then 2 and 3, since 0 came and 1 had to come again
  CHECK(ring.all(Count::resent) >= 3);
}

TEST(netreduce_a_packet_without_its_message_is_not_aggregated) {
  Parties net;
  NetReduceSwitch tor(1024);
  Ring<std::int32_t> ring(net, job_of(2, 1, 4, 4), 16);
  tor.open(ring.job, ring.children, kNobody);
  net.add(kSwitch, tor);
  int seen = 0;
  net.fate = [&](const Parties::Letter& letter) { return letter.to == kSwitch && seen++ == 0 ? 0 : 1; };
  ring.begin();
  net.settle();
  CHECK_EQ(tor.counters()[Count::future], 3U);
  CHECK_EQ(tor.slots_in_use(), 4);
  CHECK(!ring.done());
  CHECK(net.run([&] { return ring.done(); }, 1));
  CHECK(ring.exact());
  CHECK_EQ(net.now, 1'000'000);
}

TEST(netreduce_what_waits_in_the_switch_is_at_most_a_window_of_messages) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    Parties net;
    NetReduceSwitch tor(4096);
    const int window = 1 + static_cast<int>(seed % 5), packets = 1 + static_cast<int>(seed % 7);
    Ring<std::int32_t> ring(net, job_of(4, window, packets, 2), 600);
    tor.open(ring.job, ring.children, kNobody);
    net.add(kSwitch, tor);
    std::int64_t most = 0;
    for (std::size_t index = 0; index < 3; ++index) ring.begin(index);  // host 3 is late: all others run into the bound
    net.settle();
    CHECK_EQ(tor.slots_in_use(), window * packets);
    CHECK((tor.waits_for(5) == std::vector<int>{3}));
    ring.begin(3);
    const auto done = [&] {
      most = std::max(most, tor.slots_in_use());
      return ring.done();
    };
    CHECK(net.run_wildly(done, 0.03, 0.03, 1 + seed % 4, seed));
    CHECK_EQ(most, window * packets);
    CHECK(ring.exact());
    CHECK_EQ(tor.slots_in_use(), 0);
  }
}

TEST(netreduce_sums_are_exact_whatever_is_lost_doubled_or_late) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    Parties net;
    NetReduceSwitch tor(8192);
    const int workers = 1 + static_cast<int>(seed % 6), window = 1 + static_cast<int>(seed % 4);
    Ring<std::int32_t> ring(net, job_of(workers, window, 1 + static_cast<int>(seed % 5), 6), 100 + seed % 60);
    Job other = job_of(2, 3, 4, 5, Element::float32);
    other.id = 9;
    Ring<float> floats(net, other, 77, 20);
    tor.open(ring.job, ring.children, kNobody);
    tor.open(floats.job, floats.children, kNobody);
    net.add(kSwitch, tor);
    const auto done = [&] { return ring.done() && floats.done(); };
    for (int tensor = 0; tensor < 2; ++tensor) {
      if (tensor == 1) {
        for (auto& each : ring.input) std::reverse(each.begin(), each.end());
      }
      ring.begin();
      floats.begin();
      CHECK(net.run_wildly(done, 0.04 * (seed % 5), 0.05 * (seed % 3), 1 + seed % 6, seed));
      CHECK(ring.exact() && floats.exact());
    }
    net.settle();
    CHECK_EQ(tor.slots_in_use(), 0);
  }
}

TEST(netreduce_input_and_output_may_be_one_memory) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    Parties net;
    NetReduceSwitch tor(1024);
    Ring<std::int32_t> ring(net, job_of(3, 2, 3, 4), 90);
    tor.open(ring.job, ring.children, kNobody);
    net.add(kSwitch, tor);
    const std::vector<std::int32_t> expected = ring.sums();
    for (std::size_t index = 0; index < 3; ++index) {
      Parties::Post out = net.post(static_cast<Endpoint>(index));
      ring.hosts[index]->begin(ring.input[index].data(), ring.input[index].data(), 90, 0, out);
    }
    CHECK(net.run_wildly([&] { return ring.done(); }, 0.15, 0.1, 4, seed));
    for (const auto& each : ring.input) CHECK(each == expected);
  }
}

TEST(netreduce_floats_are_added_in_the_order_of_the_workers) {
  // 10^8 + 1 - 10^8 is 0 in that order, and 1 in another; the switch waits for the order, whoever comes first.
  for (const auto& order : std::vector<std::vector<std::size_t>>{{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 2, 0}}) {
    Parties net;
    NetReduceSwitch tor(64);
    Ring<float> ring(net, job_of(3, 1, 4, 8, Element::float32), 10);
    ring.input[0][3] = 1e8F;
    ring.input[1][3] = 1;
    ring.input[2][3] = -1e8F;
    ring.input[1][4] = std::numeric_limits<float>::infinity();
    tor.open(ring.job, ring.children, kNobody);
    net.add(kSwitch, tor);
    for (std::size_t each : order) ring.begin(each);
    net.settle();
    CHECK(ring.done() && ring.exact());
    CHECK_EQ(ring.output[1][3], 0.0F);
  }
}

TEST(netreduce_fixed_point_is_added_as_integers_and_refuses_what_does_not_fit) {
  Parties net;
  NetReduceSwitch tor(64);
  Job job = job_of(3, 1, 4, 8, Element::float32);
  job.settings["fixed_point"] = 1 << 16;
  Ring<float> ring(net, job, 10);
  for (auto& each : ring.input) each[3] = -0.25F;
  tor.open(ring.job, ring.children, kNobody);
  net.add(kSwitch, tor);
  ring.begin();
  net.settle();
  CHECK(ring.done() && ring.exact());
  ring.input[1][2] = 10923.0F;  // three times that is beyond 2^31 / 2^16
  ring.begin(1);
  CHECK(ring.hosts[1]->failure().find("found 10923") != std::string::npos);
  CHECK_EQ(ring.hosts[1]->deadline(), kNever);
}

TEST(netreduce_stale_messages_and_messages_beyond_the_credit_are_dropped) {
  Parties net;
  NetReduceSwitch tor(1024);
  const Job job = job_of(2, 1, 1, 1);
  tor.open(job, std::vector<Endpoint>{0, 1}, kNobody);
  const auto give = [&](Endpoint from, std::uint32_t message, std::uint32_t psn, std::uint32_t value) {
    const auto bytes = bytes_of({Kind::data, kHasHeader | kLast, static_cast<std::uint16_t>(from), psn, 5, message, 1, 0, {}},
                                {value});
    net.letters.clear();
    Parties::Post out = net.post(kSwitch);
    tor.receive(from, bytes, 0, out);
    return net.letters.size();
  };
  CHECK_EQ(give(0, 1, 1, 7), 0U);  // message 0 is not complete
  CHECK_EQ(tor.counters()[Count::future], 1U);
  for (std::uint32_t message = 0; message < 5; ++message) {
    CHECK_EQ(give(0, message, message, 1), 0U);
    CHECK_EQ(give(1, message, 50 + message, 2), 2U);
  }
  CHECK_EQ(give(0, 3, 3, 9), 1U);  // of the window before: answered, with the sum and not with what came
  Packet answer;
  CHECK(read(net.letters.front().bytes, answer));
  CHECK_EQ(load<std::uint32_t>(answer.payload.data()), 3U);
  CHECK_EQ(give(0, 2, 2, 9), 0U);  // older: nobody lacks it
  CHECK_EQ(give(0, 0, 0, 9), 0U);
  CHECK_EQ(tor.counters()[Count::stale], 2U);
  CHECK_EQ(give(0, 6, 6, 9), 0U);
  CHECK_EQ(tor.counters()[Count::future], 2U);
  CHECK_EQ(tor.slots_in_use(), 0);
}

TEST(netreduce_leaves_and_a_spine_add_up_all_hosts) {
  for (unsigned seed = 0; seed < 80; ++seed) {
    Parties net;
    NetReduceSwitch left(1024), right(1024), spine(1024);
    constexpr Endpoint kLeft = 50, kRight = 51;
    const Element element = seed % 2 == 0 ? Element::int32 : Element::float32;
    const Job job = job_of(5, 2, 3, 4, element);
    Ring<float> ints(net, job, 50, 0, kLeft, 3), more(net, job, 50, 3, kRight, 2);
    left.open(job, ints.children, kSwitch);
    right.open(job, more.children, kSwitch);
    spine.open(job, std::vector<Endpoint>{kLeft, kRight}, kNobody);
    net.add(kLeft, left);
    net.add(kRight, right);
    net.add(kSwitch, spine);
    int up = 0;
    net.fate = [&](const Parties::Letter& letter) {
      up += letter.to == kSwitch;
      return 1;
    };
    if (element == Element::int32) {  // the bits of floats, added as integers, are as good as any
      for (auto* ring : {&ints, &more}) {
        for (auto& each : ring->input) std::fill(each.begin(), each.end(), std::bit_cast<float>(3));
      }
    }
    ints.begin();
    more.begin();
    const auto done = [&] { return ints.done() && more.done(); };
    CHECK(seed < 2 ? net.run(done) : net.run_wildly(done, 0.08, 0.05, 1 + seed % 5, seed));
    if (seed < 2) CHECK_EQ(up, 2 * 13);  // one stream from each leaf, whatever its hosts
    std::vector<float> expected(50, std::bit_cast<float>(15));
    if (element == Element::float32) {
      const std::vector<float> one = ints.sums(), two = more.sums();
      for (std::size_t at = 0; at < 50; ++at) expected[at] = one[at] + two[at];
    }
    for (auto* ring : {&ints, &more}) {
      for (const auto& each : ring->output) CHECK(each == expected);
    }
    for (auto* each : {&left, &right, &spine}) CHECK_EQ(each->slots_in_use(), 0);
  }
}

TEST(netreduce_a_lost_reply_of_the_spine_is_repaired_from_what_it_keeps) {
  Parties net;
  NetReduceSwitch leaf(64), spine(64);
  constexpr Endpoint kLeaf = 50;
  Ring<std::int32_t> ring(net, job_of(2, 1, 1, 4), 4, 0, kLeaf);
  leaf.open(ring.job, ring.children, kSwitch);
  spine.open(ring.job, std::vector<Endpoint>{kLeaf}, kNobody);
  net.add(kLeaf, leaf);
  net.add(kSwitch, spine);
  int replies = 0;
  net.fate = [&](const Parties::Letter& letter) { return letter.from == kSwitch && replies++ == 0 ? 0 : 1; };
  ring.begin();
  net.settle();
  CHECK(!ring.done());
  CHECK(net.run([&] { return ring.done(); }, 1));
  CHECK(ring.exact());
  CHECK(spine.counters()[Count::answered] >= 1);
  CHECK_EQ(leaf.counters()[Count::aggregated], 2U);
}

TEST(netreduce_a_neighbour_that_has_gone_does_not_hold_a_worker_that_has_all) {
  Parties net;
  NetReduceSwitch tor(64);
  Ring<std::int32_t> ring(net, job_of(2, 1, 1, 4), 4);
  tor.open(ring.job, ring.children, kNobody);
  net.add(kSwitch, tor);
  net.fate = [&](const Parties::Letter& letter) {  // the acknowledgements of host 1, which is then not heard of again
    return letter.from == 1 && letter.bytes[0] != 1 ? 0 : 1;
  };
  ring.begin();
  net.settle();
  CHECK(ring.hosts[1]->done() && !ring.hosts[0]->done());
  CHECK(net.run([&] { return ring.done(); }, 8));
  CHECK(ring.exact());
  CHECK(ring.hosts[0]->failure().empty());
}

TEST(netreduce_a_worker_without_results_says_so) {
  Parties net;
  NetReduceSwitch tor(64);
  Ring<std::int32_t> ring(net, job_of(2, 1, 1, 4), 9);
  tor.open(ring.job, ring.children, kNobody);
  net.add(kSwitch, tor);
  ring.begin(0);
  CHECK(!net.run([&] { return ring.done(); }));
  CHECK(ring.hosts[0]->failure().find("worker 0 of job 5 had no result for 30000 ms: it waits for message 0 of 3") == 0);
  CHECK_EQ(ring.hosts[0]->deadline(), kNever);
}

TEST(netreduce_what_is_not_of_the_protocol_changes_nothing_and_is_counted) {
  Parties net;
  NetReduceSwitch tor(1024);
  Ring<std::int32_t> ring(net, job_of(2, 2, 3, 2), 2);
  tor.open(ring.job, ring.children, kNobody);
  net.add(kSwitch, tor);
  ring.begin(0);
  net.settle();
  std::vector<std::uint8_t> state, after;
  state = state_of(tor, 0);
  Parties::Post out = net.post(kSwitch);
  const Packet good{Kind::data, kHasHeader, 1, 9, 5, 0, 3, 0, {}};
  const auto count = [&](Count what, Endpoint from, const std::vector<std::uint8_t>& bytes) {
    const std::uint64_t was = tor.counters()[what];
    tor.receive(from, bytes, 0, out);
    CHECK_EQ(tor.counters()[what], was + 1);
  };
  const auto with = [&](auto change, std::vector<std::uint32_t> values = {1, 2}) {
    Packet bad = good;
    change(bad);
    return bytes_of(bad, values);
  };
  const std::vector<std::uint8_t> whole = bytes_of(good, {1, 2});
  for (std::size_t size = 0; size < whole.size(); ++size) {
    if (size == 24) continue;  // one value: see below
    count(Count::malformed, 1, {whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)});
  }
  count(Count::malformed, 1, with([](Packet&) {}, {1}));          // not the last, and short
  count(Count::malformed, 1, with([](Packet&) {}, {1, 2, 3}));    // more than a packet has
  count(Count::malformed, 1, with([](Packet& bad) { bad.flags |= kLast; }));
  count(Count::malformed, 1, with([](Packet& bad) { bad.flags |= 8; }));
  count(Count::malformed, 1, with([](Packet& bad) { bad.flags = kFromSwitch; }));
  count(Count::malformed, 1, with([](Packet& bad) { bad.position = 1; }));
  count(Count::malformed, 1, with([](Packet& bad) { bad.packets = 4; }));
  count(Count::malformed, 1, with([](Packet& bad) { bad.packets = 0; }));
  count(Count::malformed, 1, with([](Packet& bad) { bad.packets = 2; }));  // host 0 said one
  count(Count::unknown_sender, 0, with([](Packet&) {}));
  // Of host 0, message 0 has one packet: another message cannot have its number.
  count(Count::malformed, 0, with([](Packet& bad) { bad.flow = 0, bad.message = 1, bad.psn = first_number(5) - 2; }));
  count(Count::unknown_sender, 1, with([](Packet& bad) { bad.job = 6; }));
  count(Count::unknown_sender, 7, whole);
  count(Count::unknown_sender, kNobody, whole);
  count(Count::future, 1, with([](Packet& bad) { bad.message = 2; }));
  count(Count::future, 1, with([](Packet& bad) { bad.flags = 0; }));
  count(Count::unknown_sender, 1, bytes_of({Kind::acknowledged, 0, 1, 0, 0, 0, 0, 0, {}}, {}));  // of its own flow
  count(Count::unknown_sender, 1, bytes_of({Kind::missing, 0, 9, 0, 0, 0, 0, 0, {}}, {}));
  after = state_of(tor, 0);
  CHECK(state == after && net.letters.empty());
}

TEST(netreduce_jobs_that_cannot_be_served_are_refused) {
  NetReduceSwitch tor(16);
  const std::vector<Endpoint> two{0, 1};
  CHECK_THROWS(std::invalid_argument, tor.open(job_of(1), two, kNobody));
  CHECK_THROWS(std::invalid_argument, tor.open(job_of(1), {}, kNobody));
  CHECK_THROWS(std::invalid_argument, tor.open(job_of(2, 2, 5), two, kNobody));  // 20 slots
  CHECK_THROWS(std::invalid_argument, tor.open(job_of(2), std::vector<Endpoint>{0, 0}, kNobody));
  CHECK_THROWS(std::invalid_argument, tor.open(job_of(2), two, 1));
  CHECK_THROWS(std::invalid_argument, tor.open(job_of(2, 0), two, kNobody));
  CHECK_THROWS(std::invalid_argument, tor.open(job_of(2, 1, 0), two, kNobody));
  CHECK_THROWS(std::invalid_argument, tor.open(job_of(2, 1, 1, 1025), two, kNobody));
  CHECK_THROWS(std::invalid_argument, NetReduceWorker(job_of(2), 2, kSwitch));
  CHECK_THROWS(std::invalid_argument, NetReduceSwitch(0));
  tor.open(job_of(2), two, kNobody);
  Job other = job_of(1);
  other.id = 6;
  CHECK_THROWS(std::invalid_argument, tor.open(other, std::vector<Endpoint>{1}, kNobody));
  CHECK_THROWS(std::invalid_argument, tor.open(other, std::vector<Endpoint>{2}, kNobody));  // no slots left
  tor.close(5);
  tor.open(other, std::vector<Endpoint>{1}, kNobody);
}

#include "aggregation/switchml.h"

#include <algorithm>
#include <climits>
#include <initializer_list>
#include <stdexcept>

#include "aggregation/bytes.h"
#include "testing/mail.h"
#include "testing/switchml_jobs.h"
#include "testing/testing.h"

using namespace coppice::aggregation;
using namespace coppice::aggregation::testing;

namespace {

std::vector<std::uint8_t> packet_of(int set, int slot, std::uint32_t id, int times, int values = 64, std::uint8_t job = 0) {
  std::vector<std::uint8_t> packet(SwitchMlPacket::size_of(values));
  SwitchMlPacket{SwitchMlPacket::kind_of(values), job, id, set != 0, slot, {}}.write(packet.data());
  for (int i = 0; i < values; ++i) {
    store(packet.data() + SwitchMlPacket::kHead + 4 * i, static_cast<std::uint32_t>(times * i));
  }
  return packet;
}

std::string said(std::initializer_list<std::string> replies) {
  std::string all;
  for (const std::string& each : replies) all += (all.empty() ? "" : " ") + each;
  return all;
}

// One slot driven as the published scenarios are written: worker w sends x * i for i = 0, 1, ... to a set.
class Bench {
 public:
  explicit Bench(int workers, int slots = 4, std::uint32_t first = 0) : slots_(slots), first_(first), machine_(64) {
    Job job = job_of(workers, slots);
    job.settings["first_packet"] = first;
    machine_.open(job, numbered(workers), kNobody);
    workers_ = workers;
  }

  // Packet ids as workers set them: a change of the set is the next round of the slot. Returns the reply.
  std::string say(int worker, int set, int times, int slot = 0) {
    const auto at = last_.emplace(std::pair{worker, slot}, std::pair{set, 0}).first;
    if (at->second.first != set) at->second = {set, at->second.second + 1};
    return raw(worker, set, times, at->second.second, slot);
  }
  // The same with the round given.
  std::string raw(int worker, int set, int times, int round, int slot = 0) {
    Sent out;
    const auto id = first_ + static_cast<std::uint32_t>(slot + round * slots_);
    machine_.receive(worker, packet_of(set, slot, id, times), 0, out);
    if (out.letters.empty()) return "-";
    const Letter& letter = out.letters.front();
    for (int i = 0; i < 64; ++i) CHECK_EQ(value_of(letter.packet, i), i * value_of(letter.packet, 1));
    CHECK_EQ(SwitchMlPacket::read(letter.packet.data()).id, id);
    CHECK_EQ(SwitchMlPacket::read(letter.packet.data()).set, set != 0);
    const bool all = static_cast<int>(out.letters.size()) == workers_;
    return (all ? std::string("all") : std::to_string(letter.to)) + " " + std::to_string(value_of(letter.packet, 1));
  }
  // "B0 B1 | C0 C1 | V0 V1"
  std::string state(int slot = 0) const {
    const SwitchMlSwitch::Slot& at = machine_.slot(0, slot);
    std::string text;
    for (std::uint32_t seen : at.seen) {
      for (int w = workers_ - 1; w >= 0; --w) text += (seen >> w & 1) != 0 ? '1' : '0';
      text += ' ';
    }
    text += "| " + std::to_string(at.missing[0]) + " " + std::to_string(at.missing[1]) + " |";
    for (int set = 0; set < 2; ++set) text += " " + std::to_string(machine_.values(0, slot, set)[1]);
    return text;
  }
  SwitchMlSwitch& machine() { return machine_; }

 private:
  int slots_, workers_ = 0;
  std::uint32_t first_;
  SwitchMlSwitch machine_;
  std::map<std::pair<int, int>, std::pair<int, int>> last_;
};

}  // namespace

TEST(switchml_packet_is_the_published_one) {
  const auto packet = packet_of(1, 0x1234, 0x0A0B0C0D, 1, 256, 7);
  CHECK_EQ(packet.size(), 1034u);
  const std::vector<std::uint8_t> head{0x13, 7, 0x0D, 0x0C, 0x0B, 0x0A, 0x92, 0x34, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  CHECK(std::equal(head.begin(), head.end(), packet.begin()));
  CHECK_EQ(packet_of(0, 0, 0, 1).size(), 266u);
  CHECK_EQ(int{packet_of(0, 0, 0, 1)[0]}, 0x11);
}

TEST(switchml_two_workers_as_published) {
  {  // 1 and 6: basic, then retransmissions after the reduction
    Bench b(2);
    CHECK_EQ(b.say(0, 0, 1), "-");
    CHECK_EQ(b.say(1, 0, 1), "all 2");
    CHECK_EQ(b.state(), "11 00 | 0 0 | 2 0");
    for (int i = 0; i < 3; ++i) CHECK_EQ(b.say(1, 0, 1), "1 2");
    for (int i = 0; i < 2; ++i) CHECK_EQ(b.say(0, 0, 1), "0 2");
    CHECK_EQ(b.state(), "11 00 | 0 0 | 2 0");
  }
  {  // 2 and 7: the other set first, then retransmissions from the previous set
    Bench b(2);
    CHECK_EQ(b.say(0, 1, 1), "-");
    CHECK_EQ(b.say(1, 1, 1), "all 2");
    CHECK_EQ(b.state(), "00 11 | 0 0 | 0 2");
    CHECK_EQ(b.say(1, 0, 3), "-");
    for (int i = 0; i < 3; ++i) CHECK_EQ(b.say(0, 1, 1), "0 2");
    CHECK_EQ(b.state(), "10 01 | 1 0 | 3 2");
  }
  {  // 3, 4 and 8: both sets, slots used again, and a retransmission then
    Bench b(2);
    b.say(0, 0, 1), b.say(1, 0, 1);
    CHECK_EQ(b.say(1, 1, 3), "-");
    CHECK_EQ(b.state(), "01 10 | 0 1 | 2 3");
    CHECK_EQ(b.say(0, 1, 3), "all 6");
    CHECK_EQ(b.state(), "00 11 | 0 0 | 2 6");
    CHECK_EQ(b.say(0, 0, 3), "-");
    CHECK_EQ(b.say(1, 0, 3), "all 6");
    CHECK_EQ(b.say(1, 1, 3), "-");
    CHECK_EQ(b.say(0, 0, 3), "0 6");
    CHECK_EQ(b.state(), "01 10 | 0 1 | 6 3");
    CHECK_EQ(b.say(0, 1, 3), "all 6");
    CHECK_EQ(b.state(), "00 11 | 0 0 | 6 6");
  }
  {  // 5: retransmissions of what is pending
    Bench b(2);
    for (int i = 0; i < 3; ++i) {
      CHECK_EQ(b.say(0, 1, 1), "-");
      CHECK_EQ(b.state(), "00 01 | 0 1 | 0 1");
    }
    CHECK_EQ(b.say(1, 1, 1), "all 2");
  }
  {  // 9: another slot
    Bench b(2);
    b.say(0, 0, 1), b.say(1, 0, 1);
    CHECK_EQ(b.say(0, 0, 1, 1), "-");
    CHECK_EQ(b.say(1, 0, 1, 1), "all 2");
  }
}

TEST(switchml_three_workers_and_one_as_published) {
  {  // 11, 13, 14, 18
    Bench b(3);
    CHECK_EQ(said({b.say(0, 0, 1), b.say(1, 0, 1), b.say(2, 0, 1)}), "- - all 3");
    CHECK_EQ(b.state(), "111 000 | 0 0 | 3 0");
    CHECK_EQ(said({b.say(0, 1, 1), b.say(1, 1, 1), b.say(2, 1, 1)}), "- - all 3");
    CHECK_EQ(said({b.say(0, 0, 3), b.say(1, 0, 3), b.say(2, 0, 3)}), "- - all 9");
    CHECK_EQ(said({b.say(1, 1, 3), b.say(0, 0, 3), b.say(2, 0, 3)}), "- 0 9 2 9");
    CHECK_EQ(b.state(), "101 010 | 0 2 | 9 3");
    CHECK_EQ(said({b.say(0, 1, 3), b.say(2, 1, 3)}), "- all 9");
    CHECK_EQ(b.state(), "000 111 | 0 0 | 9 9");
  }
  {  // 12, 15, 16, 17
    Bench b(3);
    CHECK_EQ(said({b.say(0, 1, 1), b.say(0, 1, 1), b.say(0, 1, 1), b.say(1, 1, 1), b.say(2, 1, 1)}), "- - - - all 3");
    CHECK_EQ(b.say(2, 1, 1), "2 3");
    CHECK_EQ(b.say(1, 0, 1), "-");
    for (int i = 0; i < 3; ++i) CHECK_EQ(b.say(0, 1, 1), "0 3");
    CHECK_EQ(b.state(), "010 101 | 2 0 | 1 3");
  }
  {  // one worker: a contribution is the sum
    Bench b(1);
    CHECK_EQ(b.say(0, 0, 1), "all 1");
    const auto completed = b.machine().counters()[Count::completed];
    CHECK_EQ(b.say(0, 0, 1), "all 1");
    CHECK_EQ(b.machine().counters()[Count::completed], completed);
    CHECK_EQ(b.machine().counters()[Count::answered], 1u);
    CHECK_EQ(said({b.say(0, 1, 2), b.say(0, 0, 3)}), "all 2 all 3");
  }
}

TEST(switchml_late_duplicates_are_never_new) {
  {  // C1: a copy of set 0 comes while set 1 is pending
    Bench b(2);
    b.say(0, 0, 1), b.say(1, 0, 1), b.say(0, 1, 5);
    CHECK_EQ(b.raw(0, 0, 1, 0), "-");
    CHECK_EQ(b.machine().counters()[Count::stale], 1u);
    CHECK_EQ(b.state(), "10 01 | 0 1 | 2 5");
    CHECK_EQ(b.say(1, 1, 5), "all 10");
  }
  {  // C2: both sets have moved on
    Bench b(2);
    b.say(0, 0, 1), b.say(1, 0, 1), b.say(0, 1, 2), b.say(1, 1, 2);
    CHECK_EQ(b.raw(0, 0, 1, 0), "-");
    CHECK_EQ(b.say(0, 0, 7), "-");
    CHECK_EQ(b.say(1, 0, 7), "all 14");
  }
}

TEST(switchml_ids_wrap_around_and_only_the_next_opens_a_set) {
  Bench b(2, 3, 0xFFFFFFFA);  // C4: three slots, which do not divide 2^32
  for (int round = 0; round < 9; ++round) {
    const int set = round % 2;
    CHECK_EQ(b.raw(0, set, round, round), "-");
    for (int back = 2; back < 6; ++back) CHECK_EQ(b.raw(1, set, 99, round - back), "-");  // both sets' old ids
    CHECK_EQ(b.raw(1, 1 - set, 99, round), "-");
    CHECK_EQ(b.raw(1, 1 - set, 99, round + 1), "-");  // this set is not complete
    CHECK_EQ(b.raw(1, set, 99, round + 2), "-");
    CHECK_EQ(b.raw(1, set, round, round), "all " + std::to_string(2 * round));
    CHECK_EQ(b.raw(1, set, 99, round + 1), "-");      // the set is not the other one
    CHECK_EQ(b.raw(1, 1 - set, 99, round + 2), "-");
    CHECK_EQ(b.raw(1, 1 - set, 99, round + 3), "-");
  }
  CHECK_EQ(b.machine().counters()[Count::aggregated], 18u);
  CHECK(b.machine().counters()[Count::stale] >= 9 * 4u);
  CHECK(b.machine().counters()[Count::future] >= 9 * 4u);
  Bench fresh(2, 3, 17);  // C7: of another life of the job
  CHECK_EQ(said({fresh.raw(0, 0, 9, 1), fresh.raw(0, 0, 9, -1), fresh.raw(1, 0, 2, 0), fresh.raw(0, 0, 2, 0)}), "- - - all 4");
}

TEST(switchml_jobs_are_apart_and_slots_come_back) {
  SwitchMlSwitch machine(10);  // C12, C14
  Job first = job_of(2, 6), second = job_of(3, 4);
  second.id = 257;  // the same low byte as 1
  machine.open(first, numbered(2), kNobody);
  CHECK_THROWS(std::invalid_argument, machine.open(first, numbered(2, 10), kNobody));
  Job large = job_of(2, 5);
  large.id = 9;
  CHECK_THROWS(std::invalid_argument, machine.open(large, numbered(2, 10), kNobody));
  CHECK_THROWS(std::invalid_argument, machine.open(second, numbered(3, 1), kNobody));  // 1 is of the first job
  CHECK_THROWS(std::invalid_argument, machine.open(second, std::vector<Endpoint>{10, 10, 11}, kNobody));
  CHECK_THROWS(std::invalid_argument, machine.open(second, std::vector<Endpoint>{}, kNobody));
  CHECK_THROWS(std::invalid_argument, machine.open(second, numbered(33, 10), kNobody));
  machine.open(second, numbered(3, 10), kNobody);
  Sent out;
  for (int w = 0; w < 3; ++w) machine.receive(10 + w, packet_of(0, 3, 3, 5, 64, 1), 0, out);
  CHECK_EQ(out.letters.size(), 3u);
  CHECK_EQ(value_of(out.letters.front().packet, 2), 30);
  machine.receive(0, packet_of(0, 3, 3, 5), 0, out);
  CHECK_EQ(machine.slots_in_use(), 1);
  CHECK(machine.waits_for(0) == std::vector<int>{1});
  CHECK(machine.waits_for(257).empty());
  machine.close(0);
  machine.close(0);
  CHECK_EQ(machine.slots_in_use(), 0);
  machine.receive(0, packet_of(0, 3, 3, 5), 0, out);
  CHECK_EQ(machine.counters()[Count::unknown_sender], 1u);
  machine.open(first, numbered(2), kNobody);
  CHECK_EQ(machine.slot(0, 3).seen[0], 0u);
}

TEST(switchml_jobs_that_no_switch_can_serve_are_refused) {
  SwitchMlSwitch machine(100'000);
  for (auto spoil : {+[](Job& job) { job.values = 0; }, +[](Job& job) { job.values = 2049; }, +[](Job& job) { job.slots = 0; },
                     +[](Job& job) { job.slots = 8193; }, +[](Job& job) { job.window = 5; }, +[](Job& job) { job.window = 0; },
                     +[](Job& job) { job.workers = 0; }, +[](Job& job) { job.settings["first_packet"] = 0.5; },
                     +[](Job& job) { job.settings["first_packet"] = 4294967296.0; }}) {
    Job job = job_of(2, 4);
    spoil(job);
    CHECK_THROWS(std::invalid_argument, machine.open(job, numbered(2), kNobody));
    CHECK_THROWS(std::invalid_argument, SwitchMlWorker(job, 0, 0));
  }
  CHECK_THROWS(std::invalid_argument, SwitchMlWorker(job_of(2, 4), 2, 0));
}

TEST(switchml_refuses_hostile_packets_and_keeps_its_state) {
  Bench b(2);  // C15
  b.say(0, 0, 1), b.say(1, 0, 1), b.say(0, 1, 4);
  std::vector<std::uint8_t> before, afterwards;
  before = state_of(b.machine(), 0);
  const auto good = packet_of(1, 0, 4, 9);
  Sent out;
  auto spoilt = [&](auto&& change) {
    auto packet = good;
    change(packet);
    b.machine().receive(1, packet, 0, out);
  };
  for (std::size_t cut = 1; cut <= good.size(); ++cut) spoilt([cut](auto& p) { p.resize(p.size() - cut); });
  spoilt([](auto& p) { p.push_back(0); });
  for (int kind : {0x10, 0x12, 0x13, 0x14, 0x01, 0x21, 0xFF}) spoilt([kind](auto& p) { p[0] = static_cast<std::uint8_t>(kind); });
  CHECK_EQ(b.machine().counters()[Count::malformed], good.size() + 8);
  spoilt([](auto& p) { p[1] = 1; });
  b.machine().receive(2, good, 0, out);
  CHECK_EQ(b.machine().counters()[Count::unknown_sender], 2u);
  spoilt([](auto& p) { p[6] |= 0x40; });
  spoilt([](auto& p) { p[7] = 4; });
  CHECK_EQ(b.machine().counters()[Count::out_of_range], 2u);
  CHECK(out.letters.empty());
  afterwards = state_of(b.machine(), 0);
  CHECK(before == afterwards);
  CHECK_EQ(b.say(1, 1, 4), "all 8");
}

TEST(switchml_values_wrap_and_exponents_take_the_greatest) {
  SwitchMlSwitch machine(1);  // C9
  machine.open(job_of(2, 1, 1), numbered(2), kNobody);
  Sent out;
  auto packet = packet_of(0, 0, 0, 0, 1);
  store<std::uint32_t>(packet.data() + 10, INT_MAX);
  packet[8] = 0x80, packet[9] = 3;
  machine.receive(0, packet, 0, out);
  store<std::uint32_t>(packet.data() + 10, 1);
  packet[8] = 5, packet[9] = 0xFF;
  machine.receive(1, packet, 0, out);
  CHECK_EQ(value_of(out.letters.front().packet, 0), INT_MIN);
  CHECK_EQ(int{out.letters.front().packet[8]}, 5);
  CHECK_EQ(int{out.letters.front().packet[9]}, 3);
}

TEST(switchml_trees_of_switches_repair_a_lost_sum_of_the_parent) {
  Job job = job_of(4, 2);  // C17: workers 0 to 3, leaves 10 and 11, root 20
  SwitchMlSwitch left(2), right(2), root(2);
  left.open(job, std::vector<Endpoint>{0, 1}, 20);
  right.open(job, std::vector<Endpoint>{2, 3}, 20);
  root.open(job, std::vector<Endpoint>{10, 11}, kNobody);
  Sent up, down, out;
  for (int w = 0; w < 2; ++w) left.receive(w, packet_of(0, 0, 0, 1), 0, up);
  for (int w = 2; w < 4; ++w) right.receive(w, packet_of(0, 0, 0, 10), 0, up);
  CHECK_EQ(up.letters.size(), 2u);
  CHECK_EQ(left.slots_in_use(), 1);
  root.receive(10, up.letters[0].packet, 0, down);
  CHECK(down.letters.empty());
  root.receive(11, up.letters[1].packet, 0, down);
  CHECK_EQ(down.letters.size(), 2u);
  right.receive(20, down.letters[1].packet, 0, out);
  CHECK_EQ(out.letters.size(), 2u);
  CHECK_EQ(value_of(out.letters[0].packet, 1), 22);
  right.receive(20, down.letters[1].packet, 0, out);  // twice: once
  CHECK_EQ(out.letters.size(), 2u);
  // The root's sum does not reach the left leaf. A worker below goes on too early, then asks again.
  out.letters.clear(), up.letters.clear(), down.letters.clear();
  left.receive(0, packet_of(1, 0, 2, 7), 0, up);
  CHECK_EQ(left.counters()[Count::future], 1u);
  left.receive(1, packet_of(0, 0, 0, 1), 0, up);
  CHECK_EQ(up.letters.size(), 1u);
  CHECK_EQ(up.letters[0].to, 20);
  root.receive(10, up.letters[0].packet, 0, down);
  CHECK_EQ(down.letters.size(), 1u);
  left.receive(20, down.letters[0].packet, 0, out);
  CHECK_EQ(out.letters.size(), 2u);
  CHECK_EQ(value_of(out.letters[1].packet, 1), 22);
  left.receive(1, packet_of(0, 0, 0, 1), 0, up);  // now from the copy
  CHECK_EQ(up.letters.size(), 2u);
  CHECK_EQ(value_of(up.letters[1].packet, 1), 22);
  CHECK_EQ(left.slots_in_use() + right.slots_in_use() + root.slots_in_use(), 0);
}

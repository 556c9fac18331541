#include "udp/gate.h"

#include <algorithm>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <utility>

#include "testing/testing.h"

namespace coppice::udp {
namespace {

using aggregation::Aggregator;
using aggregation::Count;
using aggregation::Endpoint;
using aggregation::Job;
using aggregation::Outbox;

// A switch that gives every packet to all workers of its job, and remembers who sent what.
class Echo final : public Aggregator {
 public:
  void open(const Job& job, std::span<const Endpoint> children, Endpoint) override {
    if (job.values == 13) throw std::invalid_argument("expected other values, found 13");
    jobs[job.id].assign(children.begin(), children.end());
  }
  void close(std::uint32_t job) override { jobs.erase(job); }
  std::int64_t slots_in_use() const override { return static_cast<std::int64_t>(jobs.size()); }
  void receive(Endpoint from, Bytes packet, Time, Outbox& out) override {
    ++counters_[Count::received];
    for (const auto& each : jobs) {
      const auto& children = each.second;
      if (std::find(children.begin(), children.end(), from) != children.end()) out.send(children, packet);
    }
  }
  std::unique_ptr<aggregation::Node> clone() const override { return nullptr; }
  void save(Time, aggregation::StateWriter&) const override {}
  std::map<std::uint32_t, std::vector<Endpoint>> jobs;
};

struct Sent {
  Address to;
  std::vector<std::uint8_t> packet;
};

class List final : public Wire {
 public:
  std::uint8_t* room(std::size_t bytes) override {
    writing_.resize(bytes);
    return writing_.data();
  }
  void send(std::span<const Address> to) override {
    for (const Address& each : to) all.push_back({each, writing_});
  }
  std::vector<Sent> taken() { return std::exchange(all, {}); }
  std::vector<Sent> all;

 private:
  std::vector<std::uint8_t> writing_;
};

constexpr Address kGate{0x7F000001, 9000};
Address address_of(int worker) { return {0x7F000001, static_cast<std::uint16_t>(5000 + worker)}; }

GateSettings gate_settings() {
  GateSettings settings;
  settings.protocol = "echo";
  settings.secret = "sesame";
  settings.seed = 7;
  return settings;
}

ConnectionSettings member_settings(int worker, int workers, std::uint32_t job = 1, std::uint32_t epoch = 1) {
  ConnectionSettings settings;
  settings.join.protocol = "echo";
  settings.join.job.id = job;
  settings.join.job.workers = workers;
  settings.join.job.slots = 4;
  settings.worker = worker;
  settings.epoch = epoch;
  settings.secret = "sesame";
  settings.above = kGate;
  settings.seed = static_cast<std::uint64_t>(100 * job + 10 * epoch + static_cast<unsigned>(worker) + 1);
  return settings;
}

// A gate and some members that hear each other without loss.
struct Room {
  explicit Room(GateSettings settings = gate_settings()) {
    auto made = std::make_unique<Echo>();
    echo = made.get();
    gate = std::make_unique<Gate>(std::move(settings), std::move(made), nullptr);
    gate->log = [this](const std::string& line) { log.push_back(line); };
  }
  Connection& add(ConnectionSettings settings, Address from) {
    members.push_back(std::make_unique<Connection>(std::move(settings)));
    addresses.push_back(from);
    members.back()->start(now, wire);
    from_members(members.size() - 1);
    return *members.back();
  }
  Connection& add(ConnectionSettings settings) {
    const int worker = settings.worker;
    return add(std::move(settings), address_of(worker));
  }
  void from_members(std::size_t sender) {
    for (const Sent& each : wire.taken()) give(addresses[sender], each.packet);
  }
  // One packet into the gate; what it answers is given to the members, and so on.
  std::size_t give(Address from, Bytes packet) {
    List out;
    gate->receive(from, packet, now, out);
    return answers(out);
  }
  std::size_t answers(List& out) {
    const std::vector<Sent> all = out.taken();
    for (const Sent& each : all) {
      heard.push_back(each);
      for (std::size_t at = 0; at < members.size(); ++at) {
        if (!(addresses[at] == each.to)) continue;
        const Bytes body = members[at]->receive(each.packet, now, wire);
        if (!body.empty()) bodies.emplace_back(body.begin(), body.end());
        from_members(at);
      }
    }
    return all.size();
  }
  void pass(Time time) {
    for (const Time end = now + time; now < end;) {
      now += 50 * kMillisecond;
      List out;
      gate->wake(now, out);
      answers(out);
      for (std::size_t at = 0; at < members.size(); ++at) {
        if (asleep.size() > at && asleep[at]) continue;
        members[at]->wake(now, wire);
        if (members[at]->ready()) {
          std::uint8_t* room = wire.room(members[at]->beat().size());
          std::copy(members[at]->beat().begin(), members[at]->beat().end(), room);
          wire.send({&kGate, 1});
        }
        from_members(at);
      }
    }
  }
  std::vector<std::uint8_t> data(std::size_t member, std::vector<std::uint8_t> body) {
    members[member]->send(body, wire);
    return wire.taken().back().packet;
  }

  std::unique_ptr<Gate> gate;
  Echo* echo;
  std::vector<std::unique_ptr<Connection>> members;
  std::vector<Address> addresses;
  std::vector<bool> asleep;
  std::vector<Sent> heard;
  std::vector<std::vector<std::uint8_t>> bodies;
  std::vector<std::string> log;
  List wire;
  Time now = kSecond;
};

TEST(udp_siphash_has_the_values_of_its_paper) {
  // Appendix A of the paper: key 00..0f, message 00..0e; and the first two of the reference vectors.
  std::vector<std::uint8_t> message;
  for (std::uint8_t each = 0; each < 15; ++each) message.push_back(each);
  const Key key{0x0706050403020100u, 0x0f0e0d0c0b0a0908u};
  CHECK_EQ(siphash(key, message), 0xa129ca6149be45e5u);
  CHECK_EQ(siphash(key, Bytes(message).first(0)), 0x726fdb47dd0e0e31u);
  CHECK_EQ(siphash(key, Bytes(message).first(1)), 0x74f839c593dc67fdu);
  CHECK_EQ(siphash(key, Bytes(message).first(8)), 0x93f5f5799a932462u);
}

TEST(udp_a_job_begins_when_all_workers_have_joined) {
  Room room;
  Connection& first = room.add(member_settings(0, 2));
  CHECK(!first.ready());
  CHECK_EQ(first.missing(), "worker 1 has not joined");
  CHECK_EQ(room.echo->jobs.size(), 0u);
  Connection& second = room.add(member_settings(1, 2));
  CHECK(first.ready() && second.ready());
  CHECK_EQ(room.echo->jobs.at(1).size(), 2u);
  CHECK_EQ(room.give(address_of(0), room.data(0, {1, 2, 3})), 2u);
  CHECK_EQ(room.bodies.size(), 2u);
  CHECK(room.bodies[0] == (std::vector<std::uint8_t>{1, 2, 3}));
  CHECK_EQ(room.log.size(), 1u);
}

TEST(udp_joining_is_idempotent_and_survives_doubled_packets) {
  Room room;
  room.add(member_settings(0, 2));
  room.add(member_settings(1, 2));
  const std::size_t open = room.log.size();
  // Everything that a worker ever said while it joined, once more.
  Connection copy(member_settings(0, 2));
  List said;
  copy.start(room.now, said);
  for (int time = 0; time < 3; ++time) {
    for (const Sent& each : said.all) CHECK_EQ(room.give(address_of(0), each.packet), 1u);
  }
  CHECK_EQ(room.log.size(), open);
  CHECK(room.members[0]->ready());
  CHECK_EQ(room.give(address_of(1), room.data(1, {9})), 2u);
}

TEST(udp_what_does_not_fit_is_refused_with_the_reason) {
  GateSettings settings = gate_settings();
  settings.workers = 2;
  settings.most_slots = 8;
  Room room(settings);
  const auto failure = [&](auto change) {
    ConnectionSettings wanted = member_settings(0, 2, 40);
    change(wanted);
    return room.add(wanted).failure();
  };
  CHECK_EQ(failure([](auto& each) { each.join.job.workers = 3; }), "the switch serves jobs of 2 workers, found 3");
  CHECK_EQ(failure([](auto& each) { each.join.job.slots = 9; }), "a job may have 8 slots, found 9");
  CHECK_EQ(failure([](auto& each) { each.worker = 2; }), "expected a worker of 0 to 1, found 2");
  CHECK_EQ(failure([](auto& each) { each.join.threads = 2; }), "the switch has 1 threads and this is thread 0, found thread 0 of 2");
  CHECK_EQ(failure([](auto& each) { each.join.protocol = "shout"; }), "the switch speaks echo, the worker shout");
  CHECK_EQ(room.gate->jobs(), 0);
  room.add(member_settings(0, 2));
  ConnectionSettings other = member_settings(1, 2);
  other.join.job.values = 64;
  CHECK_EQ(room.add(other).failure(), "expected 256 values as the workers before it, found 64");
  ConnectionSettings twice = member_settings(0, 2);
  twice.seed = 99;
  CHECK_EQ(room.add(twice, address_of(7)).failure(), "worker 0 of job 1, epoch 1 has joined already, from 127.0.0.1:5000");
  // What the machine itself does not serve is told to all.
  ConnectionSettings one = member_settings(0, 2, 5), two = member_settings(1, 2, 5);
  one.join.job.values = two.join.job.values = 13;
  room.add(one), room.add(two);
  const std::string words = "the switch cannot serve job 5: expected other values, found 13";
  CHECK_EQ(room.members[room.members.size() - 2]->failure(), words);
  CHECK_EQ(room.members.back()->failure(), words);
  CHECK_EQ(room.echo->jobs.size(), 0u);
}

TEST(udp_a_higher_epoch_replaces_a_session_and_lower_ones_are_refused) {
  Room room;
  for (const std::uint32_t epoch : {1u, 3u}) {
    room.members.clear(), room.addresses.clear();
    room.add(member_settings(0, 2, 1, epoch));
    room.add(member_settings(1, 2, 1, epoch));
    CHECK(room.members[1]->ready());
  }
  CHECK_EQ(room.log[1], "job 1, epoch 1 ends: epoch 3 replaced it");
  const std::vector<std::uint8_t> fresh = room.data(0, {1});
  Room old;
  old.add(member_settings(0, 2)), old.add(member_settings(1, 2));
  CHECK_EQ(room.give(address_of(0), old.data(0, {1})), 0u);
  CHECK_EQ(room.gate->counters()[Count::bad_epoch], 1u);
  CHECK_EQ(room.add(member_settings(0, 2, 1, 2), address_of(0)).failure(), "job 1 is in epoch 3, found epoch 2");
  CHECK_EQ(room.add(member_settings(0, 2, 1, 1), address_of(0)).failure(),
           "epoch 1 of job 1 is over (epoch 3 replaced it): join with an epoch above 1");
  CHECK_EQ(room.give(address_of(0), fresh), 2u);
}

TEST(udp_strangers_and_forged_packets_change_nothing_and_get_no_answer) {
  Room room;
  room.add(member_settings(0, 2)), room.add(member_settings(1, 2));
  const std::vector<std::uint8_t> good = room.data(0, {1, 2, 3, 4});
  const std::uint64_t before = room.gate->protocol_counters()[Count::received];
  const auto dropped = [&](Address from, const std::vector<std::uint8_t>& packet, Count why) {
    const std::uint64_t count = room.gate->counters()[why];
    CHECK_EQ(room.give(from, packet), 0u);
    CHECK_EQ(room.gate->counters()[why], count + 1);
  };
  dropped(address_of(9), good, Count::unknown_sender);      // replayed from elsewhere
  dropped(address_of(1), good, Count::unknown_sender);      // another worker of the job
  for (std::size_t length = 0; length < good.size(); ++length) {
    dropped(address_of(0), {good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length)}, Count::malformed);
  }
  std::vector<std::uint8_t> longer = good;
  longer.push_back(0);
  dropped(address_of(0), longer, Count::malformed);
  dropped(address_of(0), std::vector<std::uint8_t>(kMostBytes + 1, 0xA5), Count::malformed);
  const auto changed = [&](std::size_t at) {
    std::vector<std::uint8_t> packet = good;
    packet[at] ^= 1;
    return packet;
  };
  dropped(address_of(0), changed(0), Count::bad_tag);
  dropped(address_of(0), changed(8), Count::malformed);           // mark
  dropped(address_of(0), changed(15), Count::unknown_sender);           // job
  dropped(address_of(0), changed(19), Count::bad_epoch);
  dropped(address_of(0), changed(21), Count::unknown_sender);           // worker 1
  dropped(address_of(0), changed(20), Count::out_of_range);       // worker 256
  dropped(address_of(0), changed(22), Count::malformed);          // protocol
  dropped(address_of(0), changed(27), Count::malformed);          // length
  dropped(address_of(0), changed(kHeader), Count::bad_tag);       // body
  List out;
  room.gate->receive(address_of(1), good, room.now, out);
  for (const Sent& each : room.heard) dropped(address_of(0), each.packet, Count::malformed);  // replies sent back
  CHECK_EQ(room.gate->protocol_counters()[Count::received], before);
  CHECK_EQ(room.give(address_of(0), good), 2u);
}

TEST(udp_a_secret_keeps_others_out) {
  Room room;
  ConnectionSettings wrong = member_settings(0, 1);
  wrong.secret = "simsim";
  Connection& outsider = room.add(wrong);
  CHECK(room.heard.empty());
  CHECK_EQ(room.gate->counters()[Count::bad_tag], 1u);
  room.pass(6 * kSecond);
  CHECK(outsider.failure().find("has not answered") != std::string::npos);
  CHECK(outsider.failure().find("its secret is not this worker's") != std::string::npos);
  CHECK_EQ(room.gate->jobs(), 0);
}

TEST(udp_a_worker_with_another_secret_is_not_called_missing) {
  Room room;
  Connection& good = room.add(member_settings(0, 2));
  CHECK(good.missing().find("worker 1 has not joined") != std::string::npos);
  ConnectionSettings wrong = member_settings(1, 2);
  wrong.secret = "simsim";
  room.add(wrong);
  room.pass(kSecond);
  CHECK(good.missing().find("worker 1 asks with another secret than the switch's") != std::string::npos);
  room.add(member_settings(1, 2));  // the right one comes
  room.pass(kSecond);
  CHECK(good.ready());
}

TEST(udp_a_join_from_another_address_must_show_that_it_is_there) {
  Room room;
  Connection member(member_settings(0, 1));
  List said;
  member.start(room.now, said);
  // Captured and sent in the name of a victim: no session begins, and the victim gets less than was sent.
  const Address victim{0x08080808, 53};
  List out;
  room.gate->receive(victim, said.all[0].packet, room.now, out);
  CHECK_EQ(out.all.size(), 1u);
  CHECK(out.all[0].packet.size() < said.all[0].packet.size());
  CHECK_EQ(room.gate->jobs(), 0);
  // The answer to one address does not help at another.
  List next;
  member.receive(out.all[0].packet, room.now, next);
  room.give(address_of(0), next.all[0].packet);
  CHECK_EQ(room.gate->jobs(), 0);
}

TEST(udp_a_silent_worker_ends_the_job_and_the_others_are_told) {
  Room room;
  room.add(member_settings(0, 2)), room.add(member_settings(1, 2));
  room.pass(30 * kSecond);
  CHECK_EQ(room.gate->jobs(), 1);
  room.asleep = {false, true};
  room.members[0]->busy(true, room.now);
  room.pass(5 * kSecond);
  CHECK_EQ(room.members[0]->failure(), "");
  CHECK(room.members[0]->missing().find("worker 1 has been silent for") == 0);
  room.pass(6 * kSecond);
  CHECK_EQ(room.gate->jobs(), 0);
  CHECK_EQ(room.echo->jobs.size(), 0u);
  CHECK_EQ(room.members[0]->failure(), "job 1 has ended: worker 1 has been silent for 10 s");
}

TEST(udp_a_switch_that_was_started_anew_says_so_and_nobody_else_can) {
  Room room;
  Connection& member = room.add(member_settings(0, 1));
  member.busy(true, room.now);
  Room unknown([] {
    GateSettings settings = gate_settings();
    settings.secret = "other";
    return settings;
  }());
  List asked, out;
  room.now += kSecond;
  member.wake(room.now, asked);
  CHECK_EQ(asked.all.size(), 1u);
  unknown.gate->receive(address_of(0), asked.all[0].packet, room.now, out);
  CHECK(out.all.empty());
  Room anew;
  anew.gate->receive(address_of(0), asked.all[0].packet, room.now, out);
  CHECK_EQ(out.all.size(), 1u);
  List nothing;
  std::vector<std::uint8_t> forged = out.all[0].packet;
  forged[kHeader + 3] ^= 1;
  member.receive(forged, room.now, nothing);
  CHECK_EQ(member.failure(), "");
  member.receive(out.all[0].packet, room.now, nothing);
  CHECK(member.failure().find("does not know job 1 in epoch 1") != std::string::npos);
}

TEST(udp_a_worker_that_leaves_or_gives_up) {
  Room room;
  room.add(member_settings(0, 2)), room.add(member_settings(1, 2));
  room.members[0]->leave("", room.now, room.wire);
  room.from_members(0);
  CHECK(room.members[0]->left());
  CHECK_EQ(room.gate->jobs(), 1);
  room.members[1]->leave("", room.now, room.wire);
  room.from_members(1);
  CHECK(room.members[1]->left());
  CHECK_EQ(room.gate->jobs(), 0);
  CHECK_EQ(room.log.back(), "job 1, epoch 1 ends: all workers left");
  room.members.clear(), room.addresses.clear();
  room.add(member_settings(0, 2, 2)), room.add(member_settings(1, 2, 2));
  room.members[1]->busy(true, room.now);
  room.members[0]->leave("out of memory", room.now, room.wire);
  room.from_members(0);
  room.pass(kSecond);
  CHECK_EQ(room.members[1]->failure(), "job 2 has ended: worker 0 gave up: out of memory");
}

TEST(udp_quotas_bound_what_one_sender_can_take) {
  GateSettings settings = gate_settings();
  settings.most_jobs = 3;
  settings.most_pending = 2;
  settings.most_per_second = 640;
  settings.most_control_per_second = 1000;
  Room room(settings);
  CHECK_EQ(room.add(member_settings(0, 2, 1)).failure(), "");
  CHECK_EQ(room.add(member_settings(0, 2, 2)).failure(), "");
  CHECK_EQ(room.add(member_settings(0, 2, 3)).failure(), "2 jobs of this host wait for workers already");
  CHECK_EQ(room.add(member_settings(1, 2, 1)).failure(), "");
  CHECK_EQ(room.add(member_settings(1, 2, 2)).failure(), "");
  CHECK_EQ(room.add(member_settings(0, 1, 4)).failure(), "");
  CHECK_EQ(room.add(member_settings(0, 1, 5)).failure(), "the switch serves 3 jobs already");
  // A flood of good packets within one moment.
  room.members.clear(), room.addresses.clear();
  Room same(settings);
  same.add(member_settings(0, 1));
  const std::vector<std::uint8_t> good = same.data(0, {1});
  std::size_t answered = 0;
  for (int number = 0; number < 1000; ++number) answered += same.give(address_of(0), good);
  CHECK_EQ(answered, 64u);
  CHECK_EQ(same.gate->counters()[Count::over_quota], 936u);
  same.now += kSecond;
  CHECK_EQ(same.give(address_of(0), good), 1u);
  // A flood of questions.
  Connection asking(member_settings(0, 1, 9));
  List said;
  asking.start(0, said);
  const std::uint64_t before = same.gate->counters()[Count::over_quota];
  for (int number = 0; number < 1000; ++number) same.give(address_of(1), said.all[0].packet);
  CHECK(same.gate->counters()[Count::over_quota] > before + 800);
}

// C15: noise of all kinds between the packets of a job, whose machine sees its own alone.
TEST(udp_fuzz_of_the_gate) {
  const char* wished = std::getenv("COPPICE_FUZZ_PACKETS");
  const int packets = wished ? std::atoi(wished) : 100'000;
  GateSettings settings = gate_settings();
  settings.most_control_per_second = 1e9;
  Room room(settings);
  room.add(member_settings(0, 2)), room.add(member_settings(1, 2));
  std::mt19937_64 random(5);
  std::vector<std::vector<std::uint8_t>> seen = {room.data(0, {1, 2, 3, 4, 5, 6, 7, 8})};
  for (const Sent& each : room.heard) seen.push_back(each.packet);
  Connection asking(member_settings(0, 2, 77));
  List said;
  asking.start(room.now, said);
  asking.leave("because", room.now, said);
  for (const Sent& each : said.all) seen.push_back(each.packet);
  std::uint64_t good = 0;
  const std::uint64_t before = room.gate->protocol_counters()[Count::received];
  for (int number = 0; number < packets; ++number) {
    if (number % 10 == 0) {
      CHECK_EQ(room.give(address_of(0), room.data(0, {static_cast<std::uint8_t>(number)})), 2u);
      ++good;
      continue;
    }
    std::vector<std::uint8_t> packet = seen[random() % seen.size()];
    Address from = address_of(static_cast<int>(random() % 4));
    if (random() % 16 == 0) from.host = static_cast<std::uint32_t>(random());
    switch (random() % 5) {
      case 0: packet.resize(random() % (packet.size() + 1)); break;
      case 1: packet.resize(packet.size() + 1 + random() % 64); break;
      case 2:
        packet.resize(random() % 1500);
        for (auto& each : packet) each = static_cast<std::uint8_t>(random());
        break;
      default:
        for (std::uint64_t flips = 1 + random() % 4; flips > 0; --flips) {
          packet[random() % packet.size()] ^= static_cast<std::uint8_t>(1 + random() % 255);
        }
        // Some sealed rightly: fields that lie, from somebody who knows the secret.
        if (packet.size() >= kHeader && random() % 2 == 0 && packet[11] != static_cast<std::uint8_t>(Kind::data)) {
          const Key key = control_key(master_key("sesame"));
          aggregation::store(packet.data(), siphash(key, Bytes(packet).subspan(8)));
        }
    }
    if (std::find(seen.begin(), seen.end(), packet) != seen.end()) continue;  // as it was
    List out;
    const std::size_t length = packet.size();
    room.gate->receive(from, packet, room.now, out);
    for (const Sent& each : out.all) {
      CHECK(each.packet.size() <= length);
      CHECK(each.to == from);
    }
    if (number % 64 == 0) room.now += kMillisecond;
    if (number % 1000 == 0) {
      List woken;
      for (std::size_t at = 0; at < 2; ++at) room.give(address_of(static_cast<int>(at)), room.members[at]->beat());
      room.gate->wake(room.now, woken);
    }
  }
  CHECK_EQ(room.gate->protocol_counters()[Count::received], before + good);
  CHECK_EQ(room.members[0]->counters()[Count::bad_tag], 0u);
}

}  // namespace
}  // namespace coppice::udp

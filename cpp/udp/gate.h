// Admission and sessions of a switch: a layer over any Aggregator that authenticates senders, without sockets or clock.
//
// Workers join a job with the secret that they share with the switch; each is bound to the address that it joined from,
// and what it sends from then on is sealed with a key that only this session of the job has. What is not accepted changes
// nothing, gets no answer, and is counted under its reason. Nobody gets an answer that is longer than the question.
//
// A job lives while its workers are heard of. One that falls silent, or gives up, ends the job, so that its slots come
// back and the others are told why; a higher epoch of the same job replaces it.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>

#include "aggregation/protocols.h"
#include "udp/session.h"

namespace coppice::udp {

struct Parent {
  Address address;
  int index = 0, siblings = 1;  // this switch is worker `index` of so many switches below it
};

struct GateSettings {
  std::string protocol;
  std::string spoken;  // all protocols of the switch, for words; empty: that one
  std::string secret;
  int slots = 256;   // of this thread of the switch
  int workers = 0;   // of a job; 0: any number
  int thread = 0, threads = 1;
  int most_jobs = 64;
  int most_pending = 32;        // jobs whose workers have not all come, of one host
  int most_slots = 0;           // of one job; 0: all
  double most_per_second = 0;   // packets of one worker; 0: any number
  double most_control_per_second = 20'000;  // of one host
  Time silence = 10 * kSecond;  // of a worker, until the job is closed
  std::uint64_t seed = 0;       // of its nonces; 0: of the system
  std::optional<Parent> parent;
};

class Gate {
 public:
  // Throws std::invalid_argument where the protocol is none.
  explicit Gate(GateSettings settings);
  // Over machines that are given: the switch, and the server beside it or none.
  Gate(GateSettings settings, std::unique_ptr<aggregation::Aggregator> machine,
       std::unique_ptr<aggregation::Aggregator> server);
  ~Gate();

  void receive(Address from, Bytes packet, Time now, Wire& out);
  Time deadline() const;
  void wake(Time now, Wire& out);

  // What came in and was not accepted, by reason; and what the protocol's machines counted.
  const aggregation::Counters& counters() const { return counters_; }
  aggregation::Counters protocol_counters() const;
  int jobs() const { return static_cast<int>(sessions_.size()); }
  std::int64_t slots_in_use() const { return switch_->slots_in_use(); }
  // Told of every job that begins and ends, in one line.
  std::function<void(const std::string&)> log;

 private:
  struct Route {
    Session* session = nullptr;
    int worker = 0;  // or `workers` for what is above, or one more for the switch itself
  };
  class Out;

  bool may_ask(Address from, const Envelope& envelope, Bytes packet, Time now);
  void from_member(Address from, const Envelope& envelope, Bytes packet, Time now, Wire& out);
  void join(Address from, const Envelope& envelope, Bytes packet, Time now, Wire& out);
  std::string objection(Address from, const Envelope& envelope, const Join& wanted);
  void probe(Address from, const Envelope& envelope, Bytes packet, Time now, Wire& out);
  void status(Address from, const Envelope& envelope, Bytes packet, Wire& out);
  void from_above(Bytes packet, const Envelope& envelope, Time now, Wire& out);
  void all_joined(Session& session, Time now, Wire& out);
  void open(Session& session, Time now, Wire& out);
  void deliver(Time now, Wire& out);  // what switch and server have for each other
  void close(Session& session, const std::string& why, Time now, Wire& out);
  void tell_ready(const Session& session, std::size_t worker, Wire& out);
  void answer(Address to, Kind kind, const Envelope& about, Bytes body, Wire& out);
  void refuse(Address to, const Envelope& about, std::uint64_t nonce, const std::string& why, Wire& out);
  std::uint64_t cookie(Address from, const Envelope& envelope, std::uint64_t nonce, Time now, int ago) const;
  Session* session_of(std::uint32_t job);
  void count(aggregation::Count what) { ++counters_[what]; }
  void say(const std::string& line) const {
    if (log) log(line);
  }

  GateSettings settings_;
  Key control_, cookies_;
  Key master_;
  std::uint16_t protocol_;
  std::uint64_t nonces_;
  std::unique_ptr<aggregation::Aggregator> switch_, server_;
  std::unordered_map<std::uint32_t, std::unique_ptr<Session>> sessions_;
  Session* last_ = nullptr;  // the one that was asked for last
  std::vector<Route> routes_;
  std::map<std::size_t, std::vector<aggregation::Endpoint>> free_;  // by length
  Tombstones tombstones_;
  std::deque<std::pair<aggregation::Endpoint, std::vector<std::uint8_t>>> inside_;  // to whom
  std::array<Bucket, 1024> hosts_{};
  std::vector<Address> addresses_;
  aggregation::Counters counters_;
  Time sweep_ = 0;
};

}  // namespace coppice::udp

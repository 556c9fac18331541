// A worker's connection to a switch, without sockets or clocks: joins a job, seals what is sent, opens what comes, polls
// job status when results time out, and notices a switch that is gone or has forgotten the job.
//
// A worker has one for each thread of the switch; so has a switch that is a worker of the switch above it.
#pragma once

#include <string>
#include <vector>

#include "udp/join.h"

namespace coppice::udp {

struct ConnectionSettings {
  Join join;  // nonce and cookie are its own business
  int worker = 0;
  std::uint32_t epoch = 1;
  std::string secret;
  Address above;                  // of the switch
  std::uint64_t seed = 0;         // of its nonces; 0: of the system
  Time silence = 5 * kSecond;     // a switch that answers nothing for so long is gone
};

// What the switch last said of a worker of the job.
struct Peer {
  bool joined = false, left = false, awaited = false;  // the last: a sum waits for it
  Time silent = 0;  // since when nothing came of it, at the time it was said
  bool locked_out = false;  // somebody asked to join in its place with another secret
};

class Connection {
 public:
  explicit Connection(ConnectionSettings settings);

  void start(Time now, Wire& out);
  // One packet from the switch: the body of the protocol in it, which lies in the packet; empty where there is none.
  Bytes receive(Bytes packet, Time now, Wire& out);
  Time deadline() const;
  void wake(Time now, Wire& out);
  // Seals one packet of the protocol.
  void send(Bytes body, Wire& out);
  // Whether results are due: job status is polled when they time out.
  void busy(bool is, Time now);
  // The system says that nothing listens there.
  void unreachable(Time now);
  // Tells the switch that this worker goes, and why if that is no good end; again with every call.
  void leave(const std::string& why, Time now, Wire& out);
  bool left() const { return left_; }

  bool ready() const { return ready_; }
  // One sentence, empty while there is none.
  const std::string& failure() const { return failure_; }
  // The same packet every time, so that it may be sent from any thread; once ready.
  const std::vector<std::uint8_t>& beat() const { return beat_; }
  Time beat_every() const { return beat_every_; }
  const std::vector<Peer>& peers() const { return peers_; }
  // "worker 2 has been silent for 5.0 s", of those that are; empty where all are there.
  std::string missing() const;
  const aggregation::Counters& counters() const { return counters_; }
  const ConnectionSettings& settings() const { return settings_; }

 private:
  void ask_to_join(Time now, Wire& out);
  void probe(Time now, Wire& out, std::uint8_t leaving, const std::string& why);
  void control(Kind kind, Bytes body, Wire& out);
  void understand_state(Reader& text, Time now);

  ConnectionSettings settings_;
  Key control_, job_;
  std::uint16_t protocol_;
  std::uint64_t query_ = 0;
  std::vector<std::uint8_t> beat_;
  std::vector<Peer> peers_;
  std::string failure_;
  aggregation::Counters counters_;
  bool ready_ = false, left_ = false, busy_ = false, unreachable_ = false, started_ = false, answered_ = false;
  int waiting_for_ = 0;
  Time heard_ = 0, progress_ = 0, next_ = aggregation::kNever, beat_every_ = kSecond;
};

// Random numbers of the system where the seed is 0.
std::uint64_t nonce_from(std::uint64_t seed);

}  // namespace coppice::udp

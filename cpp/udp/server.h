// A switch in threads of this process: thread t listens on port P + t and owns the slots that its workers use there.
//
// Threads share nothing, so nothing is locked where packets pass; a worker cuts its tensor into as many parts as its job
// uses threads.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "udp/faults.h"
#include "udp/gate.h"
#include "udp/sockets.h"

namespace coppice::udp {

struct ServerSettings {
  // Its thread and threads are set by the server; its slots are those of all threads. Of several protocols, in one string with
  // commas, each has as many.
  GateSettings gate;
  std::string host = "127.0.0.1";
  int port = 0;
  int threads = 1;
  FaultSettings faults;
};

struct ServerReport {
  aggregation::Counters gate, protocol;
  std::uint64_t sent = 0, lost = 0, dropped = 0, duplicated = 0, reordered = 0;
  std::int64_t jobs = 0, slots_in_use = 0;
};

class Server {
 public:
  // Listens from now on. Throws std::invalid_argument or std::runtime_error, in a sentence.
  explicit Server(ServerSettings settings);
  ~Server();
  Address address() const { return ports_.front()->socket->own(); }
  void stop();
  // As of a few hundredths of a second ago, or of the end.
  ServerReport report() const;
  // Lines about jobs that began and ended since the last call.
  std::vector<std::string> events();

 private:
  // A port that the switch listens on, and the thread that serves it.
  struct Port {
    std::unique_ptr<Socket> socket;
    std::vector<std::unique_ptr<Gate>> gates;  // one for each protocol
    std::vector<std::uint16_t> protocols;      // their marks in packets
    Gate& gate_of(Bytes packet);
    std::thread thread;
    mutable std::mutex mutex;  // of the report
    ServerReport report;
  };
  void serve(Port& port, std::size_t number);

  ServerSettings settings_;
  std::vector<std::unique_ptr<Port>> ports_;
  std::atomic<bool> stopping_{false};
  std::mutex events_mutex_;
  std::vector<std::string> events_;
};

}  // namespace coppice::udp

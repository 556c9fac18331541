// Client of a switch that runs as a process: blocking all-reduces over UDP.
//
// To each thread of the switch that the job uses there is a socket, connected to its port, with a protocol machine of its
// own; the tensor is cut into as many parts. While the program does other things, a thread sends heartbeats.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "aggregation/node.h"
#include "core/stop.h"
#include "udp/connection.h"
#include "udp/sockets.h"

namespace coppice::udp {

struct ClientSettings {
  // The worker `index` of a job, as its protocol makes it; `above` is its switch.
  std::unique_ptr<aggregation::Worker> (*make_worker)(const aggregation::Job& job, int index, aggregation::Endpoint above);
  ConnectionSettings connection;  // of every port; its job's slots and window are those of one port
  int index = 0;          // among all workers of the job; the member's own number is that at its switch
  std::string host = "127.0.0.1";
  int port = 0;
  int threads = 1;  // of the switch, on neighbouring ports
};

// The switch or the other workers did not do their part; in one sentence.
struct Failed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Client {
 public:
  // Throws std::invalid_argument where the host, the protocol or the job are none.
  explicit Client(ClientSettings settings);
  ~Client();

  // Returns when all workers have joined. Throws Failed, and Cancelled when `stop` says so.
  void join(Time timeout, const StopFlag& stop);
  // Sums of `count` elements of the job's type over all workers, in `output`, which may be `input`. What it holds after
  // a failure is nothing; the client is of no more use then but to be closed.
  void all_reduce(const void* input, void* output, std::size_t count, Time timeout, const StopFlag& stop);
  // Tells the switch that this worker goes; waits for the answer for a moment. Twice is allowed.
  void close(const std::string& why = {});

  aggregation::Counters counters() const;
  bool joined() const { return joined_; }

 private:
  struct Port;
  void beat();
  void reduce(Port& port, Time until, const StopFlag& stop);
  [[noreturn]] void fail(const std::string& why);

  ClientSettings settings_;
  std::vector<std::unique_ptr<Port>> ports_;
  bool joined_ = false, closed_ = false;
  std::string failure_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::thread beating_;
};

}  // namespace coppice::udp

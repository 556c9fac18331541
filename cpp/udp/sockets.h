// UDP sockets that send and receive many packets per system call.
//
// On Linux: recvmmsg and sendmmsg, and runs of packets to one receiver as one message that the kernel cuts (UDP_SEGMENT)
// and puts together again (UDP_GRO), where it can. Elsewhere: one packet per call.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "udp/wire.h"

namespace coppice::udp {

// A name or number of an IPv4 host, and a port. Throws std::invalid_argument, in a sentence.
Address resolved(const std::string& host, int port);

class Socket {
 public:
  // Bound to an address; port 0 is any free one. Throws std::runtime_error with one sentence where that cannot be.
  explicit Socket(Address own);
  ~Socket();
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  // Hears of nobody but `other` from now on, and is told when nothing listens there.
  void connect(Address other);
  Address own() const { return own_; }
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_ = -1;
  Address own_;
};

struct Received {
  Address from;
  Bytes packet;
};

// Receives batches of packets; they lie in its memory until the next batch.
class Intake {
 public:
  explicit Intake(Socket& socket);
  ~Intake();
  // What has come, or comes within `wait`; empty if nothing does. `unreachable` is set where the system reports that
  // nothing listens at the other end.
  const std::vector<Received>& batch(Time wait, bool& unreachable);

 private:
  struct Memory;
  Socket& socket_;
  std::unique_ptr<Memory> memory_;
  std::vector<Received> received_;
  Time timeout_ = -1;  // that the socket was last given
};

// Collects packets, and sends them together.
class Batch final : public Wire {
 public:
  Batch(Socket& socket, bool connected, bool segments = true);
  ~Batch() override;
  std::uint8_t* room(std::size_t bytes) override;
  void send(std::span<const Address> to) override;
  void flush(bool& unreachable);
  std::uint64_t packets() const { return packets_; }
  std::uint64_t lost() const { return lost_; }  // that the system did not take

 private:
  struct Memory;
  Socket& socket_;
  const bool connected_;
  bool segments_;  // the kernel cuts messages
  std::unique_ptr<Memory> memory_;
  std::vector<std::uint8_t> bytes_;
  std::size_t used_ = 0, room_ = 0;
  std::uint64_t packets_ = 0, lost_ = 0;
  bool full_unreachable_ = false;
};

// Nanoseconds of the clock that never goes back.
Time now();

}  // namespace coppice::udp

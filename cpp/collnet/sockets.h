// TCP for the plugin: addresses of this node, listeners, connections that never block, and what went wrong as NCCL's codes.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "collnet/abi.h"

namespace coppice::collnet {

using Deadline = std::chrono::steady_clock::time_point;

/// What ends an operation: a code for NCCL, and a sentence.
struct Failure : std::runtime_error {
  Failure(Result code, const std::string& sentence) : std::runtime_error(sentence), result(code) {}
  Result result;
};

/// A file descriptor that is closed with its owner.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.number_) { other.number_ = -1; }
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { reset(); }
  int get() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }
  void reset();

 private:
  int number_;
};

struct Address {
  sockaddr_storage bytes{};
  socklen_t length() const { return bytes.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in); }
  std::string text() const;
};

/// A network interface that is up and has an address.
struct Interface {
  std::string name;
  std::string pci_path;  // empty for a virtual one
  Address address;
  int speed_mbit = 10000;
};

/// Whether an interface is chosen: `want` is a list of prefixes as in NCCL_SOCKET_IFNAME, "=" before it asks for whole
/// names, "^" for those not listed.
bool chosen(const std::string& name, const std::string& want);

/// Interfaces by COPPICE_SOCKET_IFNAME, else NCCL_SOCKET_IFNAME; by default all but loopback and docker's, and these
/// where there is no other.
std::vector<Interface> interfaces();

/// A listener at a free port of the address, which is filled in.
Descriptor listen_at(Address& address);

/// Begins a connection; writability says that it stands or failed (`connected`).
Descriptor begin_connect(const Address& to);

/// True when it stands, false while it does not yet; throws Failure.
bool connected(int descriptor, const Address& to);

/// The next connection, or an empty descriptor where none waits.
Descriptor accept_from(int listener);

/// Bytes that were sent or received now, perhaps 0; throws Failure, also where the peer has closed (`who` names it).
std::size_t send_some(int descriptor, iovec* pieces, int count, const std::string& who);
std::size_t receive_some(int descriptor, void* to, std::size_t bytes, const std::string& who);

/// Whole messages of few bytes, until the deadline.
void send_all(int descriptor, const void* from, std::size_t bytes, Deadline until, const std::string& who);
void receive_all(int descriptor, void* to, std::size_t bytes, Deadline until, const std::string& who);

/// Waits for readiness; false when the deadline has passed.
bool wait_for(int descriptor, short events, Deadline until);

/// Seconds after which a silent peer counts as gone: COPPICE_COLLNET_TIMEOUT_S, 60 by default.
int timeout_seconds();

/// 64 random bits.
std::uint64_t random_bits();

}  // namespace coppice::collnet

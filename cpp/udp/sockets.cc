#include "udp/sockets.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "udp/envelope.h"

#if defined(__linux__)
#include <netinet/udp.h>
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#endif

namespace coppice::udp {

namespace {

constexpr int kMessages = 64;                  // per system call
constexpr std::size_t kMostTogether = 65'000;  // bytes of a message that the kernel cuts
constexpr std::size_t kMostSegments = 64;
constexpr std::size_t kArena = 1 << 20;
constexpr int kBuffer = 8 << 20;  // of the socket, where the system gives as much

sockaddr_in system_address(Address address) {
  sockaddr_in made{};
  made.sin_family = AF_INET;
  made.sin_addr.s_addr = htonl(address.host);
  made.sin_port = htons(address.port);
  return made;
}

Address own_address(const sockaddr_in& given) { return {ntohl(given.sin_addr.s_addr), ntohs(given.sin_port)}; }

}  // namespace

Time now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Address resolved(const std::string& host, int port) {
  if (port < 0 || port > 65535) {
    throw std::invalid_argument("expected a port of 0 to 65535, found " + std::to_string(port));
  }
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0 || found == nullptr) {
    throw std::invalid_argument("expected an IPv4 address or a name that has one, found " + host);
  }
  Address address = own_address(*reinterpret_cast<const sockaddr_in*>(found->ai_addr));
  freeaddrinfo(found);
  address.port = static_cast<std::uint16_t>(port);
  return address;
}

Socket::Socket(Address own) : own_(own) {
  descriptor_ = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (descriptor_ < 0) throw std::runtime_error(std::string("cannot open a UDP socket: ") + std::strerror(errno));
  for (const int which : {SO_RCVBUF, SO_SNDBUF}) setsockopt(descriptor_, SOL_SOCKET, which, &kBuffer, sizeof kBuffer);
#if defined(__linux__)
  const int one = 1;
  setsockopt(descriptor_, IPPROTO_UDP, UDP_GRO, &one, sizeof one);
#endif
  sockaddr_in address = system_address(own);
  if (bind(descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    const int why = errno;
    close(descriptor_);
    const std::string words = why == EADDRINUSE ? "another program has it: stop that one, or take another port"
                              : why == EADDRNOTAVAIL ? "this machine does not have that address"
                                                     : std::strerror(why);
    throw std::runtime_error("cannot listen at " + own.text() + ": " + words);
  }
  socklen_t length = sizeof address;
  getsockname(descriptor_, reinterpret_cast<sockaddr*>(&address), &length);
  own_ = own_address(address);
}

Socket::~Socket() { close(descriptor_); }

void Socket::connect(Address other) {
  const sockaddr_in address = system_address(other);
  if (::connect(descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    throw std::runtime_error("cannot send to " + other.text() + ": " + std::strerror(errno));
  }
}

struct Intake::Memory {
  static constexpr std::size_t kEach = 65536;
  std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(kMessages * kEach);
  sockaddr_in from[kMessages];
  iovec places[kMessages];
  alignas(cmsghdr) char control[kMessages][64];
#if defined(__linux__)
  mmsghdr messages[kMessages];
#endif
};

Intake::Intake(Socket& socket) : socket_(socket), memory_(std::make_unique<Memory>()) {}
Intake::~Intake() = default;

const std::vector<Received>& Intake::batch(Time wait, bool& unreachable) {
  received_.clear();
  int flags = MSG_DONTWAIT;
  if (wait > 0) {
    // The socket's own timeout, which is set only when it changes by much.
    const Time wanted = std::max<Time>(wait, kMillisecond / 10);
    if (timeout_ < 0 || wanted < timeout_ - timeout_ / 8 || wanted > timeout_ + timeout_ / 8) {
      timeval timeout{wanted / kSecond, static_cast<suseconds_t>(wanted % kSecond / 1000)};
      setsockopt(socket_.descriptor(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
      timeout_ = wanted;
    }
    flags = 0;
  }
  Memory& memory = *memory_;
#if defined(__linux__)
  for (int at = 0; at < kMessages; ++at) {
    memory.places[at] = {memory.bytes.data() + static_cast<std::size_t>(at) * Memory::kEach, Memory::kEach};
    msghdr& head = memory.messages[at].msg_hdr;
    head = {};
    head.msg_name = &memory.from[at];
    head.msg_namelen = sizeof memory.from[at];
    head.msg_iov = &memory.places[at];
    head.msg_iovlen = 1;
    head.msg_control = memory.control[at];
    head.msg_controllen = sizeof memory.control[at];
  }
  const int count = recvmmsg(socket_.descriptor(), memory.messages, kMessages, flags == 0 ? MSG_WAITFORONE : flags, nullptr);
  if (count < 0) {
    if (errno == ECONNREFUSED) unreachable = true;
    return received_;
  }
  for (int at = 0; at < count; ++at) {
    msghdr& head = memory.messages[at].msg_hdr;
    const std::size_t length = memory.messages[at].msg_len;
    std::size_t segment = length;
    for (cmsghdr* part = CMSG_FIRSTHDR(&head); part != nullptr; part = CMSG_NXTHDR(&head, part)) {
      if (part->cmsg_level != IPPROTO_UDP || part->cmsg_type != UDP_GRO) continue;
      int size = 0;
      std::memcpy(&size, CMSG_DATA(part), sizeof size);
      if (size > 0) segment = static_cast<std::size_t>(size);
    }
    const Address from = own_address(memory.from[at]);
    const std::uint8_t* bytes = memory.bytes.data() + static_cast<std::size_t>(at) * Memory::kEach;
    if (length == 0) received_.push_back({from, {bytes, 0}});
    for (std::size_t first = 0; first < length; first += segment) {
      received_.push_back({from, {bytes + first, std::min(segment, length - first)}});
    }
  }
#else
  for (int at = 0; at < kMessages; ++at) {
    socklen_t size = sizeof memory.from[at];
    std::uint8_t* bytes = memory.bytes.data() + static_cast<std::size_t>(at) * Memory::kEach;
    const ssize_t length = recvfrom(socket_.descriptor(), bytes, Memory::kEach, at == 0 ? flags : MSG_DONTWAIT,
                                    reinterpret_cast<sockaddr*>(&memory.from[at]), &size);
    if (length < 0) {
      if (errno == ECONNREFUSED) unreachable = true;
      break;
    }
    received_.push_back({own_address(memory.from[at]), {bytes, static_cast<std::size_t>(length)}});
  }
#endif
  return received_;
}

struct Batch::Memory {
  struct Target {
    Address to;
    std::vector<iovec> packets;
  };
  std::vector<Target> targets;
  std::size_t used = 0;
  std::vector<sockaddr_in> names;
#if defined(__linux__)
  struct alignas(cmsghdr) Control {
    char bytes[CMSG_SPACE(sizeof(std::uint16_t))];
  };
  std::vector<Control> controls;
  std::vector<mmsghdr> messages;
  std::vector<std::size_t> counts;  // packets of each message
#endif

  Target& target(Address to) {
    for (std::size_t at = 0; at < used; ++at) {
      if (targets[at].to == to) return targets[at];
    }
    if (used == targets.size()) targets.emplace_back();
    targets[used].to = to;
    targets[used].packets.clear();
    return targets[used++];
  }
};

Batch::Batch(Socket& socket, bool connected, bool segments)
    : socket_(socket),
      connected_(connected),
      segments_(segments),
      memory_(std::make_unique<Memory>()),
      bytes_(kArena) {}
Batch::~Batch() = default;

std::uint8_t* Batch::room(std::size_t bytes) {
  if (used_ + bytes > bytes_.size()) flush(full_unreachable_);
  if (bytes > bytes_.size()) bytes_.resize(bytes);
  room_ = bytes;
  return bytes_.data() + used_;
}

void Batch::send(std::span<const Address> to) {
  for (const Address& each : to) memory_->target(each).packets.push_back({bytes_.data() + used_, room_});
  packets_ += to.size();
  used_ += (room_ + 7) / 8 * 8;
  used_ = std::min(used_, bytes_.size());
}

void Batch::flush(bool& unreachable) {
  Memory& memory = *memory_;
  if (full_unreachable_) unreachable = true;
  full_unreachable_ = false;
#if defined(__linux__)
  memory.messages.clear(), memory.names.clear(), memory.controls.clear(), memory.counts.clear();
  std::size_t most = 0;
  for (std::size_t at = 0; at < memory.used; ++at) most += memory.targets[at].packets.size();
  memory.names.reserve(memory.used), memory.controls.reserve(most), memory.messages.reserve(most);
  for (std::size_t at = 0; at < memory.used; ++at) {
    Memory::Target& target = memory.targets[at];
    memory.names.push_back(system_address(target.to));
    for (std::size_t first = 0; first < target.packets.size();) {
      // A run of packets of one length, whose last may be shorter.
      const std::size_t length = target.packets[first].iov_len;
      std::size_t last = first + 1, bytes = length;
      while (segments_ && last < target.packets.size() && last - first < kMostSegments &&
             bytes + target.packets[last].iov_len <= kMostTogether && target.packets[last].iov_len <= length &&
             target.packets[last].iov_len > 0) {
        bytes += target.packets[last].iov_len;
        if (target.packets[last++].iov_len < length) break;
      }
      mmsghdr message{};
      message.msg_hdr.msg_iov = &target.packets[first];
      message.msg_hdr.msg_iovlen = last - first;
      if (!connected_) {
        message.msg_hdr.msg_name = &memory.names.back();
        message.msg_hdr.msg_namelen = sizeof(sockaddr_in);
      }
      if (last - first > 1) {
        memory.controls.emplace_back();
        message.msg_hdr.msg_control = memory.controls.back().bytes;
        message.msg_hdr.msg_controllen = sizeof memory.controls.back().bytes;
        cmsghdr* part = CMSG_FIRSTHDR(&message.msg_hdr);
        part->cmsg_level = IPPROTO_UDP;
        part->cmsg_type = UDP_SEGMENT;
        part->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
        const std::uint16_t size = static_cast<std::uint16_t>(length);
        std::memcpy(CMSG_DATA(part), &size, sizeof size);
      }
      memory.messages.push_back(message);
      memory.counts.push_back(last - first);
      first = last;
    }
  }
  int tries = 0;
  for (std::size_t done = 0; done < memory.messages.size();) {
    const unsigned count = static_cast<unsigned>(std::min<std::size_t>(memory.messages.size() - done, 1024));
    const int sent = sendmmsg(socket_.descriptor(), memory.messages.data() + done, count, MSG_DONTWAIT);
    if (sent > 0) {
      done += static_cast<std::size_t>(sent);
      tries = 0;
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == ECONNREFUSED && tries++ == 0) {  // of an earlier packet: this one was not tried
      unreachable = true;
      continue;
    }
    if ((errno == EAGAIN || errno == ENOBUFS) && tries++ < 5) {
      pollfd ready{socket_.descriptor(), POLLOUT, 0};
      poll(&ready, 1, 2);
      continue;
    }
    if ((errno == EIO || errno == EINVAL || errno == EOPNOTSUPP) && memory.counts[done] > 1) {
      segments_ = false;  // the system cannot cut messages: what is left goes one by one
      for (std::size_t at = done; at < memory.messages.size(); ++at) {
        msghdr& head = memory.messages[at].msg_hdr;
        for (std::size_t packet = 0; packet < memory.counts[at]; ++packet) {
          msghdr one{};
          one.msg_name = head.msg_name, one.msg_namelen = head.msg_namelen;
          one.msg_iov = head.msg_iov + packet, one.msg_iovlen = 1;
          if (sendmsg(socket_.descriptor(), &one, 0) < 0) ++lost_;
        }
      }
      break;
    }
    lost_ += memory.counts[done];
    ++done;
    tries = 0;
  }
#else
  for (std::size_t at = 0; at < memory.used; ++at) {
    const sockaddr_in name = system_address(memory.targets[at].to);
    for (const iovec& each : memory.targets[at].packets) {
      const ssize_t sent = connected_ ? ::send(socket_.descriptor(), each.iov_base, each.iov_len, 0)
                                      : sendto(socket_.descriptor(), each.iov_base, each.iov_len, 0,
                                               reinterpret_cast<const sockaddr*>(&name), sizeof name);
      if (sent < 0 && errno == ECONNREFUSED) unreachable = true;
      if (sent < 0) ++lost_;
    }
  }
#endif
  memory.used = 0;
  used_ = 0;
}

}  // namespace coppice::udp

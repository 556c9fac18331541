#include "collnet/sockets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

namespace coppice::collnet {

namespace {

std::string because() { return std::strerror(errno); }

Failure system_failure(const std::string& what) { return Failure(kSystemError, what + ": " + because()); }

/// What the kernel says of a connection: most of it means that the other node is gone.
Failure connection_failure(const std::string& who) {
  bool local = errno == ENOMEM || errno == ENOBUFS || errno == EBADF || errno == EINVAL || errno == EFAULT;
  return Failure(local ? kSystemError : kRemoteError, "the connection to " + who + " failed: " + because());
}

bool not_yet() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

void set(int descriptor, int level, int name, int value) {
  ::setsockopt(descriptor, level, name, &value, sizeof value);  // each is a wish: the connection works without
}

/// Messages leave at once, and a host that vanished without a word is noticed.
void prepare(int descriptor) {
  int seconds = timeout_seconds();
  set(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
  set(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
#ifdef TCP_USER_TIMEOUT
  set(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, seconds * 1000);
  set(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, seconds / 2));
  set(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, seconds / 6));
  set(descriptor, IPPROTO_TCP, TCP_KEEPCNT, 3);
#endif
}

Descriptor new_socket(int family) {
  Descriptor made(::socket(family, SOCK_STREAM, 0));
  if (!made) throw system_failure("no socket could be made");
  ::fcntl(made.get(), F_SETFD, FD_CLOEXEC);
  ::fcntl(made.get(), F_SETFL, O_NONBLOCK);
  return made;
}

int speed_of(const std::string& name) {
  std::ifstream file("/sys/class/net/" + name + "/speed");
  int found = 0;
  return file >> found && found > 0 ? found : 10000;
}

std::string pci_of(const std::string& name) {
  char resolved[PATH_MAX];
  return ::realpath(("/sys/class/net/" + name + "/device").c_str(), resolved) ? resolved : "";
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    reset();
    number_ = other.number_;
    other.number_ = -1;
  }
  return *this;
}

void Descriptor::reset() {
  if (number_ >= 0) ::close(number_);
  number_ = -1;
}

std::string Address::text() const {
  char words[INET6_ADDRSTRLEN] = "?";
  bool six = bytes.ss_family == AF_INET6;
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&bytes);
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&bytes);
  ::inet_ntop(bytes.ss_family, six ? static_cast<const void*>(&v6->sin6_addr) : &v4->sin_addr, words, sizeof words);
  return std::string(words) + " port " + std::to_string(ntohs(six ? v6->sin6_port : v4->sin_port));
}

bool chosen(const std::string& name, const std::string& want) {
  bool without = want.rfind('^', 0) == 0;
  std::size_t at = without ? 1 : 0;
  bool whole = want.compare(at, 1, "=") == 0;
  std::istringstream words(want.substr(at + (whole ? 1 : 0)));
  bool listed = false;
  for (std::string word; std::getline(words, word, ',');) {
    if (word.empty()) continue;
    listed |= whole ? name == word : name.compare(0, word.size(), word) == 0;
  }
  return listed != without;
}

std::vector<Interface> interfaces() {
  const char* want = std::getenv("COPPICE_SOCKET_IFNAME");
  if (!want || !*want) want = std::getenv("NCCL_SOCKET_IFNAME");
  bool asked = want && *want;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) throw system_failure("the network interfaces cannot be listed");
  std::vector<Interface> found, last_resort;
  auto known = [](const std::vector<Interface>& list, const std::string& name) {
    for (const Interface& each : list)
      if (each.name == name) return true;
    return false;
  };
  for (int family : {AF_INET, AF_INET6}) {
    for (ifaddrs* each = first; each; each = each->ifa_next) {
      if (!each->ifa_addr || each->ifa_addr->sa_family != family || !(each->ifa_flags & IFF_UP)) continue;
      if (family == AF_INET6) {  // addresses of the link mean nothing to other hosts without its name
        const auto* six = reinterpret_cast<const sockaddr_in6*>(each->ifa_addr);
        if (IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)) continue;
      }
      Interface made{each->ifa_name, "", {}, 0};
      bool spare = (each->ifa_flags & IFF_LOOPBACK) || chosen(made.name, "docker,lo");
      if (asked ? !chosen(made.name, want) : false) continue;
      std::vector<Interface>& list = !asked && spare ? last_resort : found;
      if (known(list, made.name)) continue;
      std::memcpy(&made.address.bytes, each->ifa_addr, family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
      made.pci_path = pci_of(made.name);
      made.speed_mbit = speed_of(made.name);
      list.push_back(made);
    }
  }
  ::freeifaddrs(first);
  return found.empty() ? last_resort : found;
}

Descriptor listen_at(Address& address) {
  Descriptor made = new_socket(address.bytes.ss_family);
  socklen_t length = sizeof address.bytes;
  if (::bind(made.get(), reinterpret_cast<sockaddr*>(&address.bytes), address.length()) != 0)
    throw system_failure("expected to listen at " + address.text());
  if (::listen(made.get(), SOMAXCONN) != 0 ||
      ::getsockname(made.get(), reinterpret_cast<sockaddr*>(&address.bytes), &length) != 0)
    throw system_failure("expected to listen at " + address.text());
  return made;
}

Descriptor begin_connect(const Address& to) {
  Descriptor made = new_socket(to.bytes.ss_family);
  prepare(made.get());
  if (::connect(made.get(), reinterpret_cast<const sockaddr*>(&to.bytes), to.length()) != 0 && errno != EINPROGRESS)
    throw connection_failure(to.text());
  return made;
}

bool connected(int descriptor, const Address& to) {
  if (!wait_for(descriptor, POLLOUT, Deadline{})) return false;
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &length);
  if (error == 0) return true;
  errno = error;
  throw connection_failure(to.text());
}

Descriptor accept_from(int listener) {
  Descriptor made(::accept(listener, nullptr, nullptr));
  if (!made) {
    if (not_yet() || errno == ECONNABORTED) return made;
    throw system_failure("a connection could not be accepted");
  }
  ::fcntl(made.get(), F_SETFD, FD_CLOEXEC);
  ::fcntl(made.get(), F_SETFL, O_NONBLOCK);
  prepare(made.get());
  return made;
}

std::size_t send_some(int descriptor, iovec* pieces, int count, const std::string& who) {
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = static_cast<decltype(message.msg_iovlen)>(count);
  ssize_t sent = ::sendmsg(descriptor, &message, MSG_NOSIGNAL);
  if (sent >= 0) return static_cast<std::size_t>(sent);
  if (not_yet()) return 0;
  throw connection_failure(who);
}

std::size_t receive_some(int descriptor, void* to, std::size_t bytes, const std::string& who) {
  ssize_t got = ::recv(descriptor, to, bytes, 0);
  if (got > 0) return static_cast<std::size_t>(got);
  if (got == 0 && bytes) throw Failure(kRemoteError, who + " closed the connection");
  if (got == 0 || not_yet()) return 0;
  throw connection_failure(who);
}

void send_all(int descriptor, const void* from, std::size_t bytes, Deadline until, const std::string& who) {
  for (std::size_t done = 0; done < bytes;) {
    iovec piece{static_cast<char*>(const_cast<void*>(from)) + done, bytes - done};
    std::size_t now = send_some(descriptor, &piece, 1, who);
    done += now;
    if (!now && !wait_for(descriptor, POLLOUT, until)) throw Failure(kRemoteError, who + " takes no data");
  }
}

void receive_all(int descriptor, void* to, std::size_t bytes, Deadline until, const std::string& who) {
  for (std::size_t done = 0; done < bytes;) {
    std::size_t now = receive_some(descriptor, static_cast<char*>(to) + done, bytes - done, who);
    done += now;
    if (!now && !wait_for(descriptor, POLLIN, until)) throw Failure(kRemoteError, who + " does not answer");
  }
}

bool wait_for(int descriptor, short events, Deadline until) {
  using std::chrono::milliseconds;
  while (true) {
    auto left = std::chrono::duration_cast<milliseconds>(until - std::chrono::steady_clock::now()).count();
    pollfd asked{descriptor, events, 0};
    int found = ::poll(&asked, 1, left < 0 ? 0 : static_cast<int>(std::min<long long>(left + 1, 60000)));
    if (found > 0) return true;
    if (found < 0 && errno != EINTR) throw system_failure("waiting for a connection");
    if (left <= 0) return false;
  }
}

int timeout_seconds() {
  const char* given = std::getenv("COPPICE_COLLNET_TIMEOUT_S");
  int seconds = given ? std::atoi(given) : 0;
  return seconds > 0 && seconds < 100000 ? seconds : 60;
}

std::uint64_t random_bits() {
  std::uint64_t made = 0;
  if (::getentropy(&made, sizeof made) != 0) throw system_failure("no random bits could be had");
  return made;
}

}  // namespace coppice::collnet

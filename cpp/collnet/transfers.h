// Point-to-point messages over TCP, as NCCL's own socket transport offers them: what every network library has to bring.
//
// A message is its size and its bytes; messages of a connection go in order. Nothing waits: connections, sends and receives
// move on whenever NCCL asks about them.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "collnet/rendezvous.h"

namespace coppice::collnet {

/// One end of a connection, which either sends or receives.
class Channel {
 public:
  struct Message {
    Channel* channel = nullptr;
    void* data = nullptr;
    std::uint64_t bytes = 0;     // of a received message: room at first, then its size
    std::uint64_t size = 0;      // as it travels
    std::size_t size_done = 0, done = 0;
    bool free = true, ended = false;
  };

  Channel(Descriptor descriptor, bool sends) : descriptor_(std::move(descriptor)), sends_(sends) {}

  /// Queues a message; null where too many are in flight.
  Message* post(void* data, std::size_t bytes);

  /// Whether a message has ended, which frees it; `bytes` gets its size. Throws Failure.
  bool finished(Message* message, std::size_t* bytes);

 private:
  void move();
  bool send_front(Message& message);
  bool receive_front(Message& message);

  Descriptor descriptor_;
  bool sends_;
  std::vector<std::unique_ptr<Message>> messages_;
  std::deque<Message*> queue_;
};

/// A listener, and a caller that has not yet shown its cookie.
struct Doorway {
  std::unique_ptr<Listener> listener;
  Descriptor guest;
  std::uint64_t cookie = 0;
  std::size_t read = 0;

  /// The next caller that shows the cookie, or null so far.
  std::unique_ptr<Channel> accept();
};

/// Goes on connecting to a handle, in whose memory the state is kept; null while the connection does not stand.
std::unique_ptr<Channel> connect_to(void* handle);

}  // namespace coppice::collnet

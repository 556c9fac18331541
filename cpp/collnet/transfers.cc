#include "collnet/transfers.h"

#include <algorithm>
#include <cstring>

namespace coppice::collnet {

namespace {

constexpr std::size_t kMostMessages = 128;

struct Connecting {
  Descriptor descriptor;
  Address to;
  std::uint64_t cookie = 0;
  std::size_t sent = 0;
  bool stands = false;
};

}  // namespace

Channel::Message* Channel::post(void* data, std::size_t bytes) {
  Message* message = nullptr;
  for (auto& each : messages_)
    if (each->free) message = each.get();
  if (!message) {
    if (messages_.size() == kMostMessages) return nullptr;
    messages_.push_back(std::make_unique<Message>());
    message = messages_.back().get();
  }
  *message = Message{};
  message->channel = this;
  message->data = data;
  message->bytes = bytes;
  message->size = sends_ ? bytes : 0;
  message->free = false;
  queue_.push_back(message);
  move();
  return message;
}

bool Channel::finished(Message* message, std::size_t* bytes) {
  if (!message->ended) move();
  if (!message->ended) return false;
  *bytes = message->size;
  message->free = true;
  return true;
}

void Channel::move() {
  while (!queue_.empty() && (sends_ ? send_front(*queue_.front()) : receive_front(*queue_.front()))) {
    queue_.front()->ended = true;
    queue_.pop_front();
  }
}

bool Channel::send_front(Message& message) {
  while (message.size_done < sizeof message.size || message.done < message.size) {
    iovec pieces[2] = {{reinterpret_cast<char*>(&message.size) + message.size_done, sizeof message.size - message.size_done},
                       {static_cast<char*>(message.data) + message.done, message.size - message.done}};
    std::size_t sent = send_some(descriptor_.get(), pieces, 2, "the receiving rank");
    if (!sent) return false;
    std::size_t of_size = std::min(sent, pieces[0].iov_len);
    message.size_done += of_size;
    message.done += sent - of_size;
  }
  return true;
}

bool Channel::receive_front(Message& message) {
  const std::string who = "the sending rank";
  while (message.size_done < sizeof message.size) {
    std::size_t got = receive_some(descriptor_.get(), reinterpret_cast<char*>(&message.size) + message.size_done,
                                   sizeof message.size - message.size_done, who);
    if (!got) return false;
    message.size_done += got;
  }
  if (message.size > message.bytes)
    throw Failure(kInvalidUsage, "expected a message of at most " + std::to_string(message.bytes) + " bytes, " + who +
                                     " has one of " + std::to_string(message.size));
  while (message.done < message.size) {
    std::size_t got = receive_some(descriptor_.get(), static_cast<char*>(message.data) + message.done,
                                   message.size - message.done, who);
    if (!got) return false;
    message.done += got;
  }
  return true;
}

std::unique_ptr<Channel> Doorway::accept() {
  while (true) {
    if (!guest) {
      guest = accept_from(listener->descriptor.get());
      if (!guest) return nullptr;
      read = 0;
    }
    try {
      while (read < sizeof cookie) {
        std::size_t got = receive_some(guest.get(), reinterpret_cast<char*>(&cookie) + read, sizeof cookie - read, "a caller");
        if (!got) return nullptr;
        read += got;
      }
    } catch (const Failure&) {
      guest.reset();
      continue;
    }
    Descriptor known = std::move(guest);
    if (cookie == listener->cookie) return std::make_unique<Channel>(std::move(known), false);
  }
}

std::unique_ptr<Channel> connect_to(void* handle) {
  Handle known = read_handle(handle);
  auto* state = reinterpret_cast<Connecting*>(known.stage);
  auto keep = [&](Connecting* next) {
    known.stage = reinterpret_cast<std::uint64_t>(next);
    std::memcpy(handle, &known, sizeof known);
  };
  try {
    if (!state) {
      auto made = std::make_unique<Connecting>();
      made->to = known.where();
      made->cookie = known.cookie;
      made->descriptor = begin_connect(made->to);
      state = made.release();
      keep(state);
    }
    if (!state->stands && !connected(state->descriptor.get(), state->to)) return nullptr;
    state->stands = true;
    while (state->sent < sizeof state->cookie) {
      iovec piece{reinterpret_cast<char*>(&state->cookie) + state->sent, sizeof state->cookie - state->sent};
      std::size_t sent = send_some(state->descriptor.get(), &piece, 1, state->to.text());
      if (!sent) return nullptr;
      state->sent += sent;
    }
  } catch (const Failure&) {
    delete state;
    keep(nullptr);
    throw;
  }
  auto made = std::make_unique<Channel>(std::move(state->descriptor), true);
  delete state;
  keep(nullptr);
  return made;
}

}  // namespace coppice::collnet

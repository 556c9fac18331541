// What a communicator's worker holds: operations, their segments on this node, and the streams of bytes on each edge.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "collnet/communicator.h"

namespace coppice::collnet {

/// How a kind of call is named in messages.
inline const char* word(std::uint32_t kind) {
  static const char* const words[] = {"all-reduce", "all-gather", "reduce-scatter"};
  return kind < 3 ? words[kind] : "call";
}

/// Goes before the bytes of every segment, so that nodes which call in different orders hear of it.
struct Header {
  std::uint32_t magic, kind, type, reduction;
  std::uint64_t sequence, begin, bytes;
};

/// A segment on this node.
struct Communicator::Part {
  Operation* operation = nullptr;
  Segment segment;
  bool up = false, down = false;     // reduced to the root, broadcast from it
  int parent = -1;                   // link, -1 at the root
  std::vector<int> children;         // links
  const char* own = nullptr;         // what this node contributes
  char* sum = nullptr;               // where sums, and the result, come to lie; null at a leaf that only sends
  std::size_t reduced = 0;           // bytes that hold the sum of this node's subtree
  std::size_t arrived = 0;           // bytes that hold the result
  int streams = 0;                   // that have not ended
  std::vector<char> scratch;
};

/// The bytes of a segment on one edge in one direction.
struct Communicator::Stream {
  Part* part = nullptr;
  bool up = false;
  std::size_t done = 0;              // bytes, without the header
  std::size_t header_done = 0;
  Header header{};                   // as it travels
  Header expected{};
};

struct Communicator::Link {
  Edge edge;
  std::deque<Stream> out, in;
  std::vector<char> chunk;           // what a child sent, until it is added
  std::size_t filled = 0;
  bool full = false;
};

struct Communicator::Operation {
  Call call;
  Request* request = nullptr;
  std::uint64_t sequence = 0;
  std::vector<std::unique_ptr<Part>> parts;
  int streams = 0;
  std::vector<char> send_copy, receive_copy;  // where a buffer comes in several pieces
  std::array<std::uint64_t, 2> said{}, found{};  // of a comparison, which has no request: both are the largest of all nodes

  /// Where a piece's bytes lie as one run.
  const char* send() const { return send_copy.empty() ? first(call.send) : send_copy.data(); }
  char* receive() { return receive_copy.empty() ? first(call.receive) : receive_copy.data(); }
  static char* first(const std::vector<iovec>& pieces) {
    return pieces.empty() ? nullptr : static_cast<char*>(pieces[0].iov_base);
  }
};

}  // namespace coppice::collnet

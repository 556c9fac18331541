// The bytes of operations on their edges: sent as they become ready, received, and added in the order of children.
#include <algorithm>
#include <cstring>

#include "collnet/communicator.h"
#include "collnet/elements.h"
#include "collnet/operation.h"

namespace coppice::collnet {

namespace {

constexpr std::size_t kChunk = 128 << 10;  // bytes that are added at once

}  // namespace

bool Communicator::may_send(const Link& link) const {
  if (link.out.empty()) return false;
  const Stream& stream = link.out.front();
  return (stream.up ? stream.part->reduced : stream.part->arrived) > stream.done;
}

bool Communicator::may_receive(const Link& link) const { return !link.in.empty() && !link.full; }

void Communicator::send(Link& link) {
  while (may_send(link)) {
    Stream& stream = link.out.front();
    const Part& part = *stream.part;
    const char* from = stream.up && part.children.empty() ? part.own : part.sum;
    std::size_t ready = stream.up ? part.reduced : part.arrived;
    iovec pieces[2] = {
        {reinterpret_cast<char*>(&stream.header) + stream.header_done, sizeof(Header) - stream.header_done},
        {const_cast<char*>(from) + stream.done, ready - stream.done}};
    std::size_t sent = send_some(link.edge.descriptor.get(), pieces, 2, peer_name(link));
    if (!sent) return;
    std::size_t of_header = std::min(sent, pieces[0].iov_len);
    stream.header_done += of_header;
    stream.done += sent - of_header;
    if (stream.done < part.segment.bytes) continue;
    Part& ended = *stream.part;
    link.out.pop_front();
    stream_ended(ended);
  }
}

void Communicator::receive(Link& link) {
  Stream& stream = link.in.front();
  Part& part = *stream.part;
  int descriptor = link.edge.descriptor.get();
  if (stream.header_done < sizeof(Header)) {
    stream.header_done += receive_some(descriptor, reinterpret_cast<char*>(&stream.header) + stream.header_done,
                                       sizeof(Header) - stream.header_done, peer_name(link));
    if (stream.header_done < sizeof(Header)) return;
    check_header(link);
  }
  if (!stream.up) {
    std::size_t got = receive_some(descriptor, part.sum + stream.done, part.segment.bytes - stream.done, peer_name(link));
    part.arrived = stream.done += got;
    if (stream.done < part.segment.bytes) return;
    link.in.pop_front();
    stream_ended(part);
    return;
  }
  std::size_t want = std::min(kChunk, part.segment.bytes - stream.done);
  link.chunk.resize(kChunk);
  link.filled += receive_some(descriptor, link.chunk.data() + link.filled, want - link.filled, peer_name(link));
  link.full = link.filled == want;
  if (link.full) combine(part);
}

/// Compares what a neighbour is about to send with what this node expects.
void Communicator::check_header(Link& link) {
  const Stream& stream = link.in.front();
  const Header& said = stream.header;
  if (std::memcmp(&said, &stream.expected, sizeof said) == 0) return;
  auto words = [](std::uint32_t kind, std::uint32_t type, std::uint32_t reduction, std::uint64_t sequence, std::uint64_t bytes) {
    return std::string(word(kind)) + " " + std::to_string(sequence) + " (type " + std::to_string(type) + ", reduction " +
           std::to_string(reduction) + ", " + std::to_string(bytes) + " bytes on a tree)";
  };
  const Header& own = stream.expected;
  throw Failure(kInvalidUsage, peer_name(link) + " is at " + words(said.kind, said.type, said.reduction, said.sequence, said.bytes) +
                                   ", this node at " + words(own.kind, own.type, own.reduction, own.sequence, own.bytes) +
                                   ": all nodes have to call alike in the same order");
}

/// Adds the next chunk when all children have sent theirs: always in their order, so that sums are reproducible.
void Communicator::combine(Part& part) {
  for (int child : part.children) {
    const Link& link = *links_[child];
    if (!link.full || link.in.front().part != &part) return;
  }
  const Call& call = part.operation->call;
  std::size_t bytes = std::min(kChunk, part.segment.bytes - part.reduced);
  char* sum = part.sum + part.reduced;
  if (sum != part.own + part.reduced) std::memmove(sum, part.own + part.reduced, bytes);
  for (int child : part.children)
    reduce(sum, links_[child]->chunk.data(), bytes / call.element, call.type, call.reduction);
  part.reduced += bytes;
  if (part.parent < 0) part.arrived = part.reduced;
  bool ended = part.reduced == part.segment.bytes;
  for (int child : part.children) {
    Link& link = *links_[child];
    link.full = false;
    link.filled = 0;
    link.in.front().done += bytes;
    if (ended) link.in.pop_front();
  }
  if (ended)
    for (std::size_t child = 0; child < part.children.size(); child++) stream_ended(part);
}

void Communicator::stream_ended(Part& part) {
  part.streams--;
  part.operation->streams--;
}

std::string Communicator::peer_name(const Link& link) const { return "node " + std::to_string(link.edge.peer); }

}  // namespace coppice::collnet

#include "collnet/rendezvous.h"

#include <poll.h>

#include <algorithm>
#include <cstring>

namespace coppice::collnet {

namespace {

constexpr std::uint64_t kMagic = 0x316563697070436fu;

struct Hello {
  std::uint64_t cookie, forest;
  std::int32_t tree, from, nodes, unused;
};

struct Answer {
  std::int32_t welcome;
};

/// A caller that has not said all of its greeting.
struct Guest {
  Descriptor descriptor;
  Hello said{};
  std::size_t read = 0;
};

std::string name_of(int node) { return "node " + std::to_string(node); }

[[noreturn]] void disagree(int peer) {
  throw Failure(kInvalidUsage, name_of(peer) + " has another forest: give all nodes the same COPPICE_COLLNET_FOREST");
}

/// The meeting of one node with its neighbours.
class Meeting {
 public:
  Meeting(const Forest& forest, int node, Listener& listener, Deadline until)
      : forest_(forest), node_(node), listener_(listener), until_(until), hello_{0, fingerprint(forest), 0, node, forest.nodes, 0} {}

  /// Calls the higher neighbours in all trees; their kernels take the call even where they are busy.
  void call(void* const* handles) {
    for (int tree = 0; tree < static_cast<int>(forest_.trees.size()); tree++)
      for (int peer : view_of(forest_.trees[tree], node_).neighbours) {
        if (peer < node_)
          expected_++;
        else
          call(tree, peer, read_handle(handles[peer]));
      }
    open_ = edges_.size();
  }

  /// Until all callers have come and all those called have answered. Whoever gives up is noticed by its neighbours.
  void greet() {
    while (expected_ || open_) {
      std::vector<pollfd> asked{{expected_ ? listener_.descriptor.get() : -1, POLLIN, 0}};
      std::size_t guests = guests_.size(), edges = edges_.size();
      for (const Guest& guest : guests_) asked.push_back({guest.descriptor.get(), POLLIN, 0});
      for (std::size_t at = 0; at < edges; at++) asked.push_back({quiet_[at] ? edges_[at].descriptor.get() : -1, POLLIN, 0});
      wait(asked);
      for (std::size_t at = 0; at < edges; at++)
        if (asked[1 + guests + at].revents) hear(at);
      for (std::size_t at = 0; at < guests; at++)
        if (asked[1 + at].revents) hear(guests_[at]);
      guests_.erase(std::remove_if(guests_.begin(), guests_.end(), [](const Guest& each) { return !each.descriptor; }),
                    guests_.end());
      if (asked[0].revents)
        if (Descriptor next = accept_from(listener_.descriptor.get())) guests_.push_back({std::move(next)});
    }
  }

  /// Word from all nodes along the first tree to its root and back: all have met their neighbours, or all fail. NCCL asks
  /// only within a node whether a collective network stands, so that nodes must not differ.
  void agree() {
    const Tree& tree = forest_.trees[0];
    int parent = tree.parent[node_];
    for (Edge& edge : edges_)
      if (edge.tree == 0 && edge.peer != parent) take(edge);
    for (bool up : {true, false})
      for (Edge& edge : edges_)
        if (edge.tree == 0 && (edge.peer == parent) == up) {
          send_all(edge.descriptor.get(), &kWord, sizeof kWord, until_, name_of(edge.peer));
          if (up) take(edge);
        }
  }

  std::vector<Edge> edges() { return std::move(edges_); }

 private:
  static constexpr Answer kWord{1};

  void call(int tree, int peer, const Handle& target) {
    Address address = target.where();
    Edge edge{tree, peer, begin_connect(address)};
    while (!connected(edge.descriptor.get(), address))
      if (!wait_for(edge.descriptor.get(), POLLOUT, until_))
        throw Failure(kRemoteError, name_of(peer) + " at " + address.text() + " cannot be reached");
    hello_.cookie = target.cookie;
    hello_.tree = tree;
    send_all(edge.descriptor.get(), &hello_, sizeof hello_, until_, name_of(peer));
    edges_.push_back(std::move(edge));
    quiet_.push_back(true);
  }

  void take(Edge& edge) {
    Answer word{};
    receive_all(edge.descriptor.get(), &word, sizeof word, until_, name_of(edge.peer));
  }

  void wait(std::vector<pollfd>& asked) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until_ - std::chrono::steady_clock::now()).count();
    if (left < 0)
      throw Failure(kRemoteError, std::to_string(expected_) + " neighbours did not call and " + std::to_string(open_) +
                                      " did not answer in time");
    ::poll(asked.data(), asked.size(), static_cast<int>(std::min<long long>(left + 1, 60000)));
  }

  /// An answer of a node that was called; of one that has been met, only that it is still there.
  void hear(std::size_t at) {
    Edge& edge = edges_[at];
    if (at >= met_.size()) met_.resize(edges_.size());
    if (met_[at]) {
      char byte;
      if (::recv(edge.descriptor.get(), &byte, 1, MSG_PEEK) == 0) throw Failure(kRemoteError, name_of(edge.peer) + " closed the connection");
      quiet_[at] = false;  // its next word: for later
      return;
    }
    Answer answer{};
    receive_all(edge.descriptor.get(), &answer, sizeof answer, until_, name_of(edge.peer));
    if (!answer.welcome) disagree(edge.peer);
    met_[at] = true;
    open_--;
  }

  void hear(Guest& guest) {
    try {
      guest.read += receive_some(guest.descriptor.get(), reinterpret_cast<char*>(&guest.said) + guest.read,
                                 sizeof guest.said - guest.read, "a caller");
    } catch (const Failure&) {
      guest.descriptor.reset();  // a stranger, or a neighbour that gave up and will be missed
      return;
    }
    if (guest.read < sizeof guest.said) return;
    Hello said = guest.said;
    Descriptor known = std::move(guest.descriptor);
    if (said.cookie != listener_.cookie) return;
    Answer answer{said.forest == hello_.forest && said.nodes == hello_.nodes};
    send_all(known.get(), &answer, sizeof answer, until_, name_of(said.from));
    if (!answer.welcome) disagree(said.from);
    edges_.push_back({said.tree, said.from, std::move(known)});
    quiet_.push_back(true);
    met_.resize(edges_.size());
    met_.back() = true;
    expected_--;
  }

  const Forest& forest_;
  const int node_;
  Listener& listener_;
  const Deadline until_;
  Hello hello_;
  std::vector<Edge> edges_;
  std::vector<char> quiet_, met_;  // of each edge: nothing to read so far; has answered
  std::vector<Guest> guests_;
  std::size_t expected_ = 0, open_ = 0;  // callers to come, answers to come
};

}  // namespace

Address Handle::where() const {
  Address made;
  std::memcpy(&made.bytes, address, sizeof address);
  return made;
}

std::unique_ptr<Listener> listen_on(const Interface& interface, void* handle) {
  auto made = std::make_unique<Listener>();
  Address address = interface.address;
  made->descriptor = listen_at(address);
  made->cookie = random_bits();
  Handle filled{kMagic, made->cookie, 0, {}};
  std::memcpy(filled.address, &address.bytes, sizeof filled.address);
  std::memset(handle, 0, kHandleBytes);
  std::memcpy(handle, &filled, sizeof filled);
  return made;
}

Handle read_handle(const void* handle) {
  Handle made;
  std::memcpy(&made, handle, sizeof made);
  if (made.magic != kMagic)
    throw Failure(kInvalidArgument, "expected a handle of this plugin: use the same library on all nodes");
  return made;
}

std::vector<Edge> join_forest(const Forest& forest, int node, void* const* handles, Listener& listener, int seconds) {
  Meeting meeting(forest, node, listener, std::chrono::steady_clock::now() + std::chrono::seconds(seconds));
  meeting.call(handles);
  meeting.greet();
  meeting.agree();
  return meeting.edges();
}

}  // namespace coppice::collnet

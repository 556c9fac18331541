// Collectives among the nodes of one rail: a queue that a caller fills without waiting, and one thread that moves the data.
//
// Every edge of every tree is a TCP connection. An operation becomes segments (forest.h); each runs through its tree in
// chunks: a node adds what its children sent, in their order, to its own part and passes the sum on; from the root the
// result comes back. Bytes on an edge follow the order of operations and segments, which is the same on all nodes, so the
// earliest unfinished segment can always move on: no deadlock, and later operations fill the pipeline behind it. Results
// are equal on all nodes to the last bit.
//
// Sums of floats may go by a switch (switched.h) instead, from a thread of their own, one after the other. What nodes call is
// compared along the trees meanwhile, so that different calls are found out; nobody waits for that.
//
// When an edge fails, this node closes all of its own: neighbours fail in turn, and nobody waits for ever.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "collnet/forest.h"
#include "collnet/rendezvous.h"
#include "collnet/switched.h"

namespace coppice::collnet {

enum class Kind : std::uint32_t { kAllReduce, kAllGather, kReduceScatter };

/// A call: where its data lies. Windows are as in NCCL: all-gather and reduce-scatter concern the bytes from
/// `window_begin` on of the array of all nodes' blocks; `send` or `receive` of the own block begins where the window does.
struct Call {
  Kind kind = Kind::kAllReduce;
  int type = 0, reduction = 0;
  std::size_t element = 1;                          // bytes
  std::size_t bytes = 0;                            // of an all-reduce, or of the window
  std::size_t block_bytes = 0, window_begin = 0;
  std::vector<iovec> send, receive;                 // in pieces
};

class Communicator;

/// One call in flight; NCCL holds its address.
struct Request {
  enum State { kFree, kPending, kDone, kFailed };
  std::atomic<int> state{kFree};
  std::size_t bytes = 0;
  Communicator* owner = nullptr;
};

class Communicator {
 public:
  Communicator(Forest forest, int node, std::vector<Edge> edges);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Queues a call; null where too many are in flight. Throws Failure after an edge has failed.
  Request* start(Call call);

  /// Whether all nodes say yes; throws Failure after an edge has failed. For all nodes, before any other call.
  bool all_agree(bool yes);

  /// Sums go by a switch from now on, that all nodes have joined. Before any other call.
  void use(std::unique_ptr<Switched> switched);

  /// Whether a call has ended, which frees it. Throws Failure after an edge has failed.
  bool finished(Request* request, std::size_t* bytes);

 private:
  struct Operation;
  struct Part;
  struct Stream;
  struct Link;

  void work();
  void switch_work();
  bool lingers();
  Request* free_request(std::size_t bytes);
  void hand_over(std::unique_ptr<Operation> operation);
  void wake();
  void take_calls();
  void begin(std::unique_ptr<Operation> operation);
  void prepare(Part& part);
  void enqueue(Part& part);
  bool may_send(const Link& link) const;
  bool may_receive(const Link& link) const;
  void send(Link& link);
  void receive(Link& link);
  void check_header(Link& link);
  void combine(Part& part);
  void stream_ended(Part& part);
  void finish_ended();
  void fail(const Failure& failure);
  std::string peer_name(const Link& link) const;
  Failure broken() const;

  const Forest forest_;
  const int node_;
  std::vector<View> views_;                         // of each tree
  std::vector<std::vector<int>> links_of_;          // links_of_[tree][place among neighbours]
  std::vector<std::unique_ptr<Link>> links_;
  std::deque<std::unique_ptr<Operation>> operations_;  // of the worker, in order

  std::vector<std::unique_ptr<Request>> requests_;  // of the caller
  std::mutex mutex_;                                // guards what follows
  std::vector<std::unique_ptr<Operation>> arrived_;
  std::deque<std::pair<Call, Request*>> switch_calls_;
  std::string switch_failure_;
  std::condition_variable switch_changed_;
  std::string sentence_;

  std::atomic<bool> closing_{false};
  std::unique_ptr<Switched> switched_;

  std::uint64_t sequence_ = 0;
  std::atomic<int> broken_{kSuccess};
  Descriptor wake_read_, wake_write_;
  std::thread worker_, switch_worker_;
};

}  // namespace coppice::collnet

// Operations and who runs them: a graph of dependencies, worked off by a few threads in an order that a seed draws.
//
// An operation starts when everything that it depends on is over, and not before. Which of those that could start does
// is free in CUDA; here it is drawn. With a seed of 0 it is the one that was issued first. With another seed, streams
// have priorities that change at random times (as in probabilistic concurrency testing), an operation may lie idle for
// a while although it could run, and long copies let others in between their pieces.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "emulated_gpu/abi.h"

namespace coppice::emulated_gpu {

enum class Outcome { done, more, blocked };  // over, to be called again, to be called again later
enum class Runs { nowhere, copy_engine, host_thread };

// What an operation does, made anew for every run of a graph.
struct Step {
  Runs where = Runs::nowhere;
  std::function<Outcome()> run;  // may throw an Error
};

class Operation {
 public:
  int device = 0;
  std::uint64_t queue = 0;  // of its stream, for the draw
  Step step;

 private:
  friend class Scheduler;
  std::uint64_t number_ = 0;
  int missing_ = 0;  // dependencies that are not over
  std::vector<std::shared_ptr<Operation>> next_;
  bool done_ = false;
  std::chrono::steady_clock::time_point ended_;
};

using OperationPtr = std::shared_ptr<Operation>;

struct Order {
  std::uint64_t seed = 0;
  int workers = 2;
  std::chrono::microseconds idle{0};  // how long operations may wait for nobody's sake, if seed is not 0
};

class Scheduler {
 public:
  static Scheduler& instance();

  // From the environment, COPPICE_EMULATED_GPU_SEED and COPPICE_EMULATED_GPU_WORKERS, until a test says otherwise.
  void configure(const Order& order);

  // Held by whoever changes what the runtime knows of streams, events, captures and graphs.
  std::recursive_mutex& state() { return state_; }

  void submit(const OperationPtr& operation, const std::vector<OperationPtr>& after);
  bool done(const OperationPtr& operation);
  void wait(const OperationPtr& operation);
  double milliseconds(const OperationPtr& from, const OperationPtr& to);
  bool adversarial() const { return order_.seed != 0; }
  std::uint64_t draw(std::uint64_t below);

  // The error that an operation of a device ended with; it stays.
  int failure(int device);
  void forgive(int device);

 private:
  using Clock = std::chrono::steady_clock;
  Scheduler();
  void start();
  void stop();
  void work();
  void serve_host();
  void complete(const OperationPtr& operation, std::unique_lock<std::mutex>& held);
  void make_ready(const OperationPtr& operation);
  std::size_t choose();
  Outcome run(const OperationPtr& operation);

  std::recursive_mutex state_;
  std::mutex lock_;  // taken last
  std::condition_variable work_, host_work_, ended_;
  Order order_;
  std::mt19937_64 random_;
  std::map<std::uint64_t, std::uint64_t> priorities_;
  std::vector<OperationPtr> ready_;
  std::list<OperationPtr> blocked_, host_;
  std::map<int, int> failures_;
  std::vector<std::thread> threads_;
  Clock::time_point idle_until_{};
  std::uint64_t numbers_ = 0;
  int waiting_ = 0;  // host threads that wait for an operation
  bool stopping_ = false;
};

}  // namespace coppice::emulated_gpu

// The few calls of CUDA and of NCCL's device API that exported kernels make, on a CPU: threads for ranks, blocks and
// their threads; and a network card for each rank, which reads late, lands what has no signal in any order, and signals
// a peer after all that was put to it before in the same context.
#pragma once

#include <atomic>
#include <barrier>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#define COPPICE_EMULATED
#define NCCL_VERSION(major, minor, patch) ((major) * 10000 + (minor) * 100 + (patch))
#ifndef NCCL_VERSION_CODE
#define NCCL_VERSION_CODE NCCL_VERSION(2, 32, 3)
#endif
#define __global__
#define __device__

struct Index {
  unsigned x;
};
inline thread_local Index threadIdx, blockIdx, blockDim, gridDim;
struct Block {  // what its threads share
  std::barrier<> barrier;
  std::atomic<int> any = 0;
  explicit Block(int threads) : barrier(threads) {}
};
inline thread_local Block* this_block;
inline thread_local std::minstd_rand chance;
inline void dawdle() {
  if (chance() % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(chance() % 2000));
}
inline void __syncthreads() {
  this_block->barrier.arrive_and_wait();
  dawdle();
}
inline int __syncthreads_or(int own) {
  this_block->any.fetch_or(own);
  this_block->barrier.arrive_and_wait();
  const int found = this_block->any.load();
  this_block->barrier.arrive_and_wait();
  this_block->any.store(0);
  this_block->barrier.arrive_and_wait();
  dawdle();
  return found;
}

namespace cuda {
enum thread_scope { thread_scope_system };
using std::memory_order_acquire;
using std::memory_order_relaxed;
using std::memory_order_release;
template <typename T, thread_scope>
struct atomic_ref : std::atomic_ref<T> {
  using std::atomic_ref<T>::atomic_ref;
  T load(std::memory_order order) const {
    const T value = std::atomic_ref<T>::load(order);
    std::this_thread::yield();
    return value;
  }
};
}  // namespace cuda

struct Window {  // the same memory on every rank
  std::vector<char> bytes;
  size_t stride;
};
using ncclWindow_t = Window*;
inline thread_local int this_rank;
inline void* ncclGetPeerPointer(ncclWindow_t window, size_t offset, int peer) {
  return window->bytes.data() + window->stride * peer + offset;
}
inline void* ncclGetLocalPointer(ncclWindow_t window, size_t offset) {
  return ncclGetPeerPointer(window, offset, this_rank);
}

struct ncclTeam {
  int nRanks, rank, stride;
};
struct Network;
struct ncclDevComm {
  int ranks, rank, near;
  int ginContextCount;
  Network* network;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 7)
  uint32_t* abortFlag;
#endif
};
inline ncclTeam ncclTeamWorld(const ncclDevComm& comm) { return {comm.ranks, comm.rank, 1}; }
inline ncclTeam ncclTeamLsa(const ncclDevComm& comm) { return {comm.near, comm.rank % comm.near, 1}; }
inline bool ncclTeamRankIsMember(ncclTeam near, ncclTeam world, int peer) {
  return peer / near.nRanks == world.rank / near.nRanks;
}

// An address that stands for the memory of all ranks is that of the first one.
inline std::vector<Window*> all_windows;
inline void* ncclGetLsaMultimemPointer(ncclWindow_t window, size_t offset, const ncclDevComm&) {
  return window->bytes.data() + offset;
}
// Does something with what an address stands for at each rank.
template <typename T, typename Action>
void with_all(const T* at, Action action) {
  const char* const place = reinterpret_cast<const char*>(at);
  for (Window* each : all_windows) {
    char* const begin = each->bytes.data();
    if (place < begin || place >= begin + each->stride) continue;
    for (size_t shift = 0; shift < each->bytes.size(); shift += each->stride) {
      action(*reinterpret_cast<T*>(begin + (place - begin) + shift));
    }
    return;
  }
  std::abort();  // no such memory
}
template <typename T, size_t N>
void load_sum(T (&value)[N], const T* at) {
  for (size_t i = 0; i < N; ++i) {
    value[i] = 0;
    with_all(at + i, [&](const T& each) { value[i] += each; });
    dawdle();
  }
}
template <typename T, size_t N>
void store_all(T* at, const T (&value)[N]) {
  for (size_t i = 0; i < N; ++i) {
    with_all(at + i, [&](T& each) { each = value[i]; });
  }
}

struct Message {
  int context, peer;
  char *to, *from;
  size_t bytes;
  std::atomic<uint64_t>* signal;
};

struct Network {
  std::vector<std::atomic<uint64_t>> signals;  // of all contexts
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Message> messages;
  bool over = false;

  explicit Network(size_t count) : signals(count) {}

  void post(const Message& message) {
    const std::lock_guard lock(mutex);
    messages.push_back(message);
    changed.notify_all();
  }
  void flush(int context) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] {
      for (const Message& each : messages) {
        if (each.context == context) return false;
      }
      return true;
    });
  }
  void carry() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return over || !messages.empty(); });
      if (messages.empty()) return;
      lock.unlock();
      dawdle();  // what comes meanwhile may overtake
      lock.lock();
      size_t chosen = chance() % messages.size();
      if (messages[chosen].signal) {
        for (size_t i = 0; i < chosen; ++i) {
          const Message &one = messages[i], &other = messages[chosen];
          if (one.peer == other.peer && one.context == other.context) chosen = i;
        }
      }
      const Message message = messages[chosen];
      if (message.bytes) std::memcpy(message.to, message.from, message.bytes);
      if (message.signal) message.signal->fetch_add(1, std::memory_order_release);
      messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(chosen));
      changed.notify_all();
    }
  }
};

struct ncclGin_None {};
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 7)  // with the deprecated name, which says less, kernels do not compile
struct ncclGin_StrongSignalInc {
  uint32_t signal;
};
using Signalled = ncclGin_StrongSignalInc;
#else
struct ncclGin_SignalInc {
  uint32_t signal;
};
using Signalled = ncclGin_SignalInc;
#endif
struct ncclCoopThread {};

inline std::vector<std::unique_ptr<Network>> networks;
inline size_t signals_of_context;

struct ncclGin {
  ncclDevComm comm;
  int context;

  std::atomic<uint64_t>* signal_of(int rank, uint32_t index) const {
    return &networks[rank]->signals[context * signals_of_context + index];
  }
  template <typename Action = ncclGin_None>
  void put(ncclTeam, int peer, ncclWindow_t into, size_t target, ncclWindow_t from, size_t source, size_t bytes,
           Action action = {}) const {
    std::atomic<uint64_t>* counter = nullptr;
    if constexpr (!std::is_same_v<Action, ncclGin_None>) counter = signal_of(peer, action.signal);
    char* const to = static_cast<char*>(ncclGetPeerPointer(into, target, peer));
    char* const read = static_cast<char*>(ncclGetPeerPointer(from, source, comm.rank));
    comm.network->post({context, peer, to, read, bytes, counter});
  }
  void signal(ncclTeam, int peer, Signalled action) const {
    comm.network->post({context, peer, nullptr, nullptr, 0, signal_of(peer, action.signal)});
  }
  void waitSignal(ncclCoopThread, uint32_t index, uint64_t least) const {
    while (signal_of(comm.rank, index)->load(std::memory_order_acquire) < least) {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 7)
      if (comm.abortFlag && std::atomic_ref<uint32_t>(*comm.abortFlag).load()) return;
#endif
      std::this_thread::yield();
    }
  }
  uint64_t readSignal(uint32_t index) const { return signal_of(comm.rank, index)->load(std::memory_order_acquire); }
  void flush(ncclCoopThread) const { comm.network->flush(context); }
};

// Launches a kernel on all ranks, `runs` times with the inputs of standard input, and writes the outputs of each run.
// Arguments: ranks that share memory, blocks, threads of a block, elements of a chunk, 1 for in place, runs, seed; and
// a rank that never starts, whereupon the communicators of all others are aborted after a while.
template <typename T, typename Memory, typename Kernel>
int emulate(char** argument, int ranks, const int* slots, Kernel kernel) {
  const int near = std::atoi(argument[1]), blocks = std::atoi(argument[2]), threads = std::atoi(argument[3]);
  const size_t chunk = std::atoi(argument[4]);
  const bool in_place = std::atoi(argument[5]);
  const int runs = std::atoi(argument[6]), contexts = blocks < 2 ? 1 : 2;
  const int missing = argument[8] ? std::atoi(argument[8]) : -1;
  [[maybe_unused]] uint32_t aborted = 0;
  signals_of_context = static_cast<size_t>(blocks) * ranks;
  for (int rank = 0; rank < ranks; ++rank) {
    networks.push_back(std::make_unique<Network>(contexts * signals_of_context));
  }
  Window windows[3], counters;
  const size_t shared = std::max(slots[0], slots[1]);
  for (int i = 0; i < 3; ++i) {
    windows[i].stride = (in_place && i < 2 ? shared : slots[i]) * chunk * sizeof(T);
    windows[i].bytes.resize(windows[i].stride * ranks);
  }
  counters.stride = 2 * signals_of_context * sizeof(uint64_t);
  counters.bytes.resize(counters.stride * ranks);
  Window& output = windows[in_place ? 0 : 1];
  all_windows = {&windows[0], &windows[1], &windows[2]};
  const Memory memory = {{&windows[0], &output, &windows[2]}, {0, 0, 0}, &counters, in_place};
  std::vector<std::thread> cards;
  const unsigned seed = std::atoi(argument[7]);
  for (auto& each : networks) {
    cards.emplace_back([&each, start = seed + 7 * cards.size()] {
      chance.seed(start);
      each->carry();
    });
  }
  for (int run = 0; run < runs; ++run) {
    if (std::fread(windows[0].bytes.data(), 1, windows[0].bytes.size(), stdin) != windows[0].bytes.size()) return 2;
    std::vector<std::thread> all;
    std::deque<Block> shared_by_block;
    std::deque<std::atomic<int>> running;
    std::deque<std::once_flag> begun(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      auto& left = running.emplace_back(blocks * threads);
      if (rank == missing) continue;
      const ncclDevComm comm = {
          ranks, rank, near, contexts, networks[rank].get(),
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 7)
          &aborted,
#endif
      };
      for (unsigned block = 0; block < static_cast<unsigned>(blocks); ++block) {
        auto& block_of_all = shared_by_block.emplace_back(threads);
        for (unsigned thread = 0; thread < static_cast<unsigned>(threads); ++thread) {
          all.emplace_back([=, &block_of_all, &left, &windows, &first = begun[rank]] {
            chance.seed(seed + 1000 * rank + 10 * block + thread + run);
            threadIdx = {thread};
            blockIdx = {block};
            blockDim = {static_cast<unsigned>(threads)};
            gridDim = {static_cast<unsigned>(blocks)};
            this_block = &block_of_all;
            this_rank = rank;
            std::call_once(first, [&] {  // the output is the caller's before
              std::this_thread::sleep_for(std::chrono::microseconds(chance() % 2000));
              if (!in_place) std::memset(windows[1].bytes.data() + windows[1].stride * rank, 0x5a, windows[1].stride);
            });
            kernel(comm, memory, chunk);
            if (--left == 0 && !in_place) {  // the input is the caller's again
              std::memset(windows[0].bytes.data() + windows[0].stride * rank, 0x77, windows[0].stride);
            }
          });
        }
      }
    }
    if (missing >= 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      std::atomic_ref<uint32_t>(aborted).store(1);
    }
    for (std::thread& each : all) each.join();
    std::fwrite(output.bytes.data(), 1, output.bytes.size(), stdout);
  }
  for (auto& each : networks) {
    const std::lock_guard lock(each->mutex);
    each->over = true;
    each->changed.notify_all();
  }
  for (std::thread& each : cards) each.join();
  return 0;
}

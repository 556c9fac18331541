// @name@: @collective@ on @ranks@ ranks as one kernel for NCCL's device API.
// Made by Coppice @version@ (@planner@ on @topology@).
//
// Every rank launches run<T>. Its program stands in the table below: puts, signals, waits, copies and sums, in this
// order. Ranks that share load/store memory (NCCL's LSA team, such as a box or an NVLink domain) are written to
// directly, and their signals are counters in a window; all others are put to and signalled by the network card (GIN).
// Which of them a rank is, NCCL says at run time. Sums are made in registers.
//
// All blocks of the grid do the same at a time, each on its part of every chunk, with signals of its own; no block
// waits for another one of its rank. All of them must run at a time, so that there may not be more than
// multiprocessors. When memory is free to be overwritten the program itself knows: it needs no barrier, neither within
// a launch nor between two.@switches@
//
//   nvcc -std=c++17 -arch=sm_90 -c FILE.cu          needs nccl.h and nccl_device.h of the release that runs it
//
// NVRTC takes it too, with headers that coppice.export.put_signal.nvrtc.write_nvrtc_headers writes: the kernels alone.
//
// Chunks: the collective's M bytes are @chunks@ chunks. Slots of one chunk: see SLOTS.

#ifndef COPPICE_EMULATED
#include <cuda/atomic>
#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>
#endif
#include <cstddef>
#include <cstdint>

namespace @namespace@ {

// Switches of the box add and copy what ranks share (NVLS): from sm_90 on.
#define COPPICE_MULTIMEM @multimem@

enum Act : uint8_t { PUT, SIGNAL, WAIT, COPY, SUM, FLUSH, SUM_TO_ALL };
enum Buffer : uint8_t { INPUT, OUTPUT, STAGING };

// What a rank does, with `count` chunks, or signals of a wait.
struct Operation {
  Act act;
  Buffer from, with, into;  // buffers of source, addend and target
  uint16_t peer;
  int32_t source, addend, target, count;  // first slots
};

constexpr Operation put(uint16_t peer, Buffer from, int32_t source, Buffer into, int32_t target, int32_t chunks) {
  return {PUT, from, INPUT, into, peer, source, 0, target, chunks};
}
constexpr Operation signal(uint16_t peer) { return {SIGNAL, INPUT, INPUT, INPUT, peer, 0, 0, 0, 0}; }
constexpr Operation wait(uint16_t peer, int32_t signals) {
  return {WAIT, INPUT, INPUT, INPUT, peer, 0, 0, 0, signals};
}
constexpr Operation copy(Buffer from, int32_t source, Buffer into, int32_t target, int32_t chunks) {
  return {COPY, from, INPUT, into, 0, source, 0, target, chunks};
}
constexpr Operation sum(Buffer from, int32_t source, Buffer with, int32_t addend, Buffer into, int32_t target,
                        int32_t chunks) {
  return {SUM, from, with, into, 0, source, addend, target, chunks};
}
// What was put by the network card may be overwritten from here on.
constexpr Operation flush() { return {FLUSH, INPUT, INPUT, INPUT, 0, 0, 0, 0, 0}; }

#if COPPICE_MULTIMEM
// The sum of all ranks' inputs, to the output of all.
constexpr Operation sum_to_all(int32_t chunk) { return {SUM_TO_ALL, INPUT, INPUT, OUTPUT, 0, chunk, 0, chunk, 1}; }
#endif

// A signal that shows no earlier than all puts before it to that peer in that context. Which of its signals are such,
// NCCL says by name from 2.30.7 on.
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 7)
using SignalAfterPuts = ncclGin_StrongSignalInc;
#else
using SignalAfterPuts = ncclGin_SignalInc;
#endif

// Whether the communicator was aborted (ncclCommAbort), looked at once in many turns of a loop that waits: the flag is
// the host's memory. Before 2.29.7 kernels cannot see it.
__device__ inline bool is_aborted([[maybe_unused]] const ncclDevComm& comm, [[maybe_unused]] uint32_t& turns) {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 7)
  if (++turns % 8192 != 0 || comm.abortFlag == nullptr) return false;
  return cuda::atomic_ref<uint32_t, cuda::thread_scope_system>(*comm.abortFlag).load(cuda::memory_order_relaxed) != 0;
#else
  return false;
#endif
}

constexpr int RANKS = @ranks@;
[[maybe_unused]] constexpr int CHUNKS = @chunks@;
// Slots of a rank's input, output and staging memory, of the rank that has most.
[[maybe_unused]] constexpr int SLOTS[] = {@slots@};
// In place, buffers begin this number of slots times the rank into the memory that input and output share.
[[maybe_unused]] constexpr bool MAY_BE_IN_PLACE = @in_place@;
__device__ const int SHIFT[] = {@shift@};

__device__ const Operation PROGRAM[] = {
@program@};
// Where the operations of each rank begin.
__device__ const int BEGIN[] = {@begin@};

// Where the buffers of the caller and of the program lie, in bytes from the beginning of a window; the same on all
// ranks. In place, input and output are the same. `counters` is 2 x blocks x RANKS numbers of 64 bits, 0 at first:
// signals that came by loads and stores, written by peers, and signals that waits took.
struct Memory {
  ncclWindow_t window[3];
  size_t offset[3];
  ncclWindow_t counters;
  bool in_place;
};

// 16 bytes, loaded and stored at once.
template <typename T>
struct alignas(16) Pack {
  T value[16 / sizeof(T)];
};

// The threads of a block copy, or add: to[i] = from[i] + with[i], where `with` may be null.
template <typename T>
__device__ void combine(T* to, const T* from, const T* with, size_t elements) {
  const uintptr_t all = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) |
                        reinterpret_cast<uintptr_t>(with);
  const size_t width = 16 / sizeof(T);
  const size_t packs = all % 16 == 0 ? elements / width : 0;
  for (size_t i = threadIdx.x; i < packs; i += blockDim.x) {
    Pack<T> pack = reinterpret_cast<const Pack<T>*>(from)[i];
    if (with) {
      const Pack<T> other = reinterpret_cast<const Pack<T>*>(with)[i];
      for (size_t j = 0; j < width; ++j) pack.value[j] = pack.value[j] + other.value[j];
    }
    reinterpret_cast<Pack<T>*>(to)[i] = pack;
  }
  for (size_t i = packs * width + threadIdx.x; i < elements; i += blockDim.x) {
    to[i] = with ? static_cast<T>(from[i] + with[i]) : from[i];
  }
}

#if COPPICE_MULTIMEM
#ifndef COPPICE_EMULATED
// Through an address that stands for the memory of all ranks: their sum is loaded, and a value stored to all.
__device__ inline void load_sum(float (&value)[4], const float* at) {
  asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value[0]), "=f"(value[1]), "=f"(value[2]), "=f"(value[3])
               : "l"(at)
               : "memory");
}
__device__ inline void load_sum(float (&value)[1], const float* at) {
  asm volatile("multimem.ld_reduce.relaxed.sys.global.add.f32 %0, [%1];" : "=f"(value[0]) : "l"(at) : "memory");
}
__device__ inline void store_all(float* at, const float (&value)[4]) {
  asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(at), "f"(value[0]), "f"(value[1]), "f"(value[2]), "f"(value[3])
               : "memory");
}
__device__ inline void store_all(float* at, const float (&value)[1]) {
  asm volatile("multimem.st.relaxed.sys.global.f32 [%0], %1;" : : "l"(at), "f"(value[0]) : "memory");
}
#endif

template <size_t N, typename T>
__device__ void sum_to_all_of(T* to, const T* from) {
  T value[N];
  load_sum(value, from);
  store_all(to, value);
}

// The threads of a block do so with elements that follow each other.
template <typename T>
__device__ void combine_of_all(T* to, const T* from, size_t elements) {
  constexpr size_t width = 16 / sizeof(T);
  const uintptr_t all = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from);
  const size_t packs = all % 16 == 0 ? elements / width : 0;
  for (size_t i = threadIdx.x; i < packs; i += blockDim.x) sum_to_all_of<width>(to + i * width, from + i * width);
  for (size_t i = packs * width + threadIdx.x; i < elements; i += blockDim.x) sum_to_all_of<1>(to + i, from + i);
}
#endif

// One rank's part of one block in the program; `chunk` is the elements of a chunk.
template <typename T>
__global__ void run(ncclDevComm comm, Memory memory, size_t chunk) {
  using Counter = cuda::atomic_ref<uint64_t, cuda::thread_scope_system>;
  const ncclTeam world = ncclTeamWorld(comm), near = ncclTeamLsa(comm);
  const int rank = world.rank, block = blockIdx.x, blocks = gridDim.x;
  // This block's part of every chunk: whole packs of 16 bytes where there are that many.
  const size_t width = 16 / sizeof(T), packs = (chunk + width - 1) / width;
  const size_t begin = packs * block / blocks * width;
  const size_t limit = packs * (block + 1) / blocks * width, end = limit < chunk ? limit : chunk;
  const size_t part = begin < end ? end - begin : 0;
  const bool is_joined = part == chunk;  // with one block, chunks that follow each other are one piece of memory
  const uint32_t signals = block * RANKS;  // of this block: one for each source
  uint64_t* const came = static_cast<uint64_t*>(ncclGetLocalPointer(memory.counters, 0)) + signals;
  uint64_t* const taken = came + static_cast<size_t>(blocks) * RANKS;
  const bool has_network = near.nRanks < world.nRanks;
  const int context = has_network ? block % comm.ginContextCount : 0;
  bool unflushed = false;

  // Where a slot lies, in bytes from the beginning of the window of its buffer.
  auto place = [&](int whose, Buffer buffer, int32_t slot) {
    const size_t shift = memory.in_place ? static_cast<size_t>(SHIFT[buffer]) * whose : 0;
    return memory.offset[buffer] + ((shift + slot) * chunk + begin) * sizeof(T);
  };
  auto mine = [&](Buffer buffer, int32_t slot) {
    return static_cast<T*>(ncclGetLocalPointer(memory.window[buffer], place(rank, buffer, slot)));
  };
  auto theirs = [&](int peer, Buffer buffer, int32_t slot) {
    return static_cast<T*>(ncclGetPeerPointer(memory.window[buffer], place(peer, buffer, slot), peer));
  };
#if COPPICE_MULTIMEM
  auto everyones = [&](Buffer buffer, int32_t slot) {
    return static_cast<T*>(ncclGetLsaMultimemPointer(memory.window[buffer], place(rank, buffer, slot), comm));
  };
#endif
  // This block's part of each of `count` chunks.
  auto move = [&](T* to, const T* from, const T* with, int32_t count) {
    const size_t length = is_joined ? part * count : part, last = is_joined ? 1 : count;
    for (size_t i = 0; i < last; ++i) {
      combine(to + i * chunk, from + i * chunk, with ? with + i * chunk : nullptr, length);
    }
  };

  for (int at = BEGIN[rank]; at < BEGIN[rank + 1]; ++at) {
    const Operation each = PROGRAM[at];
    const bool is_near = ncclTeamRankIsMember(near, world, each.peer);
    switch (each.act) {
      case PUT:
        if (is_near) {
          move(theirs(each.peer, each.into, each.target), mine(each.from, each.source), nullptr, each.count);
          __syncthreads();  // all of it is written before the signal
        } else if (part) {
          unflushed = true;
          if (threadIdx.x == 0) {
            const ncclGin network{comm, context};
            const int32_t last = is_joined ? 0 : each.count - 1;
            const size_t bytes = (is_joined ? part * each.count : part) * sizeof(T);
            for (int32_t i = 0; i <= last; ++i) {
              const size_t target = place(each.peer, each.into, each.target + i);
              const size_t source = place(rank, each.from, each.source + i);
              const ncclWindow_t into = memory.window[each.into], from = memory.window[each.from];
              if (i < last) {
                network.put(world, each.peer, into, target, from, source, bytes);
              } else {  // the signal comes after all puts before it to this peer in this context
                network.put(world, each.peer, into, target, from, source, bytes, SignalAfterPuts{signals + rank});
              }
            }
          }
          break;
        }
        [[fallthrough]];
      case SIGNAL:
        if (threadIdx.x == 0) {
          if (is_near) {
            const size_t counter = (signals + rank) * sizeof(uint64_t);
            void* const at_peer = ncclGetPeerPointer(memory.counters, counter, each.peer);
            Counter(*static_cast<uint64_t*>(at_peer)).fetch_add(1, cuda::memory_order_release);
          } else {
            const ncclGin network{comm, context};
            network.signal(world, each.peer, SignalAfterPuts{signals + rank});
          }
        }
        break;
      case WAIT: {
        bool given_up = false;
        if (threadIdx.x == 0) {
          const uint64_t wanted = taken[each.peer] += each.count;
          if (is_near) {
            uint32_t turns = 0;
            while (!given_up && Counter(came[each.peer]).load(cuda::memory_order_acquire) < wanted) {
              given_up = is_aborted(comm, turns);
            }
          } else {
            const ncclGin network{comm, context};
            network.waitSignal(ncclCoopThread{}, signals + each.peer, wanted);
            given_up = network.readSignal(signals + each.peer) < wanted;  // it returns if the communicator is aborted
          }
        }
        // What did not come may not be passed on, above all not to ranks that go on.
        if (__syncthreads_or(given_up)) return;
        break;
      }
      case COPY:
      case SUM:
        if (each.act == SUM) {
          move(mine(each.into, each.target), mine(each.from, each.source), mine(each.with, each.addend), each.count);
        } else if (mine(each.into, each.target) != mine(each.from, each.source)) {
          move(mine(each.into, each.target), mine(each.from, each.source), nullptr, each.count);
        }
        __syncthreads();
        break;
      case FLUSH:
        if (unflushed) {
          if (threadIdx.x == 0) {
            const ncclGin network{comm, context};
            network.flush(ncclCoopThread{});
          }
          __syncthreads();
          unflushed = false;
        }
        break;
      case SUM_TO_ALL:
#if COPPICE_MULTIMEM
        combine_of_all(everyones(each.into, each.target), everyones(each.from, each.source), part);
        __syncthreads();
#endif
        break;
    }
  }
}

#ifdef __CUDACC_RTC__

// The kernels alone; name further element types here.
template __global__ void run<float>(ncclDevComm, Memory, size_t);

#elif !defined(COPPICE_EMULATED)

// What a communicator needs once, before the first launch: the same call on all ranks.
struct Prepared {
  ncclDevComm_t comm;
  ncclWindow_t staging_window, counters_window;
  void *staging, *counters;
  int blocks;
};

// Makes staging memory for chunks of at most `chunk_bytes` bytes, counters, and a device communicator.
inline ncclResult_t prepare(ncclComm_t comm, size_t chunk_bytes, int blocks, Prepared* made) {
  const size_t staging = (chunk_bytes * SLOTS[STAGING] + 4096) / 4096 * 4096;
  const size_t counters = (2 * sizeof(uint64_t) * blocks * RANKS + 4095) / 4096 * 4096;
  ncclResult_t result = ncclMemAlloc(&made->staging, staging);
  if (result == ncclSuccess) result = ncclMemAlloc(&made->counters, counters);
  if (result != ncclSuccess) return result;
  if (cudaMemset(made->counters, 0, counters) != cudaSuccess) return ncclUnhandledCudaError;
  if (cudaDeviceSynchronize() != cudaSuccess) return ncclUnhandledCudaError;
  const int flags = NCCL_WIN_COLL_SYMMETRIC;
  result = ncclCommWindowRegister(comm, made->staging, staging, &made->staging_window, flags);
  if (result != ncclSuccess) return result;
  result = ncclCommWindowRegister(comm, made->counters, counters, &made->counters_window, flags);
  if (result != ncclSuccess) return result;
  if (!made->staging_window || !made->counters_window) return ncclInvalidUsage;  // no symmetric memory here
  ncclDevCommRequirements_t needs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  needs.lsaMultimem = COPPICE_MULTIMEM;
  if (COPPICE_MULTIMEM && ncclTeamLsa(comm).nRanks < RANKS) return ncclInvalidUsage;  // a switch serves one box
  if (ncclTeamLsa(comm).nRanks < ncclTeamWorld(comm).nRanks) {
    needs.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
    needs.ginContextCount = blocks < 4 ? blocks : 4;
    needs.ginSignalCount = blocks * RANKS;  // of each block and source; no barriers
  }
  made->blocks = blocks;
  return ncclDevCommCreate(comm, &needs, &made->comm);
}

// Runs the collective on a stream. `input` and `output` are windows of symmetric memory that the caller registered, with
// offsets in bytes that are the same on all ranks; in place, both are the whole shared memory. `elements` are those of
// the whole collective (of the output of an all-gather, of the input of a reduce-scatter), a multiple of CHUNKS.
template <typename T>
ncclResult_t launch(const Prepared& made, ncclWindow_t input, size_t input_offset, ncclWindow_t output,
                    size_t output_offset, bool in_place, size_t elements, cudaStream_t stream) {
  if ((in_place && !MAY_BE_IN_PLACE) || elements % CHUNKS) return ncclInvalidArgument;
  const Memory memory = {{input, output, made.staging_window}, {input_offset, output_offset, 0},
                         made.counters_window, in_place};
  run<T><<<made.blocks, 512, 0, stream>>>(made.comm, memory, elements / CHUNKS);
  return cudaGetLastError() == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

// Kernels that this file holds; name further element types here.
template ncclResult_t launch<float>(const Prepared&, ncclWindow_t, size_t, ncclWindow_t, size_t, bool, size_t,
                                    cudaStream_t);

#endif

}  // namespace @namespace@

#undef COPPICE_MULTIMEM

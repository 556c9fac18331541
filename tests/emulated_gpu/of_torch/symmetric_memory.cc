// Symmetric memory of an emulated device for torch's own bookkeeping, which the CPU build of torch has: its table of
// allocators, allocation of tensors, meeting by the table of process groups, buffers and signal pads of peers. What is
// in that build's place here is what a device does: memory, access of peers, and signals in the order of a stream.

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

extern "C" {
int cudaMalloc(void** pointer, size_t bytes);
int cudaFree(void* pointer);
int cudaMemset(void* pointer, int value, size_t bytes);
int cudaDeviceSynchronize();
int cudaDeviceEnablePeerAccess(int peer, unsigned flags);
int cuStreamWaitValue32(void* stream, unsigned long long address, unsigned value, unsigned flags);
int cuStreamWriteValue32(void* stream, unsigned long long address, unsigned value, unsigned flags);
int PyGILState_Check();
void* PyEval_SaveThread();
void PyEval_RestoreThread(void* state);
}

struct _object;  // PyObject
_object* THPVariable_Wrap(const at::TensorBase& tensor);

namespace {

namespace symmetric = c10d::symmetric_memory;

constexpr unsigned kEqual = 1;            // CU_STREAM_WAIT_VALUE_EQ
constexpr int kAlreadyEnabled = 704;      // cudaErrorPeerAccessAlreadyEnabled

using Stream = void* (*)();
Stream current_stream = nullptr;  // the stream of the calling thread

void check(int code, const char* what) {
  TORCH_CHECK(code == 0, "CUDA error ", code, " (", what, ")");
}

void* device_memory(size_t bytes) {
  void* pointer = nullptr;
  check(cudaMalloc(&pointer, bytes), "cudaMalloc");
  check(cudaMemset(pointer, 0, bytes), "cudaMemset");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return pointer;
}

// Ranks are threads of one interpreter here, which torch's binding of a meeting does not let go of.
class OthersRun {
 public:
  OthersRun() : state_(PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~OthersRun() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  OthersRun(const OthersRun&) = delete;
  OthersRun& operator=(const OthersRun&) = delete;

 private:
  void* state_;
};

class Memory : public symmetric::SymmetricMemory {
 public:
  Memory(int rank, size_t bytes, std::vector<void*> buffers, std::vector<void*> pads)
      : rank_(rank), bytes_(bytes), buffers_(std::move(buffers)), pads_(std::move(pads)) {}

  std::vector<void*> get_buffer_ptrs() override { return buffers_; }
  std::vector<void*> get_signal_pad_ptrs() override { return pads_; }
  void** get_buffer_ptrs_dev() override { return buffers_.data(); }
  void** get_signal_pad_ptrs_dev() override { return pads_.data(); }
  size_t get_buffer_size() override { return bytes_; }
  size_t get_offset() override { return 0; }
  bool has_multicast_support() override { return false; }
  void* get_multicast_ptr() override { return nullptr; }
  void barrier(int, size_t) override { TORCH_CHECK(false, "a barrier takes a kernel"); }
  int get_rank() override { return rank_; }
  int get_world_size() override { return static_cast<int>(buffers_.size()); }
  c10::Device get_device() override { return c10::Device(c10::DeviceType::CPU); }

  // As torch's kernels: a signal is raised once it is 0, and taken once it is 1.
  void put_signal(int peer, int channel, size_t) override { change(peer, rank_, channel, 0, 1); }
  void wait_signal(int peer, int channel, size_t) override { change(rank_, peer, channel, 1, 0); }

 private:
  void change(int owner, int giver, int channel, unsigned known, unsigned then) {
    const auto word = reinterpret_cast<unsigned long long>(static_cast<unsigned*>(pads_.at(owner)) +
                                                           channel * get_world_size() + giver);
    void* stream = current_stream();
    check(cuStreamWaitValue32(stream, word, known, kEqual), "cuStreamWaitValue32");
    check(cuStreamWriteValue32(stream, word, then, 0), "cuStreamWriteValue32");
  }

  int rank_;
  size_t bytes_;
  std::vector<void*> buffers_, pads_;
};

class Allocator : public symmetric::SymmetricMemoryAllocator {
 public:
  void* alloc(size_t size, int, const std::optional<std::string>&) override {
    void* pointer = device_memory(size);
    std::lock_guard lock(mutex_);
    sizes_[pointer] = size;
    return pointer;
  }

  void free(void* pointer) override {
    const OthersRun others;  // it waits for the device
    {
      std::lock_guard lock(mutex_);
      sizes_.erase(pointer);
    }
    cudaFree(pointer);
  }

  size_t get_alloc_size(void* pointer) override {
    std::lock_guard lock(mutex_);
    return sizes_.at(pointer);
  }

  c10::intrusive_ptr<symmetric::SymmetricMemory> rendezvous(void* pointer,
                                                            const std::optional<std::string>& name) override {
    TORCH_CHECK(name.has_value(), "expected a group to meet in");
    const OthersRun others;
    const auto group = c10d::resolve_process_group(*name);
    const int rank = group->getRank(), ranks = group->getSize();
    const auto store = group->getStore();
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == rank) continue;
      const int code = cudaDeviceEnablePeerAccess(peer, 0);
      if (code != kAlreadyEnabled) check(code, "cudaDeviceEnablePeerAccess");
    }
    int turn = 0;
    {
      std::lock_guard lock(mutex_);
      turn = ++turns_[{*name, rank}];
    }
    const auto key = [&](const char* what, int of) {
      return std::string("met/") + what + "/" + std::to_string(turn) + "/" + std::to_string(of);
    };
    const auto tell = [&](const char* what, void* address) {
      const auto text = std::to_string(reinterpret_cast<unsigned long long>(address));
      store->set(key(what, rank), std::vector<uint8_t>(text.begin(), text.end()));
    };
    const auto told = [&](const char* what) {
      std::vector<void*> found;
      for (int peer = 0; peer < ranks; ++peer) {
        const auto text = store->get(key(what, peer));
        found.push_back(reinterpret_cast<void*>(std::stoull(std::string(text.begin(), text.end()))));
      }
      return found;
    };
    tell("buffer", pointer);
    tell("pad", device_memory(symmetric::get_signal_pad_size()));
    auto buffers = told("buffer");
    return c10::make_intrusive<Memory>(rank, get_alloc_size(pointer), std::move(buffers), told("pad"));
  }

  bool has_multicast_support(int) override { return false; }
  c10::DeviceType supported_device_type() override { return c10::DeviceType::CPU; }
  std::string name() override { return "CUDA"; }
  bool has_allocation(void* pointer) override {
    std::lock_guard lock(mutex_);
    return sizes_.count(pointer) > 0;
  }

 private:
  std::mutex mutex_;
  std::map<void*, size_t> sizes_;
  std::map<std::pair<std::string, int>, int> turns_;
};

}  // namespace

// Put it into torch's table of allocators, for tensors that a CPU can show.
extern "C" __attribute__((visibility("default"))) void emulated_symmetric_memory(Stream stream) {
  current_stream = stream;
  symmetric::register_allocator(c10::DeviceType::CPU, c10::make_intrusive<Allocator>());
}

// A tensor of bytes in memory of the allocator in torch's table, which lets go of it.
extern "C" __attribute__((visibility("default"))) _object* emulated_tensor(long bytes) {
  const auto allocator = symmetric::get_allocator(c10::DeviceType::CPU);
  void* pointer = allocator->alloc(static_cast<size_t>(bytes), 0, std::nullopt);
  const auto let_go = [allocator](void* memory) { allocator->free(memory); };
  return THPVariable_Wrap(at::from_blob(pointer, {bytes}, let_go, at::TensorOptions().dtype(at::kByte)));
}

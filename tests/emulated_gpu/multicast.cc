#include "emulated_gpu/multicast.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "emulated_gpu/devices.h"
#include "emulated_gpu/errors.h"
#include "emulated_gpu/virtual_memory.h"

namespace coppice::emulated_gpu {

struct Multicast::Table {
  struct Row {
    std::uint64_t number;  // 0: free
    int device, process, descriptor;
    std::size_t at, offset, bytes;
  };
  static constexpr std::size_t kRows = 1024;

  std::atomic<int> lock;
  unsigned devices, added;
  std::size_t bytes;
  std::uint64_t numbers;
  std::uint64_t members;  // bits, by device
  Row rows[kRows];
};

namespace {

// Held for a few instructions, over processes.
template <class Table>
class Held {
 public:
  explicit Held(Table* table) : table_(table) {
    while (table_->lock.exchange(1, std::memory_order_acquire)) std::this_thread::yield();
  }
  ~Held() { table_->lock.store(0, std::memory_order_release); }

 private:
  Table* table_;
};

}  // namespace

std::shared_ptr<Physical> Multicast::create(const MulticastProperties& properties) {
  auto made = new_physical(sizeof(Table), -1, "emulated-multicast");
  made->multicast = open(made->descriptor);
  made->multicast->table_->devices = properties.devices;
  made->multicast->table_->bytes = properties.size;
  made->bytes = properties.size;
  return made;
}

std::shared_ptr<Multicast> Multicast::open(int descriptor) {
  void* mapped = mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) throw kOutOfMemory;
  return std::shared_ptr<Multicast>(new Multicast(static_cast<Table*>(mapped)));
}

Multicast::~Multicast() {
  for (const auto& [key, address] : mapped_) {
    munmap(reinterpret_cast<void*>(address), table_->rows[key.first].bytes);
  }
  munmap(table_, sizeof(Table));
}

std::size_t Multicast::bytes() const { return table_->bytes; }

int Multicast::add_device(int device) {
  Held held(table_);
  const std::uint64_t bit = std::uint64_t{1} << device;
  if ((table_->members & bit) || table_->added == table_->devices) return kInvalidValue;
  table_->members |= bit;
  ++table_->added;
  return kSuccess;
}

int Multicast::bind(int device, std::size_t at, const Physical& memory, std::size_t offset, std::size_t bytes) {
  // The driver waits here until all devices were added.
  const auto all_added = [&] {
    Held held(table_);
    return table_->added == table_->devices;
  };
  while (!all_added()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  Held held(table_);
  if (!(table_->members >> device & 1) || at + bytes > table_->bytes || offset + bytes > memory.bytes) {
    return kInvalidValue;
  }
  for (Table::Row& row : table_->rows) {
    if (row.number && row.device == device && at < row.at + row.bytes && row.at < at + bytes) return kInvalidValue;
  }
  for (Table::Row& row : table_->rows) {
    if (row.number) continue;
    row = {++table_->numbers, device, static_cast<int>(getpid()), memory.descriptor, at, offset, bytes};
    return kSuccess;
  }
  return kOutOfMemory;
}

int Multicast::unbind(int device, std::size_t at, std::size_t bytes) {
  Held held(table_);
  bool any = false;
  for (Table::Row& row : table_->rows) {
    if (!row.number || row.device != device || row.at < at || row.at + row.bytes > at + bytes) continue;
    row.number = 0;
    any = true;
  }
  return any ? kSuccess : kInvalidValue;
}

std::vector<Address> Multicast::places(std::size_t at, std::size_t bytes) {
  std::lock_guard mine(lock_);
  Held held(table_);
  std::vector<Address> found;
  for (std::size_t i = 0; i < Table::kRows; ++i) {
    const Table::Row& row = table_->rows[i];
    if (!row.number || at < row.at || at + bytes > row.at + row.bytes) continue;
    Address& mapped = mapped_[{i, row.number}];
    if (!mapped) {
      const std::string path = "/proc/" + std::to_string(row.process) + "/fd/" + std::to_string(row.descriptor);
      const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
      if (descriptor < 0) throw kIllegalAddress;
      void* there =
          mmap(nullptr, row.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, static_cast<off_t>(row.offset));
      close(descriptor);
      if (there == MAP_FAILED) throw kOutOfMemory;
      mapped = address_of(there);
    }
    found.push_back(mapped + (at - row.at));
  }
  if (found.size() != table_->devices) throw kIllegalAddress;
  return found;
}

}  // namespace coppice::emulated_gpu

using namespace coppice::emulated_gpu;

COPPICE_CUDA cuMulticastGetGranularity(std::size_t* bytes, const MulticastProperties*, int) {
  *bytes = kGranularity;
  return kSuccess;
}

COPPICE_CUDA cuMulticastCreate(MemoryHandle* handle, const MulticastProperties* properties) {
  if (!properties->devices || !properties->size || properties->size % kGranularity) return kInvalidValue;
  try {
    auto made = Multicast::create(*properties);
    made->properties.handle_types = static_cast<int>(properties->handle_types);
    *handle = new_handle(std::move(made));
  } catch (Error error) {
    return error;
  }
  return kSuccess;
}

COPPICE_CUDA cuMulticastAddDevice(MemoryHandle handle, int device) {
  const auto physical = physical_of(handle);
  if (!physical || !physical->multicast || !is_device(device)) return kInvalidValue;
  return physical->multicast->add_device(device);
}

COPPICE_CUDA cuMulticastBindMem(MemoryHandle handle, std::size_t at, MemoryHandle memory, std::size_t offset,
                                std::size_t bytes, unsigned long long) {
  const auto physical = physical_of(handle), bound = physical_of(memory);
  if (!physical || !physical->multicast || !bound || bound->device < 0) return kInvalidValue;
  return physical->multicast->bind(bound->device, at, *bound, offset, bytes);
}

COPPICE_CUDA cuMulticastBindAddr(MemoryHandle handle, std::size_t at, DevicePointer address, std::size_t bytes,
                                 unsigned long long) {
  const auto physical = physical_of(handle);
  if (!physical || !physical->multicast) return kInvalidValue;
  for (std::size_t done = 0; done < bytes;) {
    const auto range = Memory::instance().find(address + done);
    if (!range || range->source != Source::mapped || !range->on_device()) return kInvalidValue;
    const std::size_t inside = address + done - range->base, now = std::min(bytes - done, range->bytes - inside);
    const int error =
        physical->multicast->bind(range->device, at + done, *range->physical, range->offset + inside, now);
    if (error) return error;
    done += now;
  }
  return kSuccess;
}

COPPICE_CUDA cuMulticastUnbind(MemoryHandle handle, int device, std::size_t at, std::size_t bytes) {
  const auto physical = physical_of(handle);
  if (!physical || !physical->multicast) return kInvalidValue;
  return physical->multicast->unbind(device, at, bytes);
}

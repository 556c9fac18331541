// Memory: which addresses are whose, and how bytes are moved.
//
// An address of a device is one of the process. Memory that other processes may map is a memfd; a range of addresses
// shows a part of one. Bytes move in words, each of them whole, so that a program with a race is no fault of the
// emulator's: it sees old words and new ones.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <vector>

#include "emulated_gpu/abi.h"

namespace coppice::emulated_gpu {

using Address = std::uintptr_t;

inline Address address_of(const void* pointer) { return reinterpret_cast<Address>(pointer); }

class Multicast;

// A piece of physical memory, and the descriptor that shares it; closed with the last who uses it.
struct Physical {
  ~Physical();
  int descriptor = -1;
  std::size_t bytes = 0;
  int device = -1;  // -1: of the host
  AllocationProperties properties{};
  std::shared_ptr<Multicast> multicast;  // a multicast object has no bytes of its own
};

enum class Source { allocated, pool, mapped, shared, pinned, registered, managed };

struct Range {
  Address base = 0;
  std::size_t bytes = 0;
  Source source = Source::allocated;
  int device = -1;                     // where the bytes lie; -1: in the host
  std::shared_ptr<Physical> physical;  // none of what the host registered
  std::size_t offset = 0;              // in the physical memory
  std::vector<bool> access;            // by device, of mapped memory only
  unsigned flags = 0;                  // of the host's calls

  bool on_device() const { return device >= 0; }
};

struct Place {
  Address at = 0;
  bool pageable = false;  // memory of the host that nobody said anything about, and that nothing is known of
  Place after(std::size_t bytes) const { return {at + bytes, pageable}; }
};

class Memory {
 public:
  static Memory& instance();

  std::optional<Range> find(Address address);
  // What is there, of at least `bytes` from there on, in one range or in several that join; nothing if any is missing.
  std::vector<Range> covering(Address address, std::size_t bytes);

  void add(const Range& range);
  // Take out and unmap; waits for pieces that are being moved.
  bool remove(Address base, const std::function<void(const Range&)>& unmap);
  void change(Address base, const std::function<void(Range&)>& how);

  // Move one piece, on behalf of a device, once it is sure that the device may; throws kIllegalAddress.
  void move(const Place& target, const Place& source, std::size_t bytes, int device);
  void fill(Address target, std::uint64_t pattern, std::size_t element, std::size_t bytes, int device);
  std::uint64_t load(Address address, int bytes, int device);
  void store(Address address, std::uint64_t value, int bytes, int device);

  void enable_peer(int from, int to, bool enabled);
  bool peer_enabled(int from, int to);

 private:
  enum class Need { copy, direct };
  const Range& range_at(Address address) const;
  std::size_t within(const Place& place, std::size_t bytes) const;
  void check(const Range& range, int device, Need need) const;
  std::vector<Address> places(const Place& place, std::size_t bytes, int device, Need need) const;

  std::shared_mutex lock_;
  std::map<Address, Range> ranges_;
  std::map<std::pair<int, int>, bool> peers_;
};

// A memfd of this many bytes, and where (a part of) one is mapped; throw kOutOfMemory.
std::shared_ptr<Physical> new_physical(std::size_t bytes, int device, const char* name);
void* map_physical(const Physical& physical, std::size_t offset, std::size_t bytes, void* at = nullptr);

// Word by word; ranges may overlap in no way.
void move_words(void* target, const void* source, std::size_t bytes);

}  // namespace coppice::emulated_gpu

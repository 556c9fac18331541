#include "emulated_gpu/memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "emulated_gpu/multicast.h"

namespace coppice::emulated_gpu {
namespace {

template <class Word>
void move_aligned(Address target, Address source, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += sizeof(Word)) {
    const auto* from = reinterpret_cast<const Word*>(source + at);
    const Word value = __atomic_load_n(from, __ATOMIC_ACQUIRE);
    __atomic_store_n(reinterpret_cast<Word*>(target + at), value, __ATOMIC_RELEASE);
  }
}

template <class Word>
void fill_aligned(Address target, std::uint64_t pattern, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += sizeof(Word)) {
    __atomic_store_n(reinterpret_cast<Word*>(target + at), static_cast<Word>(pattern), __ATOMIC_RELEASE);
  }
}

void more_descriptors() {
  static std::once_flag once;
  std::call_once(once, [] {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
      limit.rlim_cur = limit.rlim_max;
      setrlimit(RLIMIT_NOFILE, &limit);
    }
  });
}

}  // namespace

Physical::~Physical() {
  if (descriptor >= 0) close(descriptor);
}

void move_words(void* target, const void* source, std::size_t bytes) {
  const Address to = address_of(target), from = address_of(source);
  const Address both = to | from;
  if (both % 8 == 0) {
    move_aligned<std::uint64_t>(to, from, bytes & ~std::size_t{7});
    move_aligned<std::uint8_t>(to + (bytes & ~std::size_t{7}), from + (bytes & ~std::size_t{7}), bytes & 7);
  } else if (both % 4 == 0) {
    move_aligned<std::uint32_t>(to, from, bytes & ~std::size_t{3});
    move_aligned<std::uint8_t>(to + (bytes & ~std::size_t{3}), from + (bytes & ~std::size_t{3}), bytes & 3);
  } else {
    move_aligned<std::uint8_t>(to, from, bytes);
  }
}

std::shared_ptr<Physical> new_physical(std::size_t bytes, int device, const char* name) {
  more_descriptors();
  auto made = std::make_shared<Physical>();
  made->descriptor = memfd_create(name, MFD_CLOEXEC);
  made->bytes = bytes;
  made->device = device;
  if (made->descriptor < 0 || ftruncate(made->descriptor, static_cast<off_t>(bytes)) != 0) throw kOutOfMemory;
  return made;
}

void* map_physical(const Physical& physical, std::size_t offset, std::size_t bytes, void* at) {
  void* mapped = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (at ? MAP_FIXED : 0), physical.descriptor,
                      static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) throw kOutOfMemory;
  return mapped;
}

Memory& Memory::instance() {
  static Memory* one = new Memory;
  return *one;
}

std::optional<Range> Memory::find(Address address) {
  std::shared_lock held(lock_);
  auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return std::nullopt;
  const Range& range = std::prev(after)->second;
  if (address >= range.base + range.bytes) return std::nullopt;
  return range;
}

std::vector<Range> Memory::covering(Address address, std::size_t bytes) {
  std::vector<Range> found;
  const Address end = address + bytes;
  while (true) {
    const std::optional<Range> range = find(address);
    if (!range) return {};
    found.push_back(*range);
    address = range->base + range->bytes;
    if (address >= end) return found;
  }
}

void Memory::add(const Range& range) {
  std::unique_lock held(lock_);
  ranges_[range.base] = range;
}

bool Memory::remove(Address base, const std::function<void(const Range&)>& unmap) {
  std::unique_lock held(lock_);
  const auto found = ranges_.find(base);
  if (found == ranges_.end()) return false;
  unmap(found->second);
  ranges_.erase(found);
  return true;
}

void Memory::change(Address base, const std::function<void(Range&)>& how) {
  std::unique_lock held(lock_);
  const auto found = ranges_.find(base);
  if (found != ranges_.end()) how(found->second);
}

void Memory::enable_peer(int from, int to, bool enabled) {
  std::unique_lock held(lock_);
  peers_[{from, to}] = enabled;
}

bool Memory::peer_enabled(int from, int to) {
  std::shared_lock held(lock_);
  const auto found = peers_.find({from, to});
  return found != peers_.end() && found->second;
}

// The private ones with lock_ held.
const Range& Memory::range_at(Address address) const {
  const auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) throw kIllegalAddress;
  const Range& range = std::prev(after)->second;
  if (address >= range.base + range.bytes) throw kIllegalAddress;
  return range;
}

// How many of these bytes one mapping holds.
std::size_t Memory::within(const Place& place, std::size_t bytes) const {
  if (place.pageable) return bytes;
  const Range& range = range_at(place.at);
  return std::min(bytes, range.base + range.bytes - place.at);
}

// Copies reach all memory that was allocated; what a device reads or writes itself, and whatever is mapped, needs an
// access that was granted.
void Memory::check(const Range& range, int device, Need need) const {
  if (range.source == Source::mapped) {
    const auto at = static_cast<std::size_t>(device);
    if (at >= range.access.size() || !range.access[at]) throw kIllegalAddress;
  } else if (need == Need::direct && range.on_device() && range.device != device && range.source != Source::shared) {
    const auto found = peers_.find({device, range.device});
    if (found == peers_.end() || !found->second) throw kIllegalAddress;
  }
}

// Where these bytes are: elsewhere, and in several places, behind an address of a multicast object.
std::vector<Address> Memory::places(const Place& place, std::size_t bytes, int device, Need need) const {
  if (place.pageable) return {place.at};
  const Range& range = range_at(place.at);
  if (place.at + bytes > range.base + range.bytes) throw kIllegalAddress;
  check(range, device, need);
  if (!range.physical || !range.physical->multicast) return {place.at};
  return range.physical->multicast->places(range.offset + (place.at - range.base), bytes);
}

void Memory::move(const Place& target, const Place& source, std::size_t bytes, int device) {
  std::shared_lock held(lock_);
  for (std::size_t at = 0; at < bytes;) {
    const Place to = target.after(at), from = source.after(at);
    const std::size_t now = std::min(within(to, bytes - at), within(from, bytes - at));
    const std::vector<Address> sources = places(from, now, device, Need::copy);
    if (sources.size() != 1) throw kIllegalAddress;  // a copy cannot read what several hold
    for (Address each : places(to, now, device, Need::copy)) {
      move_words(reinterpret_cast<void*>(each), reinterpret_cast<const void*>(sources[0]), now);
    }
    at += now;
  }
}

void Memory::fill(Address target, std::uint64_t pattern, std::size_t element, std::size_t bytes, int device) {
  std::shared_lock held(lock_);
  for (std::size_t at = 0; at < bytes;) {
    const Place to{target + at, false};
    const std::size_t now = within(to, bytes - at);
    for (Address each : places(to, now, device, Need::copy)) {
      if (element == 1) fill_aligned<std::uint8_t>(each, pattern, now);
      if (element == 2) fill_aligned<std::uint16_t>(each, pattern, now);
      if (element == 4) fill_aligned<std::uint32_t>(each, pattern, now);
    }
    at += now;
  }
}

std::uint64_t Memory::load(Address address, int bytes, int device) {
  std::shared_lock held(lock_);
  const std::vector<Address> all = places({address, false}, static_cast<std::size_t>(bytes), device, Need::direct);
  if (all.size() != 1) throw kIllegalAddress;
  if (bytes == 4) return __atomic_load_n(reinterpret_cast<std::uint32_t*>(all[0]), __ATOMIC_ACQUIRE);
  return __atomic_load_n(reinterpret_cast<std::uint64_t*>(all[0]), __ATOMIC_ACQUIRE);
}

void Memory::store(Address address, std::uint64_t value, int bytes, int device) {
  std::shared_lock held(lock_);
  for (Address each : places({address, false}, static_cast<std::size_t>(bytes), device, Need::direct)) {
    if (bytes == 4) {
      __atomic_store_n(reinterpret_cast<std::uint32_t*>(each), static_cast<std::uint32_t>(value), __ATOMIC_RELEASE);
    } else {
      __atomic_store_n(reinterpret_cast<std::uint64_t*>(each), value, __ATOMIC_RELEASE);
    }
  }
}

}  // namespace coppice::emulated_gpu

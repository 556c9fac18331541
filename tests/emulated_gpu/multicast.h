// Multicast objects: one write reaches the memory that every device bound.
//
// The table of what is bound lies in a memfd, so that all processes of an object see it; bound memory is mapped from
// the descriptors of whoever bound it. Kernels that sum through such an address (multimem) are empty here; copies and
// writes of a stream through it are carried out.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "emulated_gpu/memory.h"

namespace coppice::emulated_gpu {

class Multicast {
 public:
  // Of a new object, or of one whose descriptor came from elsewhere.
  static std::shared_ptr<Physical> create(const MulticastProperties& properties);
  static std::shared_ptr<Multicast> open(int descriptor);
  ~Multicast();

  int add_device(int device);
  // Bytes of a piece of memory from `offset` on, at `at` of the object.
  int bind(int device, std::size_t at, const Physical& memory, std::size_t offset, std::size_t bytes);
  int unbind(int device, std::size_t at, std::size_t bytes);
  std::size_t bytes() const;

  // Where these bytes are for every device that bound some; throws kIllegalAddress where one has not.
  std::vector<Address> places(std::size_t at, std::size_t bytes);

 private:
  struct Table;
  explicit Multicast(Table* table) : table_(table) {}
  Table* table_;
  std::mutex lock_;
  std::map<std::pair<std::size_t, std::uint64_t>, Address> mapped_;  // by the row of the table and its number
};

}  // namespace coppice::emulated_gpu

// What the binding files share: array types and the way to stop long work.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <chrono>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/stop.h"
#include "graph/digraph.h"

namespace nb = nanobind;

template <class T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<const T> view(const Column<T>& column) {
  return {column.data(), column.size()};
}

template <class T>
std::vector<T> copied(const Column<T>& column) {
  return {column.data(), column.data() + column.size()};
}

/// Throws std::invalid_argument unless a column has the length that another one sets.
inline void check_length(const char* name, std::size_t found, std::size_t expected) {
  if (found == expected) return;
  throw std::invalid_argument(std::string(name) + " must have " + std::to_string(expected) + " entries, found " +
                              std::to_string(found));
}

/// The terminals of a graph as bytes, after the lengths of its columns are checked.
inline std::vector<std::uint8_t> checked_terminals(coppice::Vertex num_nodes, const Column<coppice::Vertex>& src,
                                                   const Column<coppice::Vertex>& dst, const Column<coppice::Amount>& cap,
                                                   const Column<coppice::Amount>& per_node, const Column<bool>& terminal) {
  check_length("dst", dst.size(), src.size());
  check_length("cap", cap.size(), src.size());
  check_length("the column per node", per_node.size(), static_cast<std::size_t>(num_nodes));
  check_length("terminal", terminal.size(), static_cast<std::size_t>(num_nodes));
  return {terminal.data(), terminal.data() + terminal.size()};
}

/// A new numpy array that owns `values`.
template <class T>
nb::object to_numpy(std::vector<T> values) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(kept->data(), {kept->size()}, owner));
}

/// The fields of a record of settings (a Struct of Python), by name.
class Settings {
 public:
  explicit Settings(nb::handle record) : record_(record) {}
  template <class T>
  T get(const char* name) const {
    try {
      return nb::cast<T>(record_.attr(name));
    } catch (const nb::cast_error&) {
      throw std::invalid_argument(std::string("expected `") + name + "` in the range of the native code, found another value");
    }
  }
  template <class T>
  void fill(const char* name, T& into) const {
    into = get<T>(name);
  }

 private:
  nb::handle record_;
};

/// The columns of a record of Python, by name; views of them hold while this lives.
class ColumnRecord : public Settings {
 public:
  using Settings::Settings;
  template <class T>
  void fill(const char* name, std::span<const T>& into) {
    auto column = get<Column<T>>(name);
    into = view(column);
    kept_.emplace_back(column);
  }

 private:
  std::vector<nb::ndarray<>> kept_;
};

/// Raises the Python error `kind` of coppice.errors.
[[noreturn]] inline void raise_coppice(const char* kind, const std::string& message) {
  nb::object type = nb::module_::import_("coppice.errors").attr(kind);
  PyErr_SetString(type.ptr(), message.c_str());
  throw nb::python_error();
}

/// A stop flag that looks at Python's pending signals every 50 ms; construct it with the GIL held or not.
inline coppice::StopFlag signal_flag() {
  using clock = std::chrono::steady_clock;
  return [next = clock::now() + std::chrono::milliseconds(50)]() mutable {
    if (clock::now() < next) return false;
    next = clock::now() + std::chrono::milliseconds(50);
    nb::gil_scoped_acquire gil;
    return PyErr_CheckSignals() != 0;  // the Python error stays set and is raised by `stoppable`
  };
}

/// Runs `work(stop)` without the GIL; a signal during it surfaces as the Python exception that its handler raised.
template <class Work>
auto stoppable(Work&& work) {
  try {
    nb::gil_scoped_release release;
    return work(signal_flag());
  } catch (const coppice::Cancelled&) {
    throw nb::python_error();
  }
}

// What the binding files share: array types and the way to stop long work.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "feasibility.h"

namespace nb = nanobind;

template <class T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<const T> view(const Column<T>& column) {
  return {column.data(), column.size()};
}

/// A new numpy array that owns `values`.
template <class T>
nb::object to_numpy(std::vector<T> values) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(kept->data(), {kept->size()}, owner));
}

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

void init_feasibility(nb::module_& m);
void init_packing(nb::module_& m);
void init_symmetry(nb::module_& m);

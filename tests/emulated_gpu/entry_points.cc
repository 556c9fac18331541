// Functions of the driver by their name, as the runtime hands them out; all of them are exported as well.
#include <dlfcn.h>

#include <cstring>
#include <string>

#include "emulated_gpu/box.h"
#include "emulated_gpu/errors.h"

using namespace coppice::emulated_gpu;

namespace {

enum Found : int { kFound = 0, kNotFound = 1, kTooOld = 2 };

// The version of the driver that first had a function, where that is later than what this emulates at least (12.0).
int first_version(const std::string& name) {
  if (name.starts_with("cuMulticast")) return 12010;
  return 12000;
}

int find(const char* name, void** function, int* found) {
  *function = nullptr;
  int result = kNotFound;
  if (std::strncmp(name, "cu", 2) == 0 && std::strncmp(name, "cuda", 4) != 0) {
    Dl_info here{};
    dladdr(reinterpret_cast<void*>(&find), &here);
    void* self = dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (void* symbol = dlsym(self ? self : RTLD_DEFAULT, name)) {
      result = box().driver < first_version(name) ? kTooOld : kFound;
      if (result == kFound) *function = symbol;
    }
    if (self) dlclose(self);
  }
  if (found) *found = result;
  return found || result == kFound ? kSuccess : kSymbolNotFound;
}

}  // namespace

COPPICE_CUDA cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long, int* found) {
  return answer(find(name, function, found));
}

COPPICE_CUDA cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                              int* found) {
  return answer(find(name, function, found));
}

COPPICE_CUDA cuGetProcAddress(const char* name, void** function, int, unsigned long long, int* found) {
  int result = kNotFound;
  find(name, function, &result);
  if (found) *found = result;
  return result == kFound ? kSuccess : kSymbolNotFound;
}

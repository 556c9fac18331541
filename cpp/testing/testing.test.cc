#include "testing/testing.h"

#include <cstdio>
#include <cstring>

namespace coppice::testing {

std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

static int failures = 0;

void fail(const char* file, int line, const std::string& what) {
  std::printf("%s:%d: %s\n", file, line, what.c_str());
  ++failures;
}

}  // namespace coppice::testing

// Usage: cpp_tests [SUBSTRING]: runs the tests whose name contains it.
int main(int argc, char** argv) {
  using namespace coppice::testing;
  int passed = 0, failed = 0;
  for (const Case& test : cases()) {
    if (argc > 1 && !std::strstr(test.name.c_str(), argv[1])) continue;
    int before = failures;
    test.body();
    if (failures == before) {
      ++passed;
    } else {
      ++failed;
      std::printf("FAILED %s\n", test.name.c_str());
    }
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}

// A test harness of one header, so that the core's tests need nothing but the compiler.
//
//   TEST(name) { CHECK(x > 0); CHECK_EQ(a, b); }
//
// A failed check prints its place and values and fails the test; the runner is testing.test.cc.
#pragma once

#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace coppice::testing {

struct Case {
  std::string name;
  std::function<void()> body;
};

std::vector<Case>& cases();
void fail(const char* file, int line, const std::string& what);

struct Registration {
  Registration(const char* name, std::function<void()> body) { cases().push_back({name, std::move(body)}); }
};

template <class A, class B>
void check_eq(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) return;
  std::ostringstream out;
  out << text << ": " << a << " != " << b;
  fail(file, line, out.str());
}

}  // namespace coppice::testing

#define TEST(name)                                                                    \
  static void test_##name();                                                          \
  static const coppice::testing::Registration registration_##name(#name, test_##name); \
  static void test_##name()

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) coppice::testing::fail(__FILE__, __LINE__, #condition);   \
  } while (false)

#define CHECK_EQ(a, b) coppice::testing::check_eq((a), (b), #a " == " #b, __FILE__, __LINE__)

#define CHECK_THROWS(type, expression)                                                         \
  do {                                                                                         \
    bool caught = false;                                                                       \
    try {                                                                                      \
      (void)(expression);                                                                      \
    } catch (const type&) {                                                                    \
      caught = true;                                                                           \
    }                                                                                          \
    if (!caught) coppice::testing::fail(__FILE__, __LINE__, #expression " throws " #type);     \
  } while (false)

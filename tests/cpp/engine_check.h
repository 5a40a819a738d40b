// The little that the engine's test programs need: named tests, checks that print what failed, a main.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

namespace aspen::testing {

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> list;
  return list;
}

// May be called from any thread; the program ends at once, so that nothing can hide the failure.
[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: FAILED: %s\n", file, line, what.c_str());
  std::fflush(stderr);
  std::_Exit(1);
}

template <typename A, typename B>
void check_equal(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) return;
  std::ostringstream what;
  what << text << ": " << a << " is not " << b;
  fail(file, line, what.str());
}

template <typename Run>
void check_throws(const Run& run, const std::string& part, const char* file, int line) {
  try {
    run();
  } catch (const std::exception& error) {
    if (std::string(error.what()).find(part) != std::string::npos) return;
    fail(file, line, "the error is '" + std::string(error.what()) + "' and does not contain '" + part + "'");
  }
  fail(file, line, "no error where one with '" + part + "' is expected");
}

// With arguments, only the tests whose names contain one of them.
inline int run_tests(int argc, char** argv) {
  for (const Test& test : tests()) {
    bool chosen = argc < 2;
    for (int i = 1; i < argc; ++i) chosen |= std::strstr(test.name, argv[i]) != nullptr;
    if (!chosen) continue;
    std::printf("%s\n", test.name);
    std::fflush(stdout);
    test.run();
  }
  return 0;
}

}  // namespace aspen::testing

#define CHECK(condition) ((condition) ? void() : ::aspen::testing::fail(__FILE__, __LINE__, #condition))
#define CHECK_EQ(a, b) ::aspen::testing::check_equal((a), (b), #a " == " #b, __FILE__, __LINE__)
#define CHECK_THROWS(expression, part) \
  ::aspen::testing::check_throws([&] { static_cast<void>(expression); }, (part), __FILE__, __LINE__)
#define TEST(name)                                                                              \
  static void name();                                                                           \
  static const bool name##_listed = (::aspen::testing::tests().push_back({#name, name}), true); \
  static void name()

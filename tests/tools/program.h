// Runs the built program as a user would: arguments in; exit code, stdout, stderr and peak memory out.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace elasticmem::testing {

struct Outcome {
  int exit_code = -1;  // -1: ended by `signal`
  int signal = 0;
  bool timed_out = false;  // then it was killed
  uint64_t peak_rss_bytes = 0;
  std::string out, err;

  nlohmann::json Json() const;  // stdout parsed whole; null with a test failure if it isn't one JSON value
};

struct Surroundings {
  std::string stdin_text;
  std::optional<uint64_t> file_size_limit;  // RLIMIT_FSIZE, bytes
  bool obey_permissions = false;            // root, too, is bound by file modes
  std::string folder;                       // to run in
  std::string cgroup;                       // folder of a control group to run in
  std::chrono::seconds timeout{60};
};

// A running program. Killed if it is still there at the end.
class Program {
 public:
  explicit Program(const std::vector<std::string>& args, const Surroundings& surroundings = {});
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program();

  void Signal(int number) const;
  // Whether it runs by now and has the file at `path` open.
  bool HasOpen(const std::string& path) const;
  // From now on nobody reads what it prints.
  void CloseStdout();
  // Reads until stdout holds `bytes` bytes; false if the program ends or the time is up before that.
  bool WaitForStdout(size_t bytes);
  Outcome Wait();

 private:
  // Reads what the pipes hold, waiting for it up to `wait`; false once both are closed.
  bool Read(std::chrono::milliseconds wait);

  pid_t child_ = -1;
  int out_ = -1, err_ = -1;
  std::chrono::steady_clock::time_point deadline_;
  Outcome outcome_;
};

inline Outcome RunProgram(const std::vector<std::string>& args, const Surroundings& surroundings = {}) {
  return Program(args, surroundings).Wait();
}

// Whether this process may give up root's right to pass over file modes, so that obey_permissions works (true for
// other users: they have no such right).
bool CanObeyPermissions();

// It failed as the world fails: exit code 1 with one message that contains all of `parts`, nothing on stdout, no crash.
void ExpectRefused(const Outcome& outcome, std::initializer_list<std::string_view> parts);
void ExpectDone(const Outcome& outcome);
// Wrong usage: exit code 2, and stderr contains all of `parts`.
void ExpectMisused(const Outcome& outcome, std::initializer_list<std::string_view> parts);

// Names of what is in the folder, sorted.
std::vector<std::string> Listing(const std::string& folder);

inline std::string SourcePath(const std::string& name) { return std::string(EM_SOURCE_DIR) + "/" + name; }
std::string ReadFileBytes(const std::string& path);
void WriteFileBytes(const std::string& path, std::string_view bytes);

}  // namespace elasticmem::testing

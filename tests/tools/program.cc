#include "tests/tools/program.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/status.h"
#include "tests/gguf/scratch_folder.h"

namespace elasticmem::testing {
namespace {

using Clock = std::chrono::steady_clock;
using ::testing::HasSubstr;

// Stores that belong nowhere else go here, never into the user's own cache.
const std::string& CacheFolder() {
  static const ScratchFolder folder;
  static const std::string path = folder.path();
  return path;
}

// In the child, after fork: only calls that are safe there.
[[noreturn]] void Become(char* const* arguments, const Surroundings& surroundings) {
  if (surroundings.file_size_limit) {
    const rlimit limit{*surroundings.file_size_limit, *surroundings.file_size_limit};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(99);
  }
  if (surroundings.obey_permissions && geteuid() == 0) {
    if (prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE) != 0 || prctl(PR_CAPBSET_DROP, CAP_DAC_READ_SEARCH) != 0) _exit(99);
  }
  if (!surroundings.cgroup.empty()) {
    // The group's list of processes; 0 means this one.
    const int group = openat(AT_FDCWD, surroundings.cgroup.c_str(), O_DIRECTORY | O_PATH | O_CLOEXEC);
    const int processes = openat(group, "cgroup.procs", O_WRONLY | O_CLOEXEC);
    if (write(processes, "0", 1) != 1) _exit(99);
  }
  if (!surroundings.folder.empty() && chdir(surroundings.folder.c_str()) != 0) _exit(99);
  execv(arguments[0], arguments);
  _exit(98);
}

int StdinWith(const std::string& text) {
  const int descriptor = open(std::filesystem::temp_directory_path().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  EM_CHECK(descriptor >= 0);
  EM_CHECK(write(descriptor, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  EM_CHECK(lseek(descriptor, 0, SEEK_SET) == 0);
  return descriptor;
}

// False at the pipe's end.
bool Drain(int descriptor, std::string& text) {
  char bytes[65536];
  const ssize_t n = read(descriptor, bytes, sizeof(bytes));
  if (n > 0) text.append(bytes, static_cast<size_t>(n));
  return n > 0;
}

std::string Shown(const Outcome& outcome) {
  return fmt::format("exit code {}, signal {}{}\n--- stdout\n{}\n--- stderr\n{}", outcome.exit_code, outcome.signal,
                     outcome.timed_out ? ", timed out" : "", outcome.out.substr(0, 2000), outcome.err.substr(0, 4000));
}

void ExpectEnded(const Outcome& outcome, int exit_code) {
  EXPECT_FALSE(outcome.timed_out);
  EXPECT_EQ(outcome.signal, 0);
  EXPECT_EQ(outcome.exit_code, exit_code);
  for (const char* crash : {"Sanitizer", "runtime error:", "terminate called", "failed check"}) {
    EXPECT_EQ(outcome.err.find(crash), std::string::npos) << crash;
  }
}

}  // namespace

nlohmann::json Outcome::Json() const {
  nlohmann::json json = nlohmann::json::parse(out, nullptr, /*allow_exceptions=*/false);
  EXPECT_FALSE(json.is_discarded()) << out;
  return json.is_discarded() ? nlohmann::json() : json;
}

Program::Program(const std::vector<std::string>& args, const Surroundings& surroundings)
    : deadline_(Clock::now() + surroundings.timeout) {
  setenv("XDG_CACHE_HOME", CacheFolder().c_str(), 1);
  std::vector<std::string> all = {EM_PROGRAM};
  all.insert(all.end(), args.begin(), args.end());
  std::vector<char*> arguments;
  for (std::string& argument : all) arguments.push_back(argument.data());
  arguments.push_back(nullptr);

  int out[2], err[2];
  EM_CHECK(pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0);
  const int in = StdinWith(surroundings.stdin_text);
  child_ = fork();
  EM_CHECK(child_ >= 0);
  if (child_ == 0) {
    if (dup2(in, 0) != 0 || dup2(out[1], 1) != 1 || dup2(err[1], 2) != 2) _exit(99);
    Become(arguments.data(), surroundings);
  }
  close(in);
  close(out[1]);
  close(err[1]);
  out_ = out[0];
  err_ = err[0];
}

Program::~Program() {
  if (child_ < 0) return;
  kill(child_, SIGKILL);
  Wait();
}

void Program::Signal(int number) const { EM_CHECK(kill(child_, number) == 0); }

bool Program::HasOpen(const std::string& path) const {
  namespace fs = std::filesystem;
  const fs::path process = fmt::format("/proc/{}", child_);
  std::error_code error;
  if (fs::read_symlink(process / "exe", error) != fs::canonical(EM_PROGRAM, error)) return false;
  for (const auto& entry : fs::directory_iterator(process / "fd", error)) {
    if (fs::read_symlink(entry.path(), error) == path) return true;
  }
  return false;
}

void Program::CloseStdout() {
  if (out_ >= 0) close(out_);
  out_ = -1;
}

bool Program::Read(std::chrono::milliseconds wait) {
  pollfd pipes[2] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};  // poll passes over closed ones (-1)
  if (out_ < 0 && err_ < 0) return false;
  if (poll(pipes, 2, static_cast<int>(std::max<int64_t>(0, wait.count()))) <= 0) return true;
  for (const auto& [pipe, descriptor, text] :
       {std::tuple{&pipes[0], &out_, &outcome_.out}, std::tuple{&pipes[1], &err_, &outcome_.err}}) {
    if (pipe->revents == 0 || Drain(*descriptor, *text)) continue;
    close(*descriptor);
    *descriptor = -1;
  }
  return true;
}

bool Program::WaitForStdout(size_t bytes) {
  while (outcome_.out.size() < bytes && out_ >= 0 && Clock::now() < deadline_) Read(std::chrono::milliseconds(50));
  return outcome_.out.size() >= bytes;
}

Outcome Program::Wait() {
  while (!outcome_.timed_out && Read(std::chrono::milliseconds(50))) {
    if (Clock::now() < deadline_) continue;
    outcome_.timed_out = true;
    kill(child_, SIGKILL);
  }
  for (const int descriptor : {out_, err_}) {
    if (descriptor >= 0) close(descriptor);
  }
  out_ = err_ = -1;
  int status = 0;
  rusage usage{};
  EM_CHECK(wait4(child_, &status, 0, &usage) == child_);
  child_ = -1;
  if (WIFEXITED(status)) outcome_.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) outcome_.signal = WTERMSIG(status);
  outcome_.peak_rss_bytes = static_cast<uint64_t>(usage.ru_maxrss) << 10;
  return outcome_;
}

bool CanObeyPermissions() { return geteuid() != 0 || prctl(PR_CAPBSET_READ, CAP_SETPCAP) == 1; }

void ExpectRefused(const Outcome& outcome, std::initializer_list<std::string_view> parts) {
  SCOPED_TRACE(Shown(outcome));
  ExpectEnded(outcome, 1);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("elasticmem: "));
  for (const std::string_view part : parts) EXPECT_THAT(outcome.err, HasSubstr(std::string(part)));
}

void ExpectDone(const Outcome& outcome) {
  SCOPED_TRACE(Shown(outcome));
  ExpectEnded(outcome, 0);
}

void ExpectMisused(const Outcome& outcome, std::initializer_list<std::string_view> parts) {
  SCOPED_TRACE(Shown(outcome));
  ExpectEnded(outcome, 2);
  EXPECT_EQ(outcome.out, "");
  for (const std::string_view part : parts) EXPECT_THAT(outcome.err, HasSubstr(std::string(part)));
}

std::vector<std::string> Listing(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

std::string ReadFileBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteFileBytes(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  EM_CHECK(file.flush().good());
}

}  // namespace elasticmem::testing

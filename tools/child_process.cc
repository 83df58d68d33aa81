#include "tools/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

namespace elasticmem {
namespace {

using Clock = std::chrono::steady_clock;

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { Close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

struct Pipe {
  Pipe() {
    int ends[2];
    EM_CHECK(pipe2(ends, O_CLOEXEC) == 0);
    read_end = ends[0];
    write_end = ends[1];
  }
  int read_end, write_end;
};

// In the child, after fork: only calls that are safe there. `failed` tells the parent why it did not start.
[[noreturn]] void Become(char* const* argv, const char* processes, int in, int out, int err, int failed) {
  setpgid(0, 0);  // with children of its own, so that all can be killed
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGPIPE, SIG_DFL);
  const int group = processes ? open(processes, O_WRONLY | O_CLOEXEC) : -1;
  const bool joined = !processes || (group >= 0 && write(group, "0", 1) == 1);  // 0: this process
  if (joined && dup2(in, 0) == 0 && dup2(out, 1) == 1 && dup2(err, 2) == 2) execv(argv[0], argv);
  const int error = errno;
  (void)!write(failed, &error, sizeof(error));
  _exit(127);
}

// Appends what is there, and keeps the first or the last kMaxOutput bytes; false at the end of the pipe.
bool Drain(int fd, bool keep_last, std::string& text) {
  char bytes[16384];
  const ssize_t n = read(fd, bytes, sizeof(bytes));
  if (n <= 0) return n < 0 && errno == EINTR;
  text.append(bytes, static_cast<size_t>(n));
  if (text.size() > kMaxOutput) keep_last ? text.erase(0, text.size() - kMaxOutput) : text.erase(kMaxOutput);
  return true;
}

}  // namespace

StatusOr<ChildResult> RunChild(const ChildSpec& spec) {
  std::vector<std::string> arguments = spec.argv;
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const std::string processes = spec.group.empty() ? "" : spec.group + "/cgroup.procs";

  const Pipe out, err, failed;
  Descriptor out_read(out.read_end), out_write(out.write_end), err_read(err.read_end), err_write(err.write_end);
  Descriptor failed_read(failed.read_end), failed_write(failed.write_end);
  const Descriptor in(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Clock::time_point start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const pid_t child = fork();
  if (child < 0) return SystemError(errno, "cannot start " + spec.argv[0]);
  if (child == 0) {
    Become(argv.data(), processes.empty() ? nullptr : processes.c_str(), in.fd(), out_write.fd(), err_write.fd(),
           failed_write.fd());
  }
  out_write.Close();
  err_write.Close();
  failed_write.Close();

  ChildResult result;
  int start_error = 0;
  const bool started = read(failed_read.fd(), &start_error, sizeof(start_error)) == 0;
  bool cancelled = false;
  const auto kill_if_due = [&] {
    cancelled = spec.cancelled && spec.cancelled->load();
    result.timed_out = Clock::now() - start > spec.timeout;
    if (cancelled || result.timed_out) kill(-child, SIGKILL);
    return cancelled || result.timed_out;
  };
  pollfd pipes[2] = {{out_read.fd(), POLLIN, 0}, {err_read.fd(), POLLIN, 0}};  // poll passes over -1
  while ((pipes[0].fd >= 0 || pipes[1].fd >= 0) && !kill_if_due()) {
    if (poll(pipes, 2, 50) <= 0) continue;
    if (pipes[0].fd >= 0 && pipes[0].revents != 0) {
      if (!Drain(pipes[0].fd, /*keep_last=*/false, result.out)) pipes[0].fd = -1;
      if (!result.first_output_seconds && !result.out.empty()) result.first_output_seconds = elapsed();
    }
    if (pipes[1].fd >= 0 && pipes[1].revents != 0 && !Drain(pipes[1].fd, /*keep_last=*/true, result.err)) {
      pipes[1].fd = -1;
    }
  }
  int status = 0;
  rusage usage{};
  while (wait4(child, &status, WNOHANG, &usage) != child) {
    if (!cancelled && !result.timed_out) kill_if_due();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  result.seconds = elapsed();
  if (cancelled) return Error(StatusCode::kCancelled, "interrupted");
  if (!started) return SystemError(start_error, "cannot start " + spec.argv[0]);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  result.peak_resident_bytes = static_cast<uint64_t>(usage.ru_maxrss) << 10;
  result.read_bytes = static_cast<uint64_t>(usage.ru_inblock) * 512;
  return result;
}

}  // namespace elasticmem

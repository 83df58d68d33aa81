// Runs part of a test in a process of its own, which may be limited, unprivileged or killed.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "base/status.h"

namespace elasticmem {

inline constexpr int kSkipped = 77;  // exit status of a child that was not permitted to do its part

// Forks; the child exits with what `body` returns.
inline pid_t StartChild(const std::function<int()>& body) {
  const pid_t child = fork();
  EM_CHECK(child >= 0);
  if (child == 0) _exit(body());
  return child;
}

// The exit status, or minus the signal that ended the child.
inline int WaitForChild(pid_t child) {
  int status = 0;
  EM_CHECK(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

inline int RunInChild(const std::function<int()>& body) { return WaitForChild(StartChild(body)); }

}  // namespace elasticmem

// How errors travel: absl::Status for what the world did, EM_CHECK for what we did.
// A Status says what was tried, on what, and the value seen; messages are built with fmt.
#pragma once

#include <string_view>
#include <utility>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <fmt/core.h>

namespace elasticmem {

using absl::Status;
using absl::StatusCode;
using absl::StatusOr;

// A Status with `code` and a message formatted from `format` and `args`.
template <class... Args>
Status Error(StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Status(code, fmt::vformat(format, fmt::make_format_args(args...)));
}

// The input (a file, an option, a prompt) is wrong.
template <class... Args>
Status InvalidInput(fmt::format_string<Args...> format, Args&&... args) {
  return Status(StatusCode::kInvalidArgument, fmt::vformat(format, fmt::make_format_args(args...)));
}

// A stored file is damaged.
template <class... Args>
Status Corrupt(fmt::format_string<Args...> format, Args&&... args) {
  return Status(StatusCode::kDataLoss, fmt::vformat(format, fmt::make_format_args(args...)));
}

// Memory, disk or another budget is too small.
template <class... Args>
Status Exhausted(fmt::format_string<Args...> format, Args&&... args) {
  return Status(StatusCode::kResourceExhausted, fmt::vformat(format, fmt::make_format_args(args...)));
}

// Something that we do not (yet) read or run; names the construct.
template <class... Args>
Status Unsupported(fmt::format_string<Args...> format, Args&&... args) {
  return Status(StatusCode::kUnimplemented, fmt::vformat(format, fmt::make_format_args(args...)));
}

// The operating system refused `what` with `error_number`.
Status SystemError(int error_number, std::string_view what);

// `status` with "context: " in front of its message; OK stays OK.
Status WithContext(const Status& status, std::string_view context);

// The message of `status` as a std::string_view (absl's view is a type of its own here).
inline std::string_view Message(const Status& status) {
  return {status.message().data(), status.message().size()};
}

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);

}  // namespace elasticmem

#define EM_CONCAT_INNER(a, b) a##b
#define EM_CONCAT(a, b) EM_CONCAT_INNER(a, b)

#define EM_RETURN_IF_ERROR(expr)                     \
  do {                                               \
    ::absl::Status em_status = (expr);               \
    if (!em_status.ok()) [[unlikely]] return em_status; \
  } while (0)

#define EM_ASSIGN_OR_RETURN(lhs, expr) EM_ASSIGN_OR_RETURN_INNER(EM_CONCAT(em_or_, __LINE__), lhs, expr)
#define EM_ASSIGN_OR_RETURN_INNER(tmp, lhs, expr)           \
  auto tmp = (expr);                                        \
  if (!tmp.ok()) [[unlikely]] return std::move(tmp).status(); \
  lhs = std::move(tmp).value()

// Our own invariants. Always on: a broken one must never turn into garbage text.
#define EM_CHECK(condition)                                              \
  do {                                                                   \
    if (!(condition)) [[unlikely]]                                       \
      ::elasticmem::CheckFailed(__FILE__, __LINE__, #condition);         \
  } while (0)

// On only in debug builds: for checks on hot paths.
#ifdef EM_DEBUG_CHECKS
#define EM_DCHECK(condition) EM_CHECK(condition)
#else
#define EM_DCHECK(condition) ((void)0)
#endif

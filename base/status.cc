#include "base/status.h"

#include <cstdio>
#include <cstdlib>
#include <system_error>

namespace elasticmem {

Status SystemError(int error_number, std::string_view what) {
  const StatusCode code = error_number == ENOENT                            ? StatusCode::kNotFound
                          : error_number == EACCES || error_number == EPERM ? StatusCode::kPermissionDenied
                          : error_number == ENOSPC                          ? StatusCode::kResourceExhausted
                                                                            : StatusCode::kUnavailable;
  return Error(code, "{}: {}", what, std::generic_category().message(error_number));
}

Status WithContext(const Status& status, std::string_view context) {
  if (status.ok()) return status;
  return Error(status.code(), "{}: {}", context, Message(status));
}

void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "elasticmem: %s:%d: this should always hold: %s\n", file, line, condition);
  std::abort();
}

}  // namespace elasticmem

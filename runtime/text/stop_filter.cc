#include "runtime/text/stop_filter.h"

#include <algorithm>

namespace elasticmem {

StopFilter::StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

std::string StopFilter::Add(std::string_view text) {
  if (stopped_) return "";
  pending_ += text;
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) end = std::min(end, pending_.find(stop));
  if (end != std::string::npos) {
    stopped_ = true;
    pending_.resize(end);
    return std::exchange(pending_, "");
  }
  size_t keep = 0;  // the longest end that begins a stop text
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, pending_.size()); n > keep; --n) {
      if (pending_.compare(pending_.size() - n, n, stop, 0, n) == 0) keep = n;
    }
  }
  std::string out = pending_.substr(0, pending_.size() - keep);
  pending_.erase(0, out.size());
  return out;
}

}  // namespace elasticmem

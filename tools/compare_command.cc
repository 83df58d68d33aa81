// `elasticmem compare`: the same work on this engine and on others that the user has built.
#include <cstdio>

#include "tools/compare_report.h"
#include "tools/session.h"

namespace elasticmem {

Status CompareCommand(const Settings& settings) {
  EM_ASSIGN_OR_RETURN(CompareConfig config, ReadCompareConfig(settings.config));
  if (!settings.output.empty()) config.output = settings.output;
  // Hours of measuring are not lost to what ends the last of it.
  const auto write = [&](const Comparison& comparison) -> Status {
    EM_RETURN_IF_ERROR(WriteTextFile(config.output + ".json", CompareJson(comparison) + "\n"));
    EM_RETURN_IF_ERROR(WriteTextFile(config.output + ".md", CompareMarkdown(comparison)));
    return WriteTextFile(config.output + ".svg", RenderSvg(ComparePlot(comparison)));
  };
  ProgressBar bar;
  const auto progress = [&](const std::string& what, size_t done, size_t total) {
    if (total > 0) bar.Update(fmt::format("comparing ({})", what), done, total, "runs");
  };
  EM_ASSIGN_OR_RETURN(const Comparison comparison, RunComparison(config, progress, write));
  bar.Clear();
  std::printf("%s", settings.json ? (CompareJson(comparison) + "\n").c_str() : CompareMarkdown(comparison).c_str());
  std::fprintf(stderr, "written: %s.json, %s.md, %s.svg\n", config.output.c_str(), config.output.c_str(),
               config.output.c_str());
  return absl::OkStatus();
}

}  // namespace elasticmem

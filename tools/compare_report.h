// A comparison for machines (JSON), for people (Markdown) and to look at (SVG).
#pragma once

#include <string>

#include "tools/compare_run.h"
#include "tools/svg_plot.h"

namespace elasticmem {

std::string CompareJson(const Comparison& comparison);
// A table of all cells, what it was measured on, and how each engine was called.
std::string CompareMarkdown(const Comparison& comparison);
// Decode speed, time to the first token and bytes read, against the memory limit.
Plot ComparePlot(const Comparison& comparison);

}  // namespace elasticmem

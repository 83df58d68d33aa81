// Draws stacked areas and lines over a common axis as one SVG picture. Plain SVG 1.1: browsers, editors and converters
// all show it alike.
#pragma once

#include <string>
#include <vector>

namespace elasticmem {

// One area of a stack, from the bottom up.
struct PlotBand {
  std::string label, colour;
  std::vector<double> y;  // at the panel's band_x
};

struct PlotLine {
  std::string label, colour;
  std::string detail;  // a second line of the legend, in grey
  std::vector<double> x, y;
  double width = 1.8;
  bool dashed = false;
  bool marks = false;  // a dot at each point
};

// A stretch of the x axis with a name; every other one is tinted.
struct PlotSpan {
  double begin = 0, end = 0;
  std::string label;
};

// A place on the x axis with a name of its own.
struct PlotTick {
  double x = 0;
  std::string label;
};

struct PlotPanel {
  std::string title, x_label, y_label;
  double height = 220;  // of the drawing itself, in pixels
  bool log_y = false;   // from one power of ten to another; values that are not positive are left out
  std::vector<PlotTick> x_ticks;  // instead of round numbers, half a unit of room at either end
  std::string spans_label;
  std::vector<PlotSpan> spans;
  std::vector<double> band_x;
  std::vector<PlotBand> bands;
  std::vector<PlotLine> lines;
};

struct Plot {
  std::string title, subtitle;
  std::vector<PlotPanel> panels;  // from the top down
};

// Axes begin at 0 and end at a round number (y) or where the data does (x), unless the panel says otherwise. Values that are not finite are left out.
// Areas have the class "area", lines the class "line".
std::string RenderSvg(const Plot& plot);

}  // namespace elasticmem

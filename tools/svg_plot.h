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
};

// A stretch of the x axis with a name; every other one is tinted.
struct PlotSpan {
  double begin = 0, end = 0;
  std::string label;
};

struct PlotPanel {
  std::string title, x_label, y_label;
  double height = 220;  // of the drawing itself, in pixels
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

// Axes begin at 0 and end at a round number (y) or where the data does (x). Values that are not finite are left out.
// Areas have the class "area", lines the class "line".
std::string RenderSvg(const Plot& plot);

}  // namespace elasticmem

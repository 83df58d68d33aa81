#include "tools/svg_plot.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace elasticmem {
namespace {

// Pixels.
constexpr double kWidth = 1040, kLeft = 76, kPlotWidth = 730, kLegend = kLeft + kPlotWidth + 24;
constexpr double kSpanStrip = 18;           // above a drawing, for the names of spans
constexpr double kHeadHeight = 78;          // title and subtitle
constexpr double kAbove = 34, kBelow = 62;  // of a drawing: its title, its axis
constexpr const char* kInk = "#24292f";
constexpr const char* kPale = "#6a737d";

std::string Escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        // Control characters are not XML.
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string Text(double x, double y, const std::string& text, double size, const char* colour,
                 const char* anchor = "start", const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{:g}\" fill=\"{}\" text-anchor=\"{}\"{}>{}</text>\n",
                     x, y, size, colour, anchor, more, Escape(text));
}

// 1, 2, 2.5 or 5 times a power of ten, so that `length` has about `count` steps.
double RoundStep(double length, double count) {
  const double raw = length / count;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (factor * power >= raw * 0.999) return factor * power;
  }
  return 10 * power;
}

double Largest(const std::vector<double>& values, double least) {
  for (const double value : values) {
    if (std::isfinite(value)) least = std::max(least, value);
  }
  return least;
}

// Data to pixels of one panel's drawing.
class Axes {
 public:
  Axes(const PlotPanel& panel, double top) : top_(top), height_(panel.height) {
    x_max_ = Largest(panel.band_x, 0);
    for (const PlotLine& line : panel.lines) {
      x_max_ = Largest(line.x, x_max_);
      y_max_ = Largest(line.y, y_max_);
    }
    std::vector<double> stack(panel.band_x.size(), 0);
    for (const PlotBand& band : panel.bands) {
      for (size_t i = 0; i < std::min(stack.size(), band.y.size()); ++i) stack[i] += band.y[i];
    }
    y_max_ = Largest(stack, y_max_);
    for (const PlotSpan& span : panel.spans) x_max_ = Largest({span.end}, x_max_);
    if (x_max_ <= 0) x_max_ = 1;
    if (y_max_ <= 0) y_max_ = 1;
    x_step_ = RoundStep(x_max_, 8);
    y_step_ = RoundStep(y_max_, panel.height / 45);
    // A stack is a whole that needs no air above it.
    y_max_ = panel.bands.empty() ? std::ceil(y_max_ / y_step_ * 1.02) * y_step_ : y_max_;
  }

  double X(double x) const { return kLeft + std::clamp(x / x_max_, 0.0, 1.0) * kPlotWidth; }
  double Y(double y) const { return top_ + height_ - std::clamp(y / y_max_, 0.0, 1.0) * height_; }
  double top() const { return top_; }
  double bottom() const { return top_ + height_; }

  std::string Spans(const PlotPanel& panel) const {
    std::string out;
    for (size_t i = 0; i < panel.spans.size(); ++i) {
      const PlotSpan& span = panel.spans[i];
      const double begin = X(span.begin), width = X(span.end) - begin;
      out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", begin,
                         top_ - kSpanStrip, width, kSpanStrip, i % 2 ? "#e4e9ef" : "#f0f3f6");
      if (panel.bands.empty() && i % 2) {
        out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"#f6f8fa\"/>\n",
                           begin, top_, width, height_);
      }
      if (width >= 8.0 * static_cast<double>(span.label.size())) {
        out += Text(begin + width / 2, top_ - 5, span.label, 11, kInk, "middle");
      }
    }
    if (!panel.spans.empty()) out += Text(kLegend, top_ - 5, panel.spans_label, 11, kPale);
    return out;
  }

  std::string Grid() const {
    std::string out;
    for (double y = y_step_; y <= y_max_ * 1.0001; y += y_step_) {
      out += fmt::format(
          "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#24292f\" "
          "stroke-opacity=\"0.12\"/>\n",
          kLeft, Y(y), kLeft + kPlotWidth, Y(y));
    }
    return out;
  }

  // Boundaries of spans, over areas too.
  std::string Boundaries(const PlotPanel& panel) const {
    std::string out;
    for (size_t i = 1; i < panel.spans.size(); ++i) {
      const double x = X(panel.spans[i].begin);
      out += fmt::format(
          "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#24292f\" "
          "stroke-opacity=\"0.35\" stroke-dasharray=\"2 3\"/>\n",
          x, top_ - kSpanStrip, x, bottom());
    }
    return out;
  }

  std::string Ticks(const PlotPanel& panel) const {
    std::string out = fmt::format("<path d=\"M{:.1f} {:.1f}V{:.1f}H{:.1f}\" fill=\"none\" stroke=\"{}\"/>\n", kLeft,
                                  top_, bottom(), kLeft + kPlotWidth, kPale);
    for (double y = 0; y <= y_max_ * 1.0001; y += y_step_) {
      out += Text(kLeft - 8, Y(y) + 4, fmt::format("{:g}", y), 11, kPale, "end");
    }
    for (double x = 0; x <= x_max_ * 1.0001; x += x_step_) {
      out += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", X(x),
                         bottom(), X(x), bottom() + 4, kPale);
      out += Text(X(x), bottom() + 17, fmt::format("{:g}", x), 11, kPale, "middle");
    }
    out += Text(kLeft + kPlotWidth / 2, bottom() + 36, panel.x_label, 12, kInk, "middle");
    const double middle = top_ + height_ / 2;
    out += Text(20, middle, panel.y_label, 12, kInk, "middle",
                fmt::format(" transform=\"rotate(-90 20 {:.1f})\"", middle).c_str());
    return out;
  }

 private:
  double top_, height_;
  double x_max_ = 0, y_max_ = 0, x_step_ = 1, y_step_ = 1;
};

std::string Areas(const PlotPanel& panel, const Axes& axes) {
  std::string out;
  std::vector<double> base(panel.band_x.size(), 0);
  for (const PlotBand& band : panel.bands) {
    std::string upper, lower;
    for (size_t i = 0; i < std::min(base.size(), band.y.size()); ++i) {
      const double x = axes.X(panel.band_x[i]);
      lower = fmt::format("L{:.1f} {:.1f}", x, axes.Y(base[i])) + lower;
      if (std::isfinite(band.y[i])) base[i] += band.y[i];
      upper += fmt::format("{}{:.1f} {:.1f}", i == 0 ? "M" : "L", x, axes.Y(base[i]));
    }
    if (upper.empty()) continue;
    out += fmt::format("<path class=\"area\" d=\"{}{}Z\" fill=\"{}\"><title>{}</title></path>\n", upper, lower,
                       band.colour, Escape(band.label));
  }
  return out;
}

std::string Lines(const PlotPanel& panel, const Axes& axes) {
  std::string out;
  for (const PlotLine& line : panel.lines) {
    std::string path;
    for (size_t i = 0; i < std::min(line.x.size(), line.y.size()); ++i) {
      if (!std::isfinite(line.x[i]) || !std::isfinite(line.y[i])) continue;
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", axes.X(line.x[i]), axes.Y(line.y[i]));
    }
    if (path.empty()) continue;
    out += fmt::format(
        "<path class=\"line\" d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{:g}\" "
        "stroke-linejoin=\"round\" stroke-linecap=\"round\"{}><title>{}</title></path>\n",
        path, line.colour, line.width, line.dashed ? " stroke-dasharray=\"6 5\"" : "", Escape(line.label));
  }
  return out;
}

// Areas and lines are named from the top down, as they lie.
std::string Legend(const PlotPanel& panel, const Axes& axes) {
  std::string out;
  double y = axes.top() + 14;
  for (auto band = panel.bands.rbegin(); band != panel.bands.rend(); ++band, y += 22) {
    out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"14\" height=\"14\" rx=\"2\" fill=\"{}\"/>\n", kLegend,
                       y - 11, band->colour);
    out += Text(kLegend + 22, y, band->label, 12, kInk);
  }
  for (auto line = panel.lines.rbegin(); line != panel.lines.rend(); ++line) {
    out += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" stroke-width=\"{:g}\"{}/>\n",
        kLegend, y - 4, kLegend + 16, y - 4, line->colour, line->width + 0.6,
        line->dashed ? " stroke-dasharray=\"5 3\"" : "");
    out += Text(kLegend + 22, y, line->label, 12, kInk);
    if (!line->detail.empty()) out += Text(kLegend + 22, y += 15, line->detail, 11, kPale);
    y += 22;
  }
  return out;
}

}  // namespace

std::string RenderSvg(const Plot& plot) {
  double height = kHeadHeight;
  for (const PlotPanel& panel : plot.panels) height += kAbove + kSpanStrip + panel.height + kBelow;
  std::string out = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:g} {1:g}\" width=\"{0:g}\" height=\"{1:g}\" "
      "font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\">\n"
      "<title>{2}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
      kWidth, height, Escape(plot.title));
  out += Text(20, 36, plot.title, 20, kInk, "start", " font-weight=\"600\"");
  out += Text(20, 58, plot.subtitle, 12.5, kPale);
  double top = kHeadHeight;
  for (const PlotPanel& panel : plot.panels) {
    out += Text(20, top + 18, panel.title, 14, kInk, "start", " font-weight=\"600\"");
    const Axes axes(panel, top + kAbove + kSpanStrip);
    out += axes.Spans(panel) + Areas(panel, axes) + axes.Grid() + axes.Boundaries(panel) + Lines(panel, axes) +
           axes.Ticks(panel) + Legend(panel, axes);
    top = axes.bottom() + kBelow;
  }
  return out + "</svg>\n";
}

}  // namespace elasticmem

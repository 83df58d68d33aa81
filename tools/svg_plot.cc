#include "tools/svg_plot.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

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

// The powers of ten around the positive values of the lines.
std::pair<double, double> Decades(const std::vector<PlotLine>& lines) {
  double least = 0, most = 0;
  for (const PlotLine& line : lines) {
    for (const double y : line.y) {
      if (!std::isfinite(y) || y <= 0) continue;
      least = least == 0 ? y : std::min(least, y);
      most = std::max(most, y);
    }
  }
  if (most == 0) return {0, 1};
  const double first = std::floor(std::log10(least));
  return {first, std::max(first + 1, std::ceil(std::log10(most)))};
}

// Data to pixels of one panel's drawing.
class Axes {
 public:
  Axes(const PlotPanel& panel, double top) : top_(top), height_(panel.height), x_ticks_(panel.x_ticks) {
    log_y_ = panel.log_y;
    if (log_y_) std::tie(first_decade_, last_decade_) = Decades(panel.lines);
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
    if (x_ticks_.empty()) return;
    x_min_ = x_ticks_.front().x - 0.5;
    x_max_ = x_ticks_.back().x + 0.5;
  }

  double X(double x) const { return kLeft + std::clamp((x - x_min_) / (x_max_ - x_min_), 0.0, 1.0) * kPlotWidth; }
  double Y(double y) const {
    const double part = log_y_ ? (std::log10(y) - first_decade_) / (last_decade_ - first_decade_) : y / y_max_;
    return top_ + height_ - std::clamp(part, 0.0, 1.0) * height_;
  }
  bool Shows(double y) const { return std::isfinite(y) && (!log_y_ || y > 0); }
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
    const auto line = [&](double y, const char* opacity) {
      out += fmt::format(
          "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#24292f\" "
          "stroke-opacity=\"{}\"/>\n",
          kLeft, Y(y), kLeft + kPlotWidth, Y(y), opacity);
    };
    if (!log_y_) {
      for (double y = y_step_; y <= y_max_ * 1.0001; y += y_step_) line(y, "0.12");
      return out;
    }
    for (double decade = first_decade_; decade < last_decade_; ++decade) {
      for (int i = 2; i <= 10; ++i) line(i * std::pow(10, decade), i == 10 ? "0.2" : "0.06");
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
    const auto y_label = [&](double y) {
      out += Text(kLeft - 8, Y(y) + 4, fmt::format("{:g}", y), 11, kPale, "end");
    };
    for (double y = 0; !log_y_ && y <= y_max_ * 1.0001; y += y_step_) y_label(y);
    for (double decade = first_decade_; log_y_ && decade <= last_decade_; ++decade) y_label(std::pow(10, decade));
    const auto x_label = [&](double x, const std::string& label) {
      out += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", X(x),
                         bottom(), X(x), bottom() + 4, kPale);
      out += Text(X(x), bottom() + 17, label, 11, kPale, "middle");
    };
    for (const PlotTick& tick : x_ticks_) x_label(tick.x, tick.label);
    for (double x = 0; x_ticks_.empty() && x <= x_max_ * 1.0001; x += x_step_) x_label(x, fmt::format("{:g}", x));
    out += Text(kLeft + kPlotWidth / 2, bottom() + 36, panel.x_label, 12, kInk, "middle");
    const double middle = top_ + height_ / 2;
    out += Text(20, middle, panel.y_label, 12, kInk, "middle",
                fmt::format(" transform=\"rotate(-90 20 {:.1f})\"", middle).c_str());
    return out;
  }

 private:
  double top_, height_;
  double x_min_ = 0, x_max_ = 0, y_max_ = 0, x_step_ = 1, y_step_ = 1;
  bool log_y_ = false;
  double first_decade_ = 0, last_decade_ = 1;
  std::vector<PlotTick> x_ticks_;
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
    std::string path, marks;
    for (size_t i = 0; i < std::min(line.x.size(), line.y.size()); ++i) {
      if (!std::isfinite(line.x[i]) || !axes.Shows(line.y[i])) continue;
      if (line.marks) {
        marks += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"><title>{}: {:.4g}</title></circle>\n",
                             axes.X(line.x[i]), axes.Y(line.y[i]), line.colour, Escape(line.label), line.y[i]);
      }
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", axes.X(line.x[i]), axes.Y(line.y[i]));
    }
    if (path.empty()) continue;
    out += fmt::format(
        "<path class=\"line\" d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{:g}\" "
        "stroke-linejoin=\"round\" stroke-linecap=\"round\"{}><title>{}</title></path>\n",
        path, line.colour, line.width, line.dashed ? " stroke-dasharray=\"6 5\"" : "", Escape(line.label));
    out += marks;
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

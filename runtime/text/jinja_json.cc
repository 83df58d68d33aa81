// tojson: the text that Python's json.dumps gives.
#include <algorithm>
#include <cmath>

#include "runtime/text/jinja_builtins.h"
#include "runtime/text/jinja_text.h"

namespace elasticmem::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(Arena& arena, const JsonStyle& style) : arena_(arena), style_(style) {}

  std::string Run(const Value& value) {
    Append(value);
    return std::move(out_);
  }

 private:
  void Append(const Value& value) {
    arena_.Step();
    if (value.is_string()) {
      AppendString(value.str());
    } else if (const auto* sequence = value.As<Sequence>(); sequence != nullptr && sequence->indexable()) {
      AppendSequence(*sequence);
    } else if (const auto* dict = value.As<Dict>()) {
      AppendDict(*dict);
    } else {
      out_ += Scalar(value);
    }
    arena_.CheckStringBytes(out_.size());
  }

  std::string Scalar(const Value& value) const {
    if (value.is_none()) return "null";
    if (value.is_bool()) return value.boolean() ? "true" : "false";
    if (value.is_int()) return FormatInt(value.integer());
    if (value.is_float()) {
      const double d = value.number();
      if (std::isnan(d)) return "NaN";
      if (std::isinf(d)) return d < 0 ? "-Infinity" : "Infinity";
      return FormatFloat(d);
    }
    Fail("Object of type {} is not JSON serializable", TypeName(value));
  }

  void AppendSequence(const Sequence& sequence) {
    if (sequence.items.empty()) {
      out_ += "[]";
      return;
    }
    const Arena::Nested nested(arena_);
    out_ += '[';
    ++level_;
    for (size_t i = 0; i < sequence.items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      NewLine();
      Append(sequence.items[i]);
    }
    --level_;
    NewLine();
    out_ += ']';
  }

  void AppendDict(const Dict& dict) {
    if (dict.entries.empty()) {
      out_ += "{}";
      return;
    }
    const Arena::Nested nested(arena_);
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [&](const auto* a, const auto* b) { return Less(arena_, a->first, b->first); });
    }
    out_ += '{';
    ++level_;
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      NewLine();
      AppendKey(entries[i]->first);
      out_ += style_.key_separator;
      Append(entries[i]->second);
    }
    --level_;
    NewLine();
    out_ += '}';
  }

  void AppendKey(const Value& key) {
    if (key.is_string()) {
      AppendString(key.str());
    } else if (key.is_none() || key.is_number()) {
      AppendString(Scalar(key));
    } else {
      Fail("keys must be str, int, float, bool or None, not {}", TypeName(key));
    }
  }

  void NewLine() {
    if (!style_.indent) return;
    arena_.CheckStringBytes(out_.size() + style_.indent->size() * level_);
    out_ += '\n';
    for (size_t i = 0; i < level_; ++i) out_ += *style_.indent;
  }

  void AppendString(std::string_view text) {
    arena_.Step(text.size() / 64);
    out_ += '"';
    for (size_t pos = 0; pos < text.size();) {
      const size_t start = pos;
      const char32_t c = NextCodePoint(text, pos);
      switch (c) {
        case '"':
          out_ += "\\\"";
          continue;
        case '\\':
          out_ += "\\\\";
          continue;
        case '\n':
          out_ += "\\n";
          continue;
        case '\r':
          out_ += "\\r";
          continue;
        case '\t':
          out_ += "\\t";
          continue;
        case '\f':
          out_ += "\\f";
          continue;
        case '\b':
          out_ += "\\b";
          continue;
        default:
          break;
      }
      if (c < 0x20 || (style_.ascii && c > 0x7E && c < 0x10000)) {
        out_ += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
      } else if (style_.ascii && c >= 0x10000) {
        const unsigned offset = static_cast<unsigned>(c) - 0x10000;
        out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (offset >> 10), 0xDC00 + (offset & 0x3FF));
      } else {
        out_ += text.substr(start, pos - start);
      }
    }
    out_ += '"';
  }

  Arena& arena_;
  const JsonStyle& style_;
  std::string out_;
  size_t level_ = 0;
};

}  // namespace

std::string DumpJson(Arena& arena, const Value& value, const JsonStyle& style) {
  return JsonWriter(arena, style).Run(value);
}

}  // namespace elasticmem::jinja

#include "runtime/text/chat_template.h"

#include <exception>
#include <nlohmann/json.hpp>

#include "runtime/text/jinja_interpreter.h"
#include "runtime/text/jinja_parser.h"

namespace elasticmem {
namespace {

using nlohmann::ordered_json;

jinja::Value FromJson(jinja::Arena& arena, const ordered_json& json) {
  const jinja::Arena::Nested nested(arena);
  arena.Step();
  switch (json.type()) {
    case ordered_json::value_t::boolean:
      return json.get<bool>();
    case ordered_json::value_t::number_integer:
      return jinja::Int{json.get<int64_t>()};
    case ordered_json::value_t::number_unsigned:
      return jinja::Int{json.get<uint64_t>()};
    case ordered_json::value_t::number_float:
      return json.get<double>();
    case ordered_json::value_t::string:
      return arena.String(json.get_ref<const std::string&>());
    case ordered_json::value_t::array: {
      jinja::Values items;
      for (const ordered_json& item : json) items.push_back(FromJson(arena, item));
      return arena.List(std::move(items));
    }
    case ordered_json::value_t::object: {
      auto* dict = arena.New<jinja::Dict>();
      for (const auto& [key, value] : json.items()) dict->Set(arena, arena.String(key), FromJson(arena, value));
      return jinja::Value(dict);
    }
    default:
      return {};
  }
}

Status ToStatus(const jinja::TemplateError& error) {
  if (error.line == 0) return Error(error.code, "chat template: {}", error.message);
  return Error(error.code, "chat template, line {}: {}", error.line, error.message);
}

}  // namespace

struct ChatTemplate::State {
  std::unique_ptr<jinja::Program> program;
};

ChatTemplate::ChatTemplate(std::unique_ptr<State> state) : state_(std::move(state)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

StatusOr<ChatTemplate> ChatTemplate::Parse(std::string_view source) {
  try {
    return ChatTemplate(std::make_unique<State>(State{jinja::ParseTemplate(source)}));
  } catch (const jinja::TemplateError& error) {
    return ToStatus(error);
  }
}

StatusOr<std::string> ChatTemplate::Render(const ordered_json& context, int64_t now,
                                           const TemplateLimits& limits) const {
  if (!context.is_object())
    return InvalidInput("chat template: the variables are a JSON {}, not an object", context.type_name());
  try {
    jinja::Interpreter interpreter(*state_->program, limits, now);
    for (const auto& [name, value] : context.items()) {
      if (interpreter.Uses(name)) interpreter.SetGlobal(name, FromJson(interpreter.arena(), value));
    }
    return interpreter.Run();
  } catch (const jinja::TemplateError& error) {
    return ToStatus(error);
  }
}

}  // namespace elasticmem

// The chat-template interpreter against jinja2's results, its bounds and its errors.
#include "runtime/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

namespace elasticmem {
namespace {

using nlohmann::ordered_json;
using testing::AllOf;
using testing::HasSubstr;

StatusOr<std::string> Render(std::string_view source, const ordered_json& context, int64_t now = 0,
                             const TemplateLimits& limits = {}) {
  auto parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) return parsed.status();
  return parsed->Render(context, now, limits);
}

std::string RenderedOrError(std::string_view source, const ordered_json& context = ordered_json::object(),
                            const TemplateLimits& limits = {}) {
  const auto rendered = Render(source, context, 0, limits);
  return rendered.ok() ? *rendered : fmt::format("error: {}", Message(rendered.status()));
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

const ordered_json& Cases() {
  static const auto* cases = new ordered_json(
      ordered_json::parse(ReadFile(std::filesystem::path(EM_SOURCE_DIR) / "tests/golden/jinja_cases.json")));
  return *cases;
}

TEST(ChatTemplateTest, RendersAsJinja2OnEveryFeature) {
  for (const ordered_json& test_case : Cases()["cases"]) {
    const auto source = test_case["template"].get<std::string>();
    const auto rendered = Render(source, Cases()["context"], Cases()["now"].get<int64_t>());
    if (test_case.contains("expected")) {
      ASSERT_TRUE(rendered.ok()) << source << "\n" << Message(rendered.status());
      EXPECT_EQ(*rendered, test_case["expected"].get<std::string>()) << source;
    } else {
      const auto error = test_case["error"].get<std::string>();
      ASSERT_FALSE(rendered.ok()) << source << "\ngave: " << *rendered << "\njinja2: " << error;
      if (test_case["same"].get<bool>()) {
        EXPECT_THAT(std::string(Message(rendered.status())), HasSubstr(error)) << source;
      }
    }
  }
}

ordered_json Conversation() {
  return ordered_json::parse(R"({"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": true, "messages": [
    {"role": "system", "content": "Be brief. "}, {"role": "user", "content": " Hi "},
    {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Why?"}]})");
}

TEST(ChatTemplateTest, RendersChatMlStyle) {
  constexpr std::string_view kSource =
      "{%- if messages[0].role != 'system' %}\n"
      "  {{- '<|im_start|>system\\nDefault<|im_end|>\\n' }}\n"
      "{%- endif %}\n"
      "{%- for m in messages %}\n"
      "  {{- '<|im_start|>' ~ m.role ~ '\\n' ~ m.content | trim ~ '<|im_end|>\\n' }}\n"
      "{%- endfor %}\n"
      "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}\n";
  EXPECT_EQ(RenderedOrError(kSource, Conversation()),
            "<|im_start|>system\nBe "
            "brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n"
            "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplateTest, RendersLlama3Style) {
  constexpr std::string_view kSource =
      "{% macro head(role) %}<|start_header_id|>{{ role }}<|end_header_id|>\n\n{% endmacro %}"
      "{% for m in messages %}{% set text = head(m['role']) + m['content'] | trim + '<|eot_id|>' %}"
      "{% if loop.index0 == 0 %}{% set text = bos_token + text %}{% endif %}{{ text }}{% endfor %}"
      "{% if add_generation_prompt %}{{ head('assistant') }}{% endif %}";
  EXPECT_EQ(
      RenderedOrError(kSource, Conversation()),
      "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
      "Hi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>"
      "<|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
}

constexpr std::string_view kGemmaStyle =
    "{{ bos_token }}{% set lead = '' %}"
    "{% if messages[0]['role'] == 'system' %}{% set lead = messages[0]['content'] | trim + '\\n\\n' %}"
    "{% set messages = messages[1:] %}{% endif %}"
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + (lead if loop.first else '') }}"
    "{% if m.content is string %}{{ m.content | trim }}{% else %}"
    "{% for part in m.content if part.type == 'text' %}{{ part.text | trim }}{% endfor %}{% endif %}"
    "{{ '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}";

TEST(ChatTemplateTest, RendersGemmaStyle) {
  EXPECT_EQ(RenderedOrError(kGemmaStyle, Conversation()),
            "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello.<end_of_turn>\n"
            "<start_of_turn>user\nWhy?<end_of_turn>\n<start_of_turn>model\n");
}

TEST(ChatTemplateTest, GivesTheTemplatesOwnException) {
  ordered_json context = Conversation();
  context["messages"].erase(1);
  const auto rendered = Render(kGemmaStyle, context);
  ASSERT_FALSE(rendered.ok());
  EXPECT_THAT(std::string(Message(rendered.status())), HasSubstr("Roles must alternate"));
}

TEST(ChatTemplateTest, RendersMistralStyle) {
  constexpr std::string_view kSource =
      "{%- set ns = namespace(system='') -%}\n{{- bos_token -}}\n"
      "{%- for m in messages -%}\n"
      "  {%- if m.role == 'system' -%}{%- set ns.system = m.content ~ '\\n\\n' -%}\n"
      "  {%- elif m.role == 'user' -%}\n"
      "    {{- ' [INST] ' ~ (ns.system if loop.last else '') ~ m.content ~ ' [/INST]' -}}\n"
      "  {%- else -%}\n    {{- ' ' ~ m.content ~ eos_token -}}\n  {%- endif -%}\n{%- endfor -%}\n";
  EXPECT_EQ(RenderedOrError(kSource, Conversation()),
            "<s> [INST]  Hi  [/INST] Hello.</s> [INST] Be brief. \n\nWhy? [/INST]");
}

TEST(ChatTemplateTest, NamesWhatItCannotRunAndItsLine) {
  EXPECT_THAT(RenderedOrError("a\n\n{% include 'x' %}"), AllOf(HasSubstr("line 3"), HasSubstr("include")));
  EXPECT_THAT(RenderedOrError("a\n{{ x | shout }}"), AllOf(HasSubstr("line 2"), HasSubstr("shout")));
  EXPECT_THAT(RenderedOrError("a\n{{ x is loud }}"), AllOf(HasSubstr("line 2"), HasSubstr("loud")));
  EXPECT_THAT(RenderedOrError("\n{{ 'x'.encode() }}"), AllOf(HasSubstr("line 2"), HasSubstr("encode")));
  EXPECT_THAT(RenderedOrError("\n{{ fetch(1) }}"), AllOf(HasSubstr("line 2"), HasSubstr("'fetch' is undefined")));
  EXPECT_THAT(RenderedOrError("{{ [1].append(2) }}"), HasSubstr("'append' of 'list' object is unsafe"));
  EXPECT_THAT(RenderedOrError("{% if x %}\n\n"), AllOf(HasSubstr("line 2"), HasSubstr("endif")));
  EXPECT_THAT(RenderedOrError("{% for x in [1] %}\n{{ x.y.z }}{% endfor %}"),
              AllOf(HasSubstr("line 2"), HasSubstr("'y'")));
}

TEST(ChatTemplateTest, RefusesAContextThatIsNoObject) {
  EXPECT_THAT(RenderedOrError("x", ordered_json::array()), HasSubstr("array"));
}

TEST(ChatTemplateTest, KeepsBytesThatAreNoUtf8) {
  const ordered_json context = {{"x", "a\xff\xc3z\xa9"}};
  EXPECT_EQ(RenderedOrError("{{ x }}{{ x|length }}{{ x[1:3] }}{{ x|upper }}\xfe", context),
            "a\xff\xc3z\xa9"
            "5\xff\xc3"
            "A\xff\xc3Z\xa9\xfe");
}

TEST(ChatTemplateTest, BoundsNestingInTheSource) {
  for (const std::string open : {"(", "[", "{'a': ", "-", "not ", "x[", "f(", "x if y else "}) {
    std::string source = "{{ ";
    for (int i = 0; i < 100000; ++i) source += open;
    EXPECT_THAT(RenderedOrError(source), HasSubstr("too deeply")) << open;
  }
  std::string blocks;
  for (int i = 0; i < 100000; ++i) blocks += "{% if x %}";
  EXPECT_THAT(RenderedOrError(blocks), HasSubstr("too deeply"));
  std::string sum = "{{ 1";
  for (int i = 0; i < 100000; ++i) sum += " + 1";
  EXPECT_THAT(RenderedOrError(sum + " }}"), HasSubstr("levels"));
}

TEST(ChatTemplateTest, TakesLongFlatTemplates) {
  std::string elifs = "{% if x == 0 %}0";
  std::string concat = "{{ 1";
  for (int i = 1; i < 2000; ++i) {
    elifs += fmt::format("{{% elif x == {0} %}}{0}", i);
    concat += " ~ 1";
  }
  EXPECT_EQ(RenderedOrError(elifs + "{% endif %}", {{"x", 1999}}), "1999");
  EXPECT_EQ(RenderedOrError(concat + " }}"), std::string(2000, '1'));
}

TEST(ChatTemplateTest, BoundsDepthOfCallsAndValues) {
  EXPECT_THAT(RenderedOrError("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), HasSubstr("nested more than"));
  constexpr std::string_view kDeep =
      "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}";
  EXPECT_EQ(RenderedOrError(kDeep), "");
  EXPECT_THAT(RenderedOrError(std::string(kDeep) + "{{ ns.x }}"), HasSubstr("nested more than"));
  EXPECT_THAT(RenderedOrError(std::string(kDeep) + "{{ ns.x | tojson }}"), HasSubstr("nested more than"));
  EXPECT_THAT(RenderedOrError("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}"), HasSubstr("nested more than"));
}

TEST(ChatTemplateTest, BoundsStepsMemoryAndOutput) {
  TemplateLimits limits;
  limits.steps = 1'000'000;
  limits.string_bytes = 1 << 20;
  limits.memory_bytes = 16 << 20;
  const ordered_json none = ordered_json::object();
  for (const std::string_view source : {
           "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
           "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
           "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
           "{% set ns = namespace(x=1) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
           "{% set ns = namespace(x=1) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x == "
           "[ns.x] or ns.x|tojson }}",
           "{% for i in range(100000) %}{{ 'x' * 100 }}{% endfor %}",
           "{{ 'x' * 10**15 }}",
           "{{ 'x' * 1000000 * 2**46 }}",
           "{% macro m() %}{% for x in range(100000) %}{{ loop.index }}{{ m() }}{% endfor %}{% endmacro %}{{ m() }}",
           "{{ [1] * 10**15 }}",
           "{{ 'x'.center(10**15) }}",
           "{{ '%999999999999d' % 1 }}",
           "{{ '{:999999999999}'.format(1) }}",
           "{{ ('a' * 10000)|replace('a', 'b' * 10000) }}",
           "{{ ('\n' * 100000)|indent(100000, blank=true) }}",
           "{{ [1, 2]|batch(10**15, 0)|list }}",
           "{{ [1, 2]|slice(10**15)|list }}",
           "{% macro m(n) %}{{ 'x' * 500000 }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
       }) {
    const auto rendered = Render(source, none, 0, limits);
    ASSERT_FALSE(rendered.ok()) << source;
    EXPECT_EQ(rendered.status().code(), StatusCode::kResourceExhausted) << source << Message(rendered.status());
  }
  EXPECT_THAT(RenderedOrError("{{ range(10**12) }}"), HasSubstr("Range too big"));
}

TEST(ChatTemplateTest, LoopConditionSeesWhatTheBodySets) {
  EXPECT_EQ(RenderedOrError("{% set ns = namespace(n=0) %}{% for x in [1, 2, 3, 4] if ns.n < 2 %}{{ x }}"
                            "{% set ns.n = ns.n + 1 %}{% endfor %}"),
            "12");
}

TEST(ChatTemplateTest, RendersManyTimesWithoutSharedState) {
  auto parsed = ChatTemplate::Parse("{% set ns = namespace(n=0) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ x }}");
  ASSERT_TRUE(parsed.ok());
  const ChatTemplate moved = *std::move(parsed);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(*moved.Render({{"x", i}}), fmt::format("1{}", i));
}

TEST(ChatTemplateTest, SurvivesMutatedTemplates) {
  std::mt19937 random(20240703);
  TemplateLimits limits;
  limits.steps = 20'000;
  limits.string_bytes = 1 << 18;
  limits.memory_bytes = 4 << 20;
  std::vector<std::string> sources;
  for (const ordered_json& test_case : Cases()["cases"]) sources.push_back(test_case["template"]);
  const auto pick = [&](size_t count) { return count == 0 ? 0 : random() % count; };
  size_t rendered = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string source = sources[pick(sources.size())];
    for (size_t edits = 1 + pick(3); edits > 0; --edits) {
      const std::string& other = sources[pick(sources.size())];
      const size_t from = pick(other.size());
      const size_t at = pick(source.size());
      switch (random() % 3) {
        case 0:
          source.insert(at, other, from, pick(12));
          break;
        case 1:
          source.erase(at, pick(6));
          break;
        default:
          source.replace(at, 1, 1, static_cast<char>(random()));
          break;
      }
    }
    rendered += Render(source, Cases()["context"], 0, limits).ok();
  }
  EXPECT_GT(rendered, 100u);
}

// Templates of a folder with what jinja2 makes of them: see tests/golden/make_template_expectations.py.
TEST(ChatTemplateTest, RendersAFolderOfTemplatesAsJinja2) {
  const std::filesystem::path folder = EM_TEMPLATES_DIR;
  if (folder.empty()) GTEST_SKIP() << "no folder of templates: set the CMake variable ELASTICMEM_TEMPLATES_DIR";
  const ordered_json all = ordered_json::parse(ReadFile(folder / "expectations.json"));
  for (const auto& [file, results] : all["templates"].items()) {
    const std::string source = ReadFile(folder / file);
    for (const auto& [conversation, result] : results.items()) {
      const auto rendered = Render(source, all["conversations"][conversation], all["now"].get<int64_t>());
      if (!result.contains("expected")) {
        EXPECT_FALSE(rendered.ok()) << file << ", " << conversation << ": jinja2 says " << result["error"];
      } else if (rendered.ok()) {
        EXPECT_EQ(*rendered, result["expected"].get<std::string>()) << file << ", " << conversation;
      } else {
        ADD_FAILURE() << file << ", " << conversation << ": " << Message(rendered.status());
      }
    }
  }
}

}  // namespace
}  // namespace elasticmem

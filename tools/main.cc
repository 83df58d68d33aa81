// The program: reads the command line, runs one command, turns its Status into an exit code.
// 0 done; 1 the world failed; 2 wrong usage; 130 interrupted.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

#include <CLI/CLI.hpp>

#include "tools/session.h"
#include "tools/settings.h"

namespace elasticmem {
namespace {

struct CommandEntry {
  Command command;
  const char* name;
  const char* help;
  const char* example;
  Command parent = {};  // the command that this one is a word of, if any
};
constexpr CommandEntry kCommands[] = {
    {kRun, "run", "generate text from a prompt, or chat",
     "elasticmem run -m model.gguf -p \"Once upon a time\" --memory 2GiB\n"
     "  elasticmem run -m model.gguf --chat --memory 75%"},
    {kInspect, "inspect", "show what is in a model file and what budgets would hold of it",
     "elasticmem inspect model.gguf"},
    {kPack, "pack", "write the neuron store ahead of time", "elasticmem pack model.gguf"},
    {kPlan, "plan", "show where every byte of a budget would go",
     "elasticmem plan -m model.gguf --memory 2GiB --context 2048 --clients 4"},
    {kTokenize, "tokenize", "show the tokens of a text", "elasticmem tokenize -m model.gguf \"some text\""},
    {kLogits, "logits", "show the largest logits at each position, to compare with other engines",
     "elasticmem logits -m model.gguf --tokens 1,15043 --top 5"},
    {kPerplexity, "perplexity", "measure how well the model predicts a text",
     "elasticmem perplexity -m model.gguf -f text.txt --context 512"},
    {kBench, "bench", "measure speed", "elasticmem bench -m model.gguf --prompt 512 --generate 128 --repeat 3\n"
     "  elasticmem bench -m model.gguf --generate 32 --batch 1,4,16 --depth 0,1024 --mixed"},
    {kGrowth, "growth", "compare policies on one trace of clients that come, talk and go",
     "elasticmem bench growth configs/bench/growth.toml -m model.gguf --svg growth.svg", kBench},
    {kServe, "serve", "answer OpenAI-compatible requests over HTTP",
     "elasticmem serve -m model.gguf --memory 2GiB --clients 8\n"
     "  curl http://127.0.0.1:8080/v1/chat/completions -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'"},
    {kCompare, "compare", "do the same work on this engine and on others that you have built, in less and less memory",
     "elasticmem compare configs/compare/measure.toml\n"
     "The file names engines (elasticmem, llama.cpp, ik_llama.cpp, PowerInfer; nothing is downloaded), memory limits in % of the\n"
     "plain model file, and the prompt; see configs/compare/. Limits need a control group: run it as root, or in a delegated one.\n"
     "Every engine runs cold (its files dropped from the page cache) and then warm, in turns; what fails is a result too."},
};

void OnSignal(int) {
  // The second one means it.
  if (interrupted.exchange(true)) std::_Exit(130);
}

int ExitCode(const Status& status) {
  if (status.ok()) return 0;
  if (interrupted.load()) {
    std::fprintf(stderr, "interrupted\n");
    return 130;
  }
  std::fprintf(stderr, "elasticmem: %s\n", std::string(Message(status)).c_str());
  return 1;
}

void AddOptions(CLI::App& app, uint32_t command, Settings& settings, std::map<std::string_view, CLI::Option*>& added) {
  for (const Option& option : Options()) {
    if (!(option.commands & command)) continue;
    CLI::Option* made = std::visit(
        [&](auto member) -> CLI::Option* {
          auto& target = settings.*member;
          const std::string flags(option.flags), help(option.help);
          if constexpr (std::is_same_v<decltype(target), bool&>) {
            return app.add_flag(flags, target, help);
          } else {
            CLI::Option* made = app.add_option(flags, target, help)->option_text(std::string(option.value));
            if (option.value.find(',') != std::string_view::npos) made->delimiter(',')->allow_extra_args(false);
            return made;
          }
        },
        option.member);
    made->group(std::string(option.group));
    added[option.Key()] = made;
  }
}

Status Dispatch(uint32_t command, const Settings& settings, const std::string& text) {
  switch (command) {
    case kRun: return RunCommand(settings);
    case kInspect: return InspectCommand(settings);
    case kPack: return PackCommand(settings);
    case kPlan: return PlanCommand(settings);
    case kTokenize: return TokenizeCommand(settings, text);
    case kLogits: return LogitsCommand(settings);
    case kPerplexity: return PerplexityCommand(settings);
    case kBench: return BenchCommand(settings);
    case kGrowth: return GrowthCommand(settings);
    case kServe: return ServeCommand(settings);
    case kCompare: return CompareCommand(settings);
    default: EM_CHECK(false);
  }
}

int Main(int argc, char** argv) {
  CLI::App app("ElasticMem: serves a language model inside a memory budget smaller than itself.\n"
               "KV cache and FFN neurons share one pool; what does not fit is read from disk as it is needed.",
               "elasticmem");
  app.require_subcommand(1);
  app.set_version_flag("--version", "elasticmem 0.1.0");
  app.footer("`elasticmem COMMAND --help` explains a command.");
  Settings settings;
  std::string text;
  std::map<uint32_t, std::map<std::string_view, CLI::Option*>> added;
  std::map<uint32_t, CLI::App*> commands;
  for (const CommandEntry& entry : kCommands) {
    CLI::App& parent = entry.parent ? *commands[entry.parent] : app;
    CLI::App* sub = parent.add_subcommand(entry.name, entry.help);
    sub->footer(std::string("Example:\n  ") + entry.example);
    AddOptions(*sub, entry.command, settings, added[entry.command]);
    if (entry.command == kInspect || entry.command == kPack) {
      sub->add_option("MODEL", settings.model, "the GGUF file");
    }
    if (entry.command == kCompare) sub->add_option("CONFIG", settings.config, "the TOML file of the comparison")->required();
    if (entry.command == kGrowth) sub->add_option("CONFIG", settings.config, "the TOML file of the comparison")->required();
    if (entry.command == kTokenize) sub->add_option("TEXT", text, "the text")->required();
    commands[entry.command] = sub;
  }
  const auto is_command = [&](const CommandEntry& entry) {
    return entry.parent == Command{} && std::string_view(argv[1]) == entry.name;
  };
  if (argc > 1 && argv[1][0] != '-' && std::none_of(std::begin(kCommands), std::end(kCommands), is_command)) {
    std::fprintf(stderr, "elasticmem: there is no command \"%s\"; --help lists them\n", argv[1]);
    return 2;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : 2;
  }
  struct sigaction on_signal {};
  on_signal.sa_handler = OnSignal;  // without SA_RESTART: a read that waits for input ends too
  sigaction(SIGINT, &on_signal, nullptr);
  sigaction(SIGTERM, &on_signal, nullptr);
  // Their errors come back from the calls that met them.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  // The last first: `bench growth` is both, and means growth.
  for (auto entry = commands.rbegin(); entry != commands.rend(); ++entry) {
    const auto& [command, sub] = *entry;
    if (!sub->parsed()) continue;
    for (const auto& [other, options] : added) {
      if (other == command) continue;
      for (const auto& [key, option] : options) {
        if (option->count() == 0) continue;
        std::fprintf(stderr, "elasticmem: --%s stands before \"%s\", where it means nothing; pass options after it\n",
                     std::string(key).c_str(), sub->get_name().c_str());
        return 2;
      }
    }
    if (!settings.config.empty() && command != kCompare) {  // whose file is no list of options
      std::vector<std::string_view> given;
      for (const auto& [key, option] : added[command]) {
        if (option->count() > 0) given.push_back(key);
      }
      const Status applied = ApplyConfig(settings.config, command, given, settings);
      if (!applied.ok()) return ExitCode(applied);
    }
    if (settings.model.empty() && command != kCompare) {
      std::fprintf(stderr, "elasticmem: no model: pass its file (-m FILE, or \"model\" in the config); see --help\n");
      return 2;
    }
    for (const auto& [key, option] : added[command]) {
      // An unset shell variable, most likely; the default would be a surprise.
      if (option->count() > 0 && key.ends_with("memory") && option->results().front().empty()) {
        std::fprintf(stderr, "elasticmem: --%s is empty\n", std::string(key).c_str());
        return 2;
      }
    }
    Status status = Dispatch(command, settings, text);
    if (status.ok() && std::fflush(stdout) != 0) status = SystemError(errno, "cannot write to stdout");
    return ExitCode(status);
  }
  return 2;
}

}  // namespace
}  // namespace elasticmem

int main(int argc, char** argv) { return elasticmem::Main(argc, argv); }

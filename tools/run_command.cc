// `elasticmem run`: generates text from a prompt, or talks in turns.
#include <chrono>
#include <cstdio>
#include <iostream>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/stopwatch.h"
#include "runtime/engine/report.h"
#include "runtime/engine/sampler.h"
#include "runtime/text/chat_prompt.h"
#include "runtime/text/stop_filter.h"
#include "tools/session.h"

namespace elasticmem {
namespace {

using Clock = std::chrono::steady_clock;

// One conversation or one completion: keeps the sequence, the sampler and the measures.
class Runner {
 public:
  Runner(const Settings& settings, const Model& model, Engine& engine)
      : settings_(settings), model_(model), engine_(engine), sampler_(Sampling(settings)),
        sequence_(engine.NewSequence()) {
    Record();
  }
  ~Runner() { engine_.EndSequence(sequence_); }

  // Feeds the ids that are not yet in the sequence and generates an answer, which is printed unless --json.
  StatusOr<std::string> Answer(const std::vector<TokenId>& ids) {
    size_t shared = 0;
    while (shared < history_.size() && shared + 1 < ids.size() && history_[shared] == ids[shared]) ++shared;
    shared = std::min<size_t>(shared, engine_.tokens(sequence_));
    engine_.Truncate(sequence_, static_cast<uint32_t>(shared));
    history_ = ids;

    const Clock::time_point start = Clock::now();
    const std::span<const TokenId> fresh = std::span(ids).subspan(shared);
    EM_ASSIGN_OR_RETURN(std::span<const float> logits, engine_.Append(sequence_, fresh));
    prefill_.tokens += fresh.size();
    prefill_.seconds += SecondsSince(start);
    Record();
    return Generate(logits, start);
  }

  Report MakeReport() const {
    Report report = Report::FromEngine(engine_, ThreadCount(settings_));
    report.prefill = prefill_;
    report.decode = decode_;
    report.ttft_seconds = ttft_seconds_;
    report.token_ids = generated_;
    report.logits_hash = hash_.value();
    report.series = series_.points();
    return report;
  }

 private:
  void Record() {
    SeriesPoint point = SeriesPoint::Of(engine_, 0);
    point.seconds = SecondsSince(begin_);
    point.generated_tokens = generated_.size();
    point.prompt_tokens = prefill_.tokens;
    series_.Add(point);
  }

  StatusOr<std::string> Generate(std::span<const float> logits, Clock::time_point start) {
    StreamingDetokenizer detokenizer(model_.tokenizer(), /*special=*/false, /*begins_text=*/settings_.chat);
    StopFilter filter(settings_.stop);
    std::string answer;
    Status written;
    const auto show = [&](const std::string& text) {
      answer += text;
      if (settings_.json || text.empty()) return;
      std::fwrite(text.data(), 1, text.size(), stdout);
      if (std::fflush(stdout) != 0 && written.ok()) written = SystemError(errno, "cannot write to stdout");
    };
    Clock::time_point decode_start = Clock::now();
    for (uint32_t n = 0; n < settings_.generate && !interrupted.load(); ++n) {
      hash_.Add(logits);
      const TokenId id = sampler_.Sample(logits, history_);
      if (generated_.empty()) ttft_seconds_ = SecondsSince(start);
      if (n == 0) decode_start = Clock::now();
      if (!settings_.ignore_eos && model_.tokenizer().IsEndOfGeneration(id)) break;
      history_.push_back(id);
      generated_.push_back(id);
      show(filter.Add(detokenizer.Add(id)));
      EM_RETURN_IF_ERROR(written);
      if (filter.stopped() || n + 1 == settings_.generate) break;
      if (engine_.tokens(sequence_) >= engine_.context()) {
        std::fprintf(stderr, "\nthe context of %u tokens is full; --context sets another size\n", engine_.context());
        break;
      }
      EM_ASSIGN_OR_RETURN(logits, engine_.Append(sequence_, {&id, 1}));
      ++decode_.tokens;
      Record();
    }
    decode_.seconds += SecondsSince(decode_start);
    if (!filter.stopped()) show(filter.Add(detokenizer.Finish()));
    if (!filter.stopped()) show(filter.Finish());
    EM_RETURN_IF_ERROR(written);
    return answer;
  }

  const Settings& settings_;
  const Model& model_;
  Engine& engine_;
  Sampler sampler_;
  SequenceId sequence_;
  std::vector<TokenId> history_, generated_;
  Throughput prefill_, decode_;
  double ttft_seconds_ = 0;
  LogitsHash hash_;
  const Clock::time_point begin_ = Clock::now();
  TimeSeries series_;
};

Status Finish(const Settings& settings, Runner& runner, const std::string& text) {
  Report report = runner.MakeReport();
  report.text = text;
  if (settings.json) {
    std::printf("%s\n", report.ToJson().c_str());
  } else {
    std::printf("\n");
    std::fflush(stdout);
    std::fprintf(stderr, "\n%s", report.ToTable().c_str());
  }
  if (!settings.report.empty()) EM_RETURN_IF_ERROR(WriteTextFile(settings.report, report.ToJson() + "\n"));
  if (interrupted.load()) return Error(StatusCode::kCancelled, "interrupted");
  return absl::OkStatus();
}

// Talks in turns, a line of stdin each, until it ends.
StatusOr<std::string> Converse(const Settings& settings, Runner& runner, ChatPrompt& chat) {
  const bool terminal = isatty(STDIN_FILENO) == 1;
  std::string last;
  for (std::string line; !interrupted.load();) {
    if (terminal) std::fprintf(stderr, "> ");
    if (!std::getline(std::cin, line)) break;
    if (line.empty()) continue;
    chat.AddMessage("user", line);
    const StatusOr<std::vector<TokenId>> ids = chat.Encode();
    StatusOr<std::string> answer = ids.ok() ? runner.Answer(*ids) : StatusOr<std::string>(ids.status());
    if (!answer.ok() && answer.status().code() == StatusCode::kInvalidArgument) {
      // This message cannot be answered; others may.
      std::fprintf(stderr, "elasticmem: %s\n", std::string(Message(answer.status())).c_str());
      chat.RemoveLastMessage();
      continue;
    }
    EM_RETURN_IF_ERROR(answer.status());
    last = *std::move(answer);
    chat.AddMessage("assistant", last);
    if (!settings.json) std::printf("\n");
  }
  return last;
}

}  // namespace

Status RunCommand(const Settings& settings) {
  EM_RETURN_IF_ERROR(Sampling(settings).Check());
  if (!settings.prompt.empty() && !settings.file.empty()) return InvalidInput("pass -p or -f, not both");
  EM_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, OpenModel(settings));
  std::string prompt = settings.prompt;
  if (!settings.file.empty()) {
    EM_ASSIGN_OR_RETURN(prompt, ReadTextFile(settings.file));
  }

  std::optional<ChatPrompt> chat;
  std::vector<TokenId> ids;
  const uint32_t context = settings.context > 0 ? settings.context : model->spec().context;
  // What a conversation needs to begin; more is taken from the neurons as it grows.
  uint32_t kv_tokens = std::min<uint32_t>(context, 1024);
  if (settings.chat) {
    EM_ASSIGN_OR_RETURN(chat, ChatPrompt::Create(model->tokenizer(), model->chat_template()));
    if (!settings.system.empty()) chat->AddMessage("system", settings.system);
    if (!prompt.empty()) {
      chat->AddMessage("user", prompt);
      EM_ASSIGN_OR_RETURN(ids, chat->Encode());
    }
  } else {
    ids = model->tokenizer().Encode(prompt, {!settings.no_bos, settings.parse_special});
    if (ids.empty()) return InvalidInput("the prompt is empty; pass -p TEXT or -f FILE");
  }
  if (!ids.empty()) {
    if (ids.size() > context) {
      return InvalidInput("the prompt has {} tokens, but the context holds {}; shorten it or raise --context", ids.size(), context);
    }
    kv_tokens = static_cast<uint32_t>(std::min<uint64_t>(context, ids.size() + uint64_t{settings.generate}));
  }
  EM_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, OpenEngine(settings, *model, kv_tokens, 1));
  Runner runner(settings, *model, *engine);
  std::string text;
  if (settings.chat && prompt.empty()) {
    EM_ASSIGN_OR_RETURN(text, Converse(settings, runner, *chat));
  } else {
    // Stdout is for what is generated; a person sees both.
    if (!settings.json && !settings.chat) std::fprintf(stderr, "%s", prompt.c_str());
    EM_ASSIGN_OR_RETURN(text, runner.Answer(ids));
  }
  return Finish(settings, runner, text);
}

}  // namespace elasticmem

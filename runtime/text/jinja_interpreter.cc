// Statements, scopes and macro calls.
#include "runtime/text/jinja_interpreter.h"

#include <algorithm>
#include <utility>

namespace elasticmem::jinja {

void Frame::Set(Symbol symbol, Value value) {
  for (auto& [name, old] : variables) {
    if (name == symbol) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(symbol, std::move(value));
}

const Value* Frame::Find(Symbol symbol) const {
  for (const Frame* frame = this; frame != nullptr; frame = frame->parent.get()) {
    for (const auto& [name, value] : frame->variables) {
      if (name == symbol) return &value;
    }
  }
  return nullptr;
}

bool Loop::Fetch(Value* item) {
  while (position < source.size()) {
    const Value& candidate = source[position++];
    if (admits && !admits(candidate)) continue;
    *item = candidate;
    return true;
  }
  return false;
}

bool Loop::Peek(Value* item) {
  if (!ahead) {
    Value next;
    if (!Fetch(&next)) return false;
    ahead = std::move(next);
  }
  *item = *ahead;
  return true;
}

bool Loop::Next(Value* item) {
  if (ahead) {
    *item = *std::exchange(ahead, std::nullopt);
  } else if (!Fetch(item)) {
    return false;
  }
  ++index0;
  previous = std::exchange(current, *item);
  return true;
}

size_t Loop::Length() {
  if (length) return *length;
  Values rest;
  for (Value item; Fetch(&item);) rest.push_back(item);
  source = std::move(rest);
  position = 0;
  admits = nullptr;
  length = source.size() + static_cast<size_t>(index0 + 1) + (ahead ? 1 : 0);
  return *length;
}

bool Interpreter::Uses(std::string_view name) const { return program_.symbols.contains(std::string(name)); }

void Interpreter::SetGlobal(std::string_view name, Value value) {
  const auto it = program_.symbols.find(std::string(name));
  if (it != program_.symbols.end()) globals_[it->second] = std::move(value);
}

std::string Interpreter::Run() {
  try {
    std::string out;
    out_ = &out;
    Execute(program_.body, std::make_shared<Frame>(nullptr));
    return out;
  } catch (TemplateError& error) {
    if (error.line == 0) error.line = line_;
    throw;
  }
}

void Interpreter::Write(std::string_view text) {
  arena_.Step(text.size() / 64);
  arena_.CheckStringBytes(out_->size() + text.size());
  arena_.ChargeMemory(text.size());
  *out_ += text;
}

std::string Interpreter::Capture(const Body& body, const FramePtr& frame, Flow* flow) {
  std::string text;
  std::string* outer = std::exchange(out_, &text);
  const Flow end = Execute(body, frame);
  out_ = outer;
  arena_.ReleaseMemory(text.size());
  if (flow != nullptr) *flow = end;
  return text;
}

Interpreter::Flow Interpreter::Execute(const Body& body, const FramePtr& frame) {
  const Arena::Nested nested(arena_);
  for (const Stmt* stmt : body) {
    arena_.Step();
    line_ = stmt->line;
    const Flow flow = ExecuteOne(*stmt, frame);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::ExecuteOne(const Stmt& stmt, const FramePtr& frame) {
  switch (stmt.kind) {
    case StmtKind::kText:
      Write(stmt.text.str());
      break;
    case StmtKind::kPrint: {
      const Value value = Evaluate(*stmt.value, frame);
      if (value.is_string()) {
        Write(value.str());
      } else {
        Write(Str(arena_, value));
      }
      break;
    }
    case StmtKind::kIf:
      return ExecuteIf(stmt, frame);
    case StmtKind::kFor:
      return ExecuteFor(stmt, frame, Evaluate(*stmt.value, frame), 0);
    case StmtKind::kSet:
      Assign(*stmt.target, Evaluate(*stmt.value, frame), frame, frame);
      break;
    case StmtKind::kSetBlock:
      return ExecuteSetBlock(stmt, frame);
    case StmtKind::kMacro:
      frame->Set(stmt.target->symbol, Value(arena_.New<Macro>(stmt.macro, frame)));
      break;
    case StmtKind::kCallBlock:
      ExecuteCallBlock(stmt, frame);
      break;
    case StmtKind::kFilterBlock:
      return ExecuteFilterBlock(stmt, frame);
    case StmtKind::kWith:
      return ExecuteWith(stmt, frame);
    case StmtKind::kGeneration:
      Execute(stmt.body, std::make_shared<Frame>(frame));
      break;
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::ExecuteIf(const Stmt& stmt, const FramePtr& frame) {
  for (const auto& [test, body] : stmt.branches) {
    if (Truthy(Evaluate(*test, frame))) return Execute(body, frame);
  }
  return Execute(stmt.otherwise, frame);
}

// jinja2's else runs when no iteration reached the end of the body: also after a break or continue in the first.
Interpreter::Flow Interpreter::ExecuteFor(const Stmt& stmt, const FramePtr& frame, const Value& iterable, Int depth0) {
  std::string captured;
  std::string* outer = out_;
  if (stmt.recursive) out_ = &captured;
  Loop local;
  Loop* loop = stmt.uses_loop ? arena_.New<Loop>() : &local;
  loop->source = Items(iterable);
  const uint64_t source_bytes = loop->source.size() * sizeof(Value);
  arena_.ChargeMemory(source_bytes);
  if (stmt.test == nullptr) loop->length = loop->source.size();
  loop->depth0 = depth0;
  loop->statement = &stmt;
  loop->frame = frame;
  if (stmt.test != nullptr) {
    loop->admits = [this, &stmt, frame](const Value& item) {
      const auto test_frame = std::make_shared<Frame>(frame);
      Assign(*stmt.target, item, test_frame, frame);
      return Truthy(Evaluate(*stmt.test, test_frame));
    };
  }
  const auto loop_symbol = program_.symbols.find("loop");
  bool completed = false;
  for (Value item; loop->Next(&item);) {
    arena_.Step();
    const auto inner = std::make_shared<Frame>(frame);
    if (stmt.uses_loop) inner->Set(loop_symbol->second, Value(loop));
    Assign(*stmt.target, item, inner, frame);
    const Flow flow = Execute(stmt.body, inner);
    if (flow == Flow::kBreak) break;
    completed |= flow == Flow::kNormal;
  }
  loop->source = {};
  loop->position = 0;
  arena_.ReleaseMemory(source_bytes);
  Flow flow = Flow::kNormal;
  if (!completed) flow = Execute(stmt.otherwise, std::make_shared<Frame>(frame));
  if (stmt.recursive) {
    out_ = outer;
    arena_.ReleaseMemory(captured.size());
    Write(captured);
  }
  return flow;
}

Interpreter::Flow Interpreter::ExecuteWith(const Stmt& stmt, const FramePtr& frame) {
  const auto inner = std::make_shared<Frame>(frame);
  for (const auto& [target, value] : stmt.assignments) Assign(*target, Evaluate(*value, frame), inner, frame);
  return Execute(stmt.body, inner);
}

Interpreter::Flow Interpreter::ExecuteFilterBlock(const Stmt& stmt, const FramePtr& frame) {
  const auto inner = std::make_shared<Frame>(frame);
  Flow flow = Flow::kNormal;
  const Value text = arena_.String(Capture(stmt.body, inner, &flow));
  if (flow == Flow::kNormal) Write(Str(arena_, EvaluateFilter(*stmt.value, inner, &text)));
  return flow;
}

Interpreter::Flow Interpreter::ExecuteSetBlock(const Stmt& stmt, const FramePtr& frame) {
  const auto inner = std::make_shared<Frame>(frame);
  Flow flow = Flow::kNormal;
  Value text = arena_.String(Capture(stmt.body, inner, &flow));
  if (flow != Flow::kNormal) return flow;
  if (stmt.value != nullptr) text = EvaluateFilter(*stmt.value, inner, &text);
  Assign(*stmt.target, text, frame, frame);
  return flow;
}

void Interpreter::ExecuteCallBlock(const Stmt& stmt, const FramePtr& frame) {
  const Value caller(arena_.New<Macro>(stmt.macro, frame));
  Write(Str(arena_, EvaluateCall(*stmt.value, frame, &caller)));
}

// Sets names in `frame`; namespaces are looked up from `lookup`.
void Interpreter::Assign(const Expr& target, const Value& value, const FramePtr& frame, const FramePtr& lookup) {
  if (target.kind == ExprKind::kName) {
    frame->Set(target.symbol, value);
    return;
  }
  if (target.kind == ExprKind::kNamespaceRef) {
    const Value object = EvaluateName(*target.children[0], lookup);
    const auto* ns = object.As<Namespace>();
    if (ns == nullptr)
      Fail("cannot assign attribute '{}' on '{}', which is no namespace", target.name, target.children[0]->name);
    ns->attributes->Set(arena_, arena_.String(target.name), value);
    return;
  }
  const Values items = Items(value);
  const size_t expected = target.children.size();
  if (items.size() > expected) Fail("too many values to unpack (expected {}, got {})", expected, items.size());
  if (items.size() < expected) Fail("not enough values to unpack (expected {}, got {})", expected, items.size());
  for (size_t i = 0; i < expected; ++i) Assign(*target.children[i], items[i], frame, lookup);
}

Value Interpreter::CallMacro(const Macro& macro, Arguments& arguments) {
  const Arena::Nested nested(arena_);
  const MacroNode& node = *macro.node;
  const auto frame = std::make_shared<Frame>(macro.frame);
  const auto take_named = [&](std::string_view name) -> std::optional<Value> {
    for (auto it = arguments.named.begin(); it != arguments.named.end(); ++it) {
      if (it->first != name) continue;
      Value value = it->second;
      arguments.named.erase(it);
      return value;
    }
    return std::nullopt;
  };
  std::vector<const MacroNode::Parameter*> absent;
  for (size_t i = 0; i < node.parameters.size(); ++i) {
    std::optional<Value> value =
        i < arguments.positional.size() ? arguments.positional[i] : take_named(node.parameters[i].name);
    if (value) {
      frame->Set(node.parameters[i].symbol, *value);
    } else {
      absent.push_back(&node.parameters[i]);
    }
  }
  const auto symbol = [&](const char* name) { return program_.symbols.find(name)->second; };
  if (node.uses_caller) {
    frame->Set(symbol("caller"), take_named("caller").value_or(arena_.MakeUndefined("No caller defined")));
  }
  if (node.uses_kwargs) {
    auto* kwargs = arena_.New<Dict>();
    for (const auto& [name, value] : arguments.named) kwargs->Set(arena_, arena_.String(name), value);
    frame->Set(symbol("kwargs"), Value(kwargs));
  } else if (!arguments.named.empty()) {
    Fail("macro '{}' takes no keyword argument '{}'", node.name, arguments.named[0].first);
  }
  const size_t count = node.parameters.size();
  if (node.uses_varargs) {
    Values rest;
    if (arguments.positional.size() > count)
      rest.assign(arguments.positional.begin() + count, arguments.positional.end());
    frame->Set(symbol("varargs"), arena_.Tuple(std::move(rest)));
  } else if (arguments.positional.size() > count) {
    Fail("macro '{}' takes not more than {} argument(s)", node.name, count);
  }
  for (const auto* parameter : absent) {
    frame->Set(parameter->symbol, parameter->default_value != nullptr
                                      ? Evaluate(*parameter->default_value, frame)
                                      : arena_.MakeUndefined("parameter '" + parameter->name + "' was not provided"));
  }
  return arena_.String(Capture(node.body, frame));
}

Value Interpreter::CallLoop(Loop& loop, Arguments& arguments) {
  if (!loop.statement->recursive) Fail("The loop must have the 'recursive' marker to be called recursively.");
  if (arguments.positional.size() != 1 || !arguments.named.empty()) Fail("loop() takes one argument");
  const Arena::Nested nested(arena_);
  std::string text;
  std::string* outer = std::exchange(out_, &text);
  ExecuteFor(*loop.statement, loop.frame, arguments.positional[0], loop.depth0 + 1);
  out_ = outer;
  arena_.ReleaseMemory(text.size());
  return arena_.String(std::move(text));
}

Value Interpreter::LoopAttribute(Loop& loop, std::string_view name) {
  Value item;
  if (name == "index") return loop.index0 + 1;
  if (name == "index0") return loop.index0;
  if (name == "first") return loop.index0 == 0;
  if (name == "last") return !loop.Peek(&item);
  if (name == "length") return Int(loop.Length());
  if (name == "revindex") return Int(loop.Length()) - loop.index0;
  if (name == "revindex0") return Int(loop.Length()) - loop.index0 - 1;
  if (name == "depth") return loop.depth0 + 1;
  if (name == "depth0") return loop.depth0;
  if (name == "previtem") return loop.index0 == 0 ? arena_.MakeUndefined("there is no previous item") : loop.previous;
  if (name == "nextitem") return loop.Peek(&item) ? item : arena_.MakeUndefined("there is no next item");
  return MissingAttribute(Value(&loop), name);
}

}  // namespace elasticmem::jinja

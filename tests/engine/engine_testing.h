// What the engine's tests share: golden files, engines in temporary folders, greedy generation.
#pragma once

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "runtime/engine/engine.h"
#include "runtime/engine/report.h"
#include "runtime/engine/sampler.h"
#include "runtime/model/model.h"
#include "tests/gguf/scratch_folder.h"

namespace elasticmem::testing {

inline std::string SourcePath(const std::string& name) { return std::string(EM_SOURCE_DIR) + "/" + name; }

inline nlohmann::json ReadJson(const std::string& name) {
  std::ifstream file(SourcePath(name));
  EXPECT_TRUE(file.good()) << name;
  return nlohmann::json::parse(file);
}

// The float32 array of a NumPy .npy file, flattened; its shape is in the JSON beside it.
inline std::vector<float> ReadNpy(const std::string& name) {
  std::ifstream file(SourcePath(name), std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(bytes.substr(0, 6), "\x93NUMPY") << name;
  EXPECT_NE(bytes.find("'<f4'"), std::string::npos) << name;
  EXPECT_NE(bytes.find("'fortran_order': False"), std::string::npos) << name;
  const size_t header = 10 + static_cast<uint8_t>(bytes[8]) + 256 * static_cast<uint8_t>(bytes[9]);
  std::vector<float> values((bytes.size() - header) / sizeof(float));
  std::memcpy(values.data(), bytes.data() + header, values.size() * sizeof(float));
  return values;
}

inline std::unique_ptr<Model> OpenModel(const std::string& path, const std::string& activation = "") {
  StatusOr<std::unique_ptr<Model>> model = Model::Open(path, {activation, ""});
  EXPECT_TRUE(model.ok()) << Message(model.status());
  return model.ok() ? *std::move(model) : nullptr;
}

// Options with plenty of memory, float32 KV, and a store in `folder`.
inline EngineOptions RoomyOptions(const std::string& folder) {
  EngineOptions options;
  options.budget_bytes = uint64_t{4} << 30;
  options.kv_type = DType::kF32;
  options.store_dir = folder;
  options.threads = 2;
  options.logits_rows = 64;
  return options;
}

inline std::unique_ptr<Engine> OpenEngine(const Model& model, const EngineOptions& options) {
  StatusOr<std::unique_ptr<Engine>> engine = Engine::Open(model, options);
  EXPECT_TRUE(engine.ok()) << Message(engine.status());
  return engine.ok() ? *std::move(engine) : nullptr;
}

struct Generated {
  std::vector<TokenId> ids;
  uint64_t logits_hash = 0;
  std::vector<float> gaps;  // between the two largest logits
};

// `count` greedy tokens after `prompt`, with a hash over all logits that chose them.
inline Generated GenerateGreedy(Engine& engine, std::vector<TokenId> prompt, size_t count) {
  Generated out;
  LogitsHash hash;
  const SequenceId sequence = engine.NewSequence();
  std::vector<TokenId> next = std::move(prompt);
  for (size_t i = 0; i < count; ++i) {
    const StatusOr<std::span<const float>> logits = engine.Append(sequence, next);
    EXPECT_TRUE(logits.ok()) << Message(logits.status());
    if (!logits.ok()) break;
    hash.Add(*logits);
    const TokenId id = ArgMax(*logits);
    float second = -1e30f;
    for (size_t v = 0; v < logits->size(); ++v) {
      if (static_cast<TokenId>(v) != id) second = std::max(second, (*logits)[v]);
    }
    out.gaps.push_back((*logits)[id] - second);
    out.ids.push_back(id);
    next = {id};
  }
  engine.EndSequence(sequence);
  engine.CheckInvariants();
  out.logits_hash = hash.value();
  return out;
}

}  // namespace elasticmem::testing

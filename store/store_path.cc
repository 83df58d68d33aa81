// Where a model's neuron store belongs (declared in neuron_store.h).
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "store/neuron_store.h"

namespace elasticmem {
namespace {

namespace fs = std::filesystem;

// Makes `folder` if need be; why it can't be written, or OK.
Status MakeWritable(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return SystemError(error.value(), fmt::format("cannot make the folder {}", folder.string()));
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    return SystemError(errno, fmt::format("cannot write in {}", folder.string()));
  }
  return absl::OkStatus();
}

// Whether the store at `path` was made from this model.
bool Holds(const std::string& path, uint64_t model_quick_hash) {
  const StatusOr<NeuronStore> store = NeuronStore::Open(path, std::nullopt, {.try_direct = false});
  return store.ok() && store->model_quick_hash() == model_quick_hash;
}

}  // namespace

StatusOr<std::string> StorePath(const StorePlace& place) {
  const fs::path model(place.model_path);
  std::string name = model.filename().string();
  if (place.type) name += fmt::format(".{}", Traits(*place.type).name);
  name += ".emstore";
  const std::string hashed = fmt::format("{:016x}-{}", place.model_quick_hash, name);

  if (!place.store_dir.empty()) {
    EM_RETURN_IF_ERROR(MakeWritable(place.store_dir));
    return (fs::path(place.store_dir) / hashed).string();
  }
  const fs::path folder = model.parent_path().empty() ? fs::path(".") : model.parent_path();
  const std::string beside = (model.parent_path() / name).string();
  if (access(folder.c_str(), W_OK | X_OK) == 0) return beside;
  const Status refused = SystemError(errno, fmt::format("cannot write in {}", folder.string()));
  if (Holds(beside, place.model_quick_hash)) return beside;
  if (place.cache_dir.empty()) {
    return Error(refused.code(), "no place for the neuron store: {}; choose a folder with --store-dir",
                 Message(refused));
  }
  if (const Status cache = MakeWritable(place.cache_dir); !cache.ok()) {
    return Error(cache.code(), "no place for the neuron store: {}; {}; choose a folder with --store-dir",
                 Message(refused), Message(cache));
  }
  return (fs::path(place.cache_dir) / hashed).string();
}

}  // namespace elasticmem

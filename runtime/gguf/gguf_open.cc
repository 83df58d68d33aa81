// Opening a model from disk: one file, or the first of several parts and all the others beside it.
#include <utility>

#include "runtime/gguf/byte_reader.h"
#include "runtime/gguf/gguf.h"
#include "runtime/gguf/gguf_parser.h"
#include "runtime/gguf/quoted.h"

namespace elasticmem {
namespace {

constexpr uint64_t kMaxParts = 99'999;  // their names have five digits

StatusOr<GgufFile> OpenPart(const std::string& path) {
  EM_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  ByteReader reader(file);
  return GgufParser::Parse(reader, path);
}

// What a part's metadata says about its place among the parts; a file that is not split is part 0 of 1.
struct Place {
  uint64_t number = 0;
  uint64_t count = 1;
  std::optional<uint64_t> tensors;  // in all parts together
};

StatusOr<Place> PlaceOf(const GgufFile& part) {
  Place place;
  EM_ASSIGN_OR_RETURN(place.count, part.UintOr("split.count", 1));
  if (place.count > kMaxParts) return InvalidInput("split.count is {}, at most {} is read", place.count, kMaxParts);
  if (place.count <= 1) return Place{};
  EM_ASSIGN_OR_RETURN(place.number, part.UintOr("split.no", 0));
  if (place.number >= place.count) {
    return InvalidInput("split.no is {}, but split.count is {}", place.number, place.count);
  }
  if (part.Find("split.tensors.count") != nullptr) {
    EM_ASSIGN_OR_RETURN(place.tensors, part.Uint("split.tensors.count"));
  }
  return place;
}

// "-00002-of-00003.gguf" for number 1 of 3.
std::string PartSuffix(uint64_t number, uint64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", number + 1, count);
}

// The path of part `wanted`, from the path of the part that is at `place`; nothing if that is not named as a part.
std::optional<std::string> PathOfPart(std::string_view path, const Place& place, uint64_t wanted) {
  const std::string suffix = PartSuffix(place.number, place.count);
  if (!path.ends_with(suffix)) return std::nullopt;
  return std::string(path.substr(0, path.size() - suffix.size())) + PartSuffix(wanted, place.count);
}

Status NotTheFirst(const std::string& path, const Place& place) {
  const std::optional<std::string> first = PathOfPart(path, place, 0);
  return InvalidInput("{} is part {} of {}: open the first part, {}", path, place.number + 1, place.count,
                      first ? *first : fmt::format("the file that ends in {}", PartSuffix(0, place.count)));
}

// Opens part `number` and checks that it belongs to `first`, which is at `place` and was opened as `first_path`.
StatusOr<GgufFile> OpenLaterPart(const GgufFile& first, const std::string& first_path, const Place& place,
                                 uint64_t number) {
  const std::optional<std::string> path = PathOfPart(first_path, place, number);
  if (!path) {
    return InvalidInput("{} is part 1 of {}, but its name does not end in {}, so the other parts can't be found",
                        first_path, place.count, PartSuffix(0, place.count));
  }
  StatusOr<GgufFile> part = OpenPart(*path);
  EM_RETURN_IF_ERROR(WithContext(part.status(), fmt::format("part {} of {}", number + 1, place.count)));
  const StatusOr<Place> own = PlaceOf(*part);
  EM_RETURN_IF_ERROR(WithContext(own.status(), *path));
  if (own->number != number || own->count != place.count) {
    return InvalidInput("{} says it is part {} of {}, part {} of {} was expected", *path, own->number + 1, own->count,
                        number + 1, place.count);
  }
  if (part->is_powerinfer() != first.is_powerinfer()) {
    return InvalidInput("{} and {} begin with different magics, GGUF and PWRI", first_path, *path);
  }
  return part;
}

}  // namespace

StatusOr<GgufFile> GgufFile::Open(const std::string& path) {
  EM_ASSIGN_OR_RETURN(GgufFile model, OpenPart(path));
  const StatusOr<Place> place = PlaceOf(model);
  EM_RETURN_IF_ERROR(WithContext(place.status(), path));
  if (place->number != 0) return NotTheFirst(path, *place);
  for (uint64_t number = 1; number < place->count; ++number) {
    EM_ASSIGN_OR_RETURN(GgufFile part, OpenLaterPart(model, path, *place, number));
    for (GgufTensor& tensor : part.tensors_) {
      if (!model.tensor_index_.emplace(tensor.name, model.tensors_.size()).second) {
        return InvalidInput("tensor {} is in {} and again in {}", Quoted(tensor.name),
                            model.paths_[model.FindTensor(tensor.name)->file], part.paths_[0]);
      }
      tensor.file = static_cast<uint32_t>(number);
      model.tensors_.push_back(std::move(tensor));
    }
    model.paths_.push_back(std::move(part.paths_[0]));
    model.file_bytes_ += part.file_bytes_;
  }
  if (place->tensors && *place->tensors != model.tensors_.size()) {
    return InvalidInput("{}: split.tensors.count is {}, but the {} parts hold {} tensors", path, *place->tensors,
                        place->count, model.tensors_.size());
  }
  return model;
}

}  // namespace elasticmem

// Integer ids that cannot be mixed up: a BlockId is not a PageIndex.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace elasticmem {

// `Tag` only names the type; `Rep` is the integer that holds it.
template <class Tag, class Rep = uint32_t>
class StrongId {
 public:
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  friend constexpr auto operator<=>(StrongId, StrongId) = default;

 private:
  Rep value_ = 0;
};

}  // namespace elasticmem

template <class Tag, class Rep>
struct std::hash<elasticmem::StrongId<Tag, Rep>> {
  size_t operator()(elasticmem::StrongId<Tag, Rep> id) const { return std::hash<Rep>()(id.value()); }
};

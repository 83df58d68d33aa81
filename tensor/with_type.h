// From an element type at run time to one at compile time.
#pragma once

#include <type_traits>

#include "tensor/dtype.h"

namespace elasticmem {

// work(the type as a constant)
template <class Work>
void WithType(DType dtype, Work&& work) {
#define EM_CASE(type) \
  case DType::type:   \
    return work(std::integral_constant<DType, DType::type>())
  switch (dtype) {
    EM_CASE(kF32);
    EM_CASE(kF16);
    EM_CASE(kBF16);
    EM_CASE(kQ8_0);
    EM_CASE(kQ4_0);
    EM_CASE(kQ4_1);
    EM_CASE(kQ5_0);
    EM_CASE(kQ5_1);
    EM_CASE(kQ2_K);
    EM_CASE(kQ3_K);
    EM_CASE(kQ4_K);
    EM_CASE(kQ5_K);
    EM_CASE(kQ6_K);
  }
#undef EM_CASE
}

}  // namespace elasticmem

// Which instruction sets the kernels are built for: SSE4, AVX2, AVX3 (AVX-512) or NEON, each beside a scalar fallback.
// Include it before anything of Highway. The other sets would cost build time and serve no machine that we know of;
// vectors of unknown length (SVE, RVV) cannot be kept in arrays, as the register tiles do.
#pragma once

#ifdef ELASTICMEM_FEW_TARGETS  // sanitizer builds: AVX2 or NEON, and the fallback
#define EM_OMITTED_TARGETS (HWY_SSE4 | HWY_AVX3)
#else
#define EM_OMITTED_TARGETS 0
#endif

#define HWY_DISABLED_TARGETS                                                                                          \
  (EM_OMITTED_TARGETS | HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_PPC8 | HWY_WASM | \
   HWY_WASM_EMU256)

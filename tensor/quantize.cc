// Scalar conversions between GGUF rows and float32: the definition of each format's values, which SIMD kernels match.
#include "tensor/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace elasticmem {
namespace {

constexpr size_t kBlock = 32;
constexpr size_t kSuperBlock = 256;

uint16_t LoadU16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
float LoadF16(const uint8_t* p) { return F16ToF32(LoadU16(p)); }

void DequantizeQ8_0(const uint8_t* b, float* out) {
  const float d = LoadF16(b);
  for (size_t i = 0; i < kBlock; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(b[2 + i]));
}

void DequantizeQ4_0(const uint8_t* b, float* out) {
  const float d = LoadF16(b);
  for (size_t i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((b[2 + i] & 15) - 8);
    out[i + 16] = d * static_cast<float>((b[2 + i] >> 4) - 8);
  }
}

void DequantizeQ4_1(const uint8_t* b, float* out) {
  const float d = LoadF16(b), m = LoadF16(b + 2);
  for (size_t i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(b[4 + i] & 15) + m;
    out[i + 16] = d * static_cast<float>(b[4 + i] >> 4) + m;
  }
}

// 5-bit quants of a Q5_0 or Q5_1 block: low nibbles in `qs` [16], bit i of `high` [4] is element i's fifth.
int Quant5(const uint8_t* high, const uint8_t* qs, size_t i) {
  const int low = i < 16 ? qs[i] & 15 : qs[i - 16] >> 4;
  return low | ((high[i / 8] >> (i % 8)) & 1) << 4;
}

void DequantizeQ5_0(const uint8_t* b, float* out) {
  const float d = LoadF16(b);
  for (size_t i = 0; i < kBlock; ++i) out[i] = d * static_cast<float>(Quant5(b + 2, b + 6, i) - 16);
}

void DequantizeQ5_1(const uint8_t* b, float* out) {
  const float d = LoadF16(b), m = LoadF16(b + 2);
  for (size_t i = 0; i < kBlock; ++i) out[i] = d * static_cast<float>(Quant5(b + 4, b + 8, i)) + m;
}

// Q2_K: scales [16] (low nibble scale, high nibble minimum), quants [64], d, dmin.
void DequantizeQ2_K(const uint8_t* b, float* out) {
  const float d = LoadF16(b + 80), dmin = LoadF16(b + 82);
  for (size_t i = 0; i < kSuperBlock; ++i) {
    const size_t block = i / 32;
    const int q = (b[16 + block / 4 * 32 + i % 32] >> (block % 4 * 2)) & 3;
    const uint8_t scale = b[i / 16];
    out[i] = d * static_cast<float>(scale & 15) * static_cast<float>(q) - dmin * static_cast<float>(scale >> 4);
  }
}

// Q3_K: high bits [32], low two bits [64], 6-bit scales [12], d.
void DequantizeQ3_K(const uint8_t* b, float* out) {
  const float d = LoadF16(b + 108);
  const uint8_t* scales = b + 96;
  for (size_t i = 0; i < kSuperBlock; ++i) {
    const size_t block = i / 32, s = i / 16;
    const int low = (b[32 + block / 4 * 32 + i % 32] >> (block % 4 * 2)) & 3;
    const int q = low + ((b[i % 32] >> block & 1) ? 4 : 0) - 4;
    const int scale_low = s < 8 ? scales[s] & 15 : scales[s - 8] >> 4;
    const int scale = (scale_low | ((scales[8 + s % 4] >> (s / 4 * 2)) & 3) << 4) - 32;
    out[i] = d * static_cast<float>(scale) * static_cast<float>(q);
  }
}

// The 6-bit scale and minimum of block j of a Q4_K or Q5_K super-block, from its 12 bytes.
void ScaleMinK4(const uint8_t* s, size_t j, int* scale, int* minimum) {
  if (j < 4) {
    *scale = s[j] & 63;
    *minimum = s[j + 4] & 63;
  } else {
    *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    *minimum = (s[j + 4] >> 4) | (s[j] >> 6) << 4;
  }
}

// Q4_K: d, dmin, scales [12], nibbles [128]. Q5_K has fifth bits [32] before the nibbles.
void DequantizeQ45_K(const uint8_t* b, bool five_bits, float* out) {
  const float d = LoadF16(b), dmin = LoadF16(b + 2);
  const uint8_t* high = b + 16;
  const uint8_t* nibbles = five_bits ? b + 48 : b + 16;
  for (size_t block = 0; block < 8; ++block) {
    int scale = 0, minimum = 0;
    ScaleMinK4(b + 4, block, &scale, &minimum);
    const float ds = d * static_cast<float>(scale), m = dmin * static_cast<float>(minimum);
    for (size_t i = 0; i < 32; ++i) {
      int q = (nibbles[block / 2 * 32 + i] >> (block % 2 * 4)) & 15;
      if (five_bits) q |= (high[i] >> block & 1) << 4;
      out[block * 32 + i] = ds * static_cast<float>(q) - m;
    }
  }
}

// Q6_K: low nibbles [128], high two bits [64], int8 scales [16], d.
void DequantizeQ6_K(const uint8_t* b, float* out) {
  const float d = LoadF16(b + 208);
  for (size_t i = 0; i < kSuperBlock; ++i) {
    const size_t half = i / 128, block = i / 32 % 4, l = i % 32;
    const int low = (b[half * 64 + block % 2 * 32 + l] >> (block / 2 * 4)) & 15;
    const int high = (b[128 + half * 32 + l] >> (block * 2)) & 3;
    const int scale = static_cast<int8_t>(b[192 + i / 16]);
    out[i] = d * static_cast<float>(scale) * static_cast<float>((low | high << 4) - 32);
  }
}

void DequantizeBlock(DType dtype, const uint8_t* b, float* out) {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(out, b, sizeof(float));
      return;
    case DType::kF16:
      *out = LoadF16(b);
      return;
    case DType::kBF16:
      *out = BF16ToF32(LoadU16(b));
      return;
    case DType::kQ8_0:
      return DequantizeQ8_0(b, out);
    case DType::kQ4_0:
      return DequantizeQ4_0(b, out);
    case DType::kQ4_1:
      return DequantizeQ4_1(b, out);
    case DType::kQ5_0:
      return DequantizeQ5_0(b, out);
    case DType::kQ5_1:
      return DequantizeQ5_1(b, out);
    case DType::kQ2_K:
      return DequantizeQ2_K(b, out);
    case DType::kQ3_K:
      return DequantizeQ3_K(b, out);
    case DType::kQ4_K:
      return DequantizeQ45_K(b, false, out);
    case DType::kQ5_K:
      return DequantizeQ45_K(b, true, out);
    case DType::kQ6_K:
      return DequantizeQ6_K(b, out);
  }
}

void StoreF16(float value, uint8_t* p) {
  const uint16_t bits = F32ToF16(value);
  std::memcpy(p, &bits, sizeof(bits));
}

// Rounds half away from zero, as files quantised elsewhere do (|v| < 2^22); a NaN becomes 0 (its block's scale is a
// NaN).
int8_t RoundToInt8(float v) {
  constexpr float kBelowHalf = 0x1.fffffep-2f;  // 0.5 itself would carry 0.49999997 to 1
  return std::isnan(v) ? 0 : static_cast<int8_t>(static_cast<int>(v + std::copysign(kBelowHalf, v)));
}

bool AllFinite(const float* x, size_t n) {
  return std::all_of(x, x + n, [](float v) { return std::isfinite(v); });
}

void QuantizeQ8_0(const float* x, uint8_t* b) {
  float amax = 0;
  for (size_t i = 0; i < kBlock; ++i) amax = std::max(amax, std::fabs(x[i]));
  const float d = AllFinite(x, kBlock) ? amax / 127.f : std::numeric_limits<float>::quiet_NaN();
  const float inverse = d > 0 ? 1.f / d : 0.f;
  StoreF16(d, b);
  for (size_t i = 0; i < kBlock; ++i) b[2 + i] = static_cast<uint8_t>(RoundToInt8(x[i] * inverse));
}

// The element of largest magnitude becomes exactly -8.
void QuantizeQ4_0(const float* x, uint8_t* b) {
  float extreme = 0;
  for (size_t i = 0; i < kBlock; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  const bool finite = AllFinite(x, kBlock);
  const float d = finite ? extreme / -8.f : std::numeric_limits<float>::quiet_NaN();
  const float inverse = finite && d != 0 ? 1.f / d : 0.f;
  StoreF16(d, b);
  const auto quant = [&](float v) { return finite ? static_cast<int>(std::clamp(v * inverse + 8.5f, 0.f, 15.f)) : 8; };
  for (size_t i = 0; i < 16; ++i) b[2 + i] = static_cast<uint8_t>(quant(x[i]) | quant(x[i + 16]) << 4);
}

}  // namespace

float F16ToF32(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 31u, mantissa = half & 1023u;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  if (exponent == 31) {  // as hardware does, a signalling NaN becomes quiet
    return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13 | (mantissa != 0 ? 0x400000u : 0u));
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t F32ToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {
    // Below the smallest normal half: adding 0.5 puts the bits that remain, rounded to even, into the low end.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
}

float BF16ToF32(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t F32ToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

void DequantizeRow(DType dtype, const std::byte* row, size_t elements, float* out) {
  const DTypeTraits& traits = Traits(dtype);
  EM_DCHECK(elements % traits.block_elements == 0);
  const auto* b = reinterpret_cast<const uint8_t*>(row);
  for (size_t i = 0; i < elements; i += traits.block_elements, b += traits.block_bytes) {
    DequantizeBlock(dtype, b, out + i);
  }
}

Status QuantizeRow(DType dtype, std::span<const float> in, std::byte* row) {
  EM_CHECK(in.size() % Traits(dtype).block_elements == 0);
  auto* b = reinterpret_cast<uint8_t*>(row);
  switch (dtype) {
    case DType::kF32:
      std::memcpy(b, in.data(), in.size_bytes());
      break;
    case DType::kF16:
      for (size_t i = 0; i < in.size(); ++i) StoreF16(in[i], b + 2 * i);
      break;
    case DType::kBF16:
      for (size_t i = 0; i < in.size(); ++i) {
        const uint16_t bits = F32ToBF16(in[i]);
        std::memcpy(b + 2 * i, &bits, sizeof(bits));
      }
      break;
    case DType::kQ8_0:
      for (size_t i = 0; i < in.size(); i += kBlock, b += 34) QuantizeQ8_0(&in[i], b);
      break;
    case DType::kQ4_0:
      for (size_t i = 0; i < in.size(); i += kBlock, b += 18) QuantizeQ4_0(&in[i], b);
      break;
    default:
      return Unsupported("rows cannot be written as {}", Traits(dtype).name);
  }
  return absl::OkStatus();
}

}  // namespace elasticmem

// What a CPU has for int8 products beyond its vector instruction set, which Highway 1.0.3 does not tell.
#pragma once

namespace elasticmem {

enum class Int8Units {
  kNone,
  kDot,     // dots of 4 values a lane: AVX-512 VNNI, ARM's dotprod
  kMatrix,  // and products of small matrices: AMX, if the system lets the process use it, ARM's i8mm
};

// The best that this machine has, at most what the last call of LimitInt8UnitsForTest said.
Int8Units Int8UnitsHere();
void LimitInt8UnitsForTest(Int8Units most);

}  // namespace elasticmem

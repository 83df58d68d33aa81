// What an x86 CPU has for int8 products beyond its vector instruction set, which Highway 1.0.3 does not tell.
#pragma once

namespace elasticmem {

enum class Int8Units {
  kNone,
  kVnni,  // AVX-512 VNNI: 64 products an instruction
  kAmx,   // VNNI, and tiles of 16 x 64 products, if the system lets the process use them
};

// The best that this machine has, at most what the last call of LimitInt8UnitsForTest said.
Int8Units Int8UnitsHere();
void LimitInt8UnitsForTest(Int8Units most);

}  // namespace elasticmem

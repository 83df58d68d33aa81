#!/usr/bin/env python3
"""Writes quants.bin: rows of every type that we read, dequantised by the `gguf` package (pip install gguf numpy).

For each type of kDTypes, in order: two rows of 256 elements (raw bytes), then their 512 float32 values.
The quants are random bytes, so that every bit of a format is exercised; only the float16 scales are kept finite.
"""
import pathlib

import numpy as np
from gguf import quants
from gguf.constants import GGMLQuantizationType as T

# Byte offsets of the float16 scales in a block.
SCALES = {
    T.Q8_0: [0], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2],
    T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
}
BLOCKS = {
    T.F32: (1, 4), T.F16: (1, 2), T.BF16: (1, 2), T.Q8_0: (32, 34), T.Q4_0: (32, 18), T.Q4_1: (32, 20),
    T.Q5_0: (32, 22), T.Q5_1: (32, 24), T.Q2_K: (256, 84), T.Q3_K: (256, 110), T.Q4_K: (256, 144),
    T.Q5_K: (256, 176), T.Q6_K: (256, 210),
}


def rows(rng, dtype):
    if dtype == T.F32:
        return rng.standard_normal((2, 256)).astype(np.float32).view(np.uint8)
    if dtype == T.F16:
        return rng.standard_normal((2, 256)).astype(np.float16).view(np.uint8)
    elements, size = BLOCKS[dtype]
    raw = rng.integers(0, 256, (2, 256 // elements, size), dtype=np.uint8)
    if dtype == T.BF16:
        raw[..., 1] &= 0xBF  # no infinities or NaN: magnitudes below 2
    for offset in SCALES.get(dtype, []):
        scale = rng.uniform(-0.1, 0.1, (2, 256 // elements, 1)).astype(np.float16)
        raw[..., offset : offset + 2] = scale.view(np.uint8).reshape(2, -1, 2)
    return raw.reshape(2, -1)


def main():
    rng = np.random.default_rng(1)
    out = bytearray()
    for dtype in BLOCKS:
        raw = rows(rng, dtype)
        if dtype == T.F32:
            values = raw.view(np.float32)
        elif dtype == T.F16:
            values = raw.view(np.float16).astype(np.float32)
        else:
            values = quants.dequantize(raw, dtype)
        out += raw.tobytes() + np.ascontiguousarray(values, dtype=np.float32).tobytes()
    pathlib.Path(__file__).with_name("quants.bin").write_bytes(out)


if __name__ == "__main__":
    main()

"""Writes tests/dequantise.bin: random blocks of every type gguf-py can dequantise, and what it makes of them.

Run: python crates/backend-cpu/tests/fixtures.py (needs numpy and gguf). Deterministic.

Layout, little-endian, repeated to the end: type name in 8 bytes padded with zeros, u32 bytes of blocks, u32 elements,
the blocks, the elements as f32. A second file, quantise.bin, has f32 values and gguf-py's blocks of them in the same frame.
"""

import pathlib
import struct

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize

HERE = pathlib.Path(__file__).parent
TYPES = [T.F16, T.BF16, T.Q8_0, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K]
# Byte offsets of the f16 scales: random bytes there would be infinities and NaNs now and then.
SCALES = {
    T.Q8_0: [0], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2],
    T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
}


def frame(qtype, blocks, values):
    head = qtype.name.encode().ljust(8, b"\0") + struct.pack("<II", blocks.nbytes, values.size)
    return head + blocks.tobytes() + values.astype("<f4").tobytes()


def main():
    rng = np.random.default_rng(7)
    out = b""
    for qtype in TYPES:
        elements, size = GGML_QUANT_SIZES[qtype]
        count = {1: 64, 32: 6, 256: 3}[elements]
        blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
        for offset in SCALES.get(qtype, []):
            scale = (rng.standard_normal(count) * 0.05).astype(np.float16)
            scale[0] = np.float16(3e-6)  # subnormal
            blocks[:, offset : offset + 2] = scale.view(np.uint8).reshape(count, 2)
        if qtype in (T.F16, T.BF16):
            blocks = rng.standard_normal(count).astype(np.float16).view(np.uint8).reshape(1, -1)
        else:
            blocks = blocks.reshape(1, -1)
        out += frame(qtype, blocks, dequantize(blocks, qtype))
    (HERE / "dequantise.bin").write_bytes(out)

    out = b""
    for qtype in [T.Q8_0, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1]:
        values = rng.standard_normal((1, 6 * 32)).astype(np.float32)
        values[0, :32] = 0
        values[0, 32:64] *= 1e-4
        out += frame(qtype, quantize(values, qtype), values)
    (HERE / "quantise.bin").write_bytes(out)


main()

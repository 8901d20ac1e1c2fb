"""Weights that ONNX Runtime packs: integers of 2, 4 or 8 bits in bytes, with a scale for each block of a row."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core.errors import OperandError
from renorm.graph.op import OnnxNode

Array = np.ndarray[Any, Any]


def check_bits(node: OnnxNode, bits: int) -> None:
    """Raise OperandError for integers of which bytes hold no whole number."""
    if bits not in (2, 4, 8):
        raise OperandError(f"{node.op_type}: bits = {bits} is none of 2, 4 and 8")


def unpacked(held: Array, bits: int) -> Array:
    """Return integers [.., n * 8 // bits] of bytes [.., n], which have the lowest ones first."""
    parts = [held >> shift & (2**bits - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(*held.shape[:-1], -1)


def dequantized(held: Array, bits: int, scales: Array, zeros: Array | None, block_of: Array) -> Array:
    """Return (q - zero) * scale [.., K] in float32 for packed bytes [.., n]. scales, zeros: [.., blocks]; zeros are
    2^(bits - 1) if None. block_of: [K], of each element."""
    q = unpacked(held, bits)[..., : len(block_of)].astype(np.float32)
    q -= np.float32(2 ** (bits - 1)) if zeros is None else zeros.astype(np.float32)[..., block_of]
    q *= scales.astype(np.float32)[..., block_of]
    return q

"""Random quantized networks as TensorFlow Lite files: blocks of convolutions, products, sums and pools whose tensors
hold a few standard deviations of what is computed, so that some of it saturates, and a classifier at the end."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tests.frontends.tflite_files import File

SIDES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767)}


class Quantized:
    """A network in the making. deviation: about that of the real numbers of a tensor, by its name."""

    def __init__(self, rng: np.random.Generator, dtype: str = "int8"):
        self.rng, self.dtype, self.file = rng, dtype, File()
        self.deviation, self.shape, self.scale = dict[str, float](), dict[str, tuple[int, ...]](), dict[str, float]()
        self.zero, self.count = dict[str, int](), 0

    def tensor(self, shape: tuple[int, ...], deviation: float, is_positive: bool = False, like: str = "") -> str:
        """A new tensor that holds 1 to 4 standard deviations; like: with the quantization of another one."""
        name = f"t{self.count}"
        self.count += 1
        low, high = SIDES[self.dtype]
        if like:
            zero, self.scale[name] = self.zero[like], self.scale[like]
        else:
            reach = float(self.rng.uniform(1.0, 4.0)) * deviation
            self.scale[name] = float(np.float32(reach / (high - low if is_positive else (high - low) / 2)))
            zero = low if is_positive else int(self.rng.integers(-20, 20)) + (low + high + 1) // 2
            zero = 0 if self.dtype == "int16" else zero  # as the format has it
        self.zero[name] = zero
        self.file.tensor(name, shape, self.dtype, scale=([self.scale[name]], [zero], 0))
        self.deviation[name], self.shape[name] = deviation, shape
        return name

    def weight(self, shape: tuple[int, ...], axis: int, fan_in: int, x: str) -> tuple[str, str]:
        """A weight of 8 bits, with a scale per channel where the format has it, and a bias of integers."""
        channels, name = shape[axis], f"w{self.count}"
        low, high = SIDES["uint8" if self.dtype == "uint8" else "int8"]
        several = self.dtype != "uint8" and len(shape) > 2
        steps = (self.rng.uniform(0.5, 1.5, channels if several else 1) / 74 / math.sqrt(fan_in)).astype(np.float32)
        zero = 0 if low else 128
        w = self.rng.integers(low + 1, high + 1, shape).astype("int8" if low else "uint8")
        self.file.constant(name, w, scale=(steps, [zero] * steps.size, axis))
        own = np.float32(self.scale[x]) * steps
        bias = np.rint(self.rng.normal(0, 0.3, channels) * self.deviation[x] / own)
        wide = np.int64 if self.dtype == "int16" else np.int32
        self.file.constant(f"{name}.b", bias.astype(wide), scale=(own, [0] * own.size, 0))
        return name, f"{name}.b"

    def conv(self, x: str, out: int, activation: int, stride: int = 1) -> str:
        n, h, w, c = self.shape[x]
        weight, bias = self.weight((out, 3, 3, c), 0, 9 * c, x)
        shape = (n, -(-h // stride), -(-w // stride), out)
        y = self.tensor(shape, self.deviation[x], activation == 1)
        self.file.operator(
            "CONV_2D", [x, weight, bias], [y], "Conv2DOptions", 3, stride_h=stride, stride_w=stride,
            fused_activation_function=activation,
        )  # fmt: skip
        return y

    def depthwise(self, x: str, activation: int) -> str:
        n, h, w, c = self.shape[x]
        weight, bias = self.weight((1, 3, 3, c), 3, 9, x)
        y = self.tensor((n, h, w, c), self.deviation[x], activation == 1)
        self.file.operator(
            "DEPTHWISE_CONV_2D", [x, weight, bias], [y], "DepthwiseConv2DOptions", 3, stride_h=1, stride_w=1,
            depth_multiplier=1, fused_activation_function=activation,
        )  # fmt: skip
        return y

    def binary(self, kind: str, a: str, b: str, activation: int = 0) -> str:
        square = math.hypot(self.deviation[a], self.deviation[b])
        deviation = self.deviation[a] * self.deviation[b] if kind == "MUL" else square
        y = self.tensor(self.shape[a], deviation, activation == 1)
        options = {"MUL": "MulOptions", "ADD": "AddOptions", "SUB": "SubOptions"}[kind]
        self.file.operator(kind, [a, b], [y], options, 2, fused_activation_function=activation)
        return y

    def pool(self, x: str, kind: str) -> str:
        n, h, w, c = self.shape[x]
        y = self.tensor((n, h // 2, w // 2, c), self.deviation[x], like=x)
        self.file.operator(
            kind, [x], [y], "Pool2DOptions", 2, padding=1, stride_h=2, stride_w=2, filter_height=2, filter_width=2
        )
        return y

    def classifier(self, x: str, classes: int) -> str:
        """Means over the image, and scores: a product."""
        n, h, w, c = self.shape[x]
        pooled = self.tensor((n, 1, 1, c), self.deviation[x], like=x)
        self.file.operator(
            "AVERAGE_POOL_2D", [x], [pooled], "Pool2DOptions", 2, padding=1, stride_h=h, stride_w=w, filter_height=h,
            filter_width=w,
        )  # fmt: skip
        shape, flat = self.file.constant("flat", np.asarray([n, c], np.int32)), self.tensor((n, c), 1.0, like=pooled)
        self.file.operator("RESHAPE", [pooled, shape], [flat], "ReshapeOptions")
        self.deviation[flat] = self.deviation[x]
        weight, bias = self.weight((classes, c), 0, c, flat)
        scores = self.tensor((n, classes), self.deviation[x])
        self.file.operator("FULLY_CONNECTED", [flat, weight, bias], [scores], "FullyConnectedOptions", 4)
        return scores


def spotter(rng: np.random.Generator, dtype: str = "int8", depth: int = 4) -> tuple[bytes, Any]:
    """A small classifier and an input."""
    q = Quantized(rng, dtype)
    x = q.tensor((1, 12, 10, 3), 1.0)
    at = q.conv(x, 8, 1)
    for _ in range(depth):
        step, before = int(rng.integers(0, 5)), at
        match step:
            case 0:
                at = q.conv(at, 8, int(rng.choice([0, 1, 3])))
            case 1:
                at = q.depthwise(at, int(rng.choice([0, 1, 3])))
            case 2:
                kind, activation = str(rng.choice(["ADD", "SUB"])), int(rng.choice([0, 1]))
                at = q.binary(kind, q.conv(at, q.shape[at][3], 0), before, activation)
            case 3:
                at = q.binary("MUL", q.conv(at, q.shape[at][3], 0), before)
            case _:
                at = q.pool(at, str(rng.choice(["MAX_POOL_2D", "AVERAGE_POOL_2D"]))) if q.shape[at][1] > 3 else at
    scores = q.classifier(at, 12)
    low, high = SIDES[dtype]
    given = rng.integers(low, high + 1, (1, 12, 10, 3)).astype(dtype)
    return q.file.written([x], [scores]), given

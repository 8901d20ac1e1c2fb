"""Products whose next round is copied while a round is multiplied (double buffers), beside the same without: in
float32, and in float16 on tensor cores."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import torch

import renorm
from benchmarks.gpu.contenders import spread
from benchmarks.gpu.deviation import largest
from benchmarks.gpu.place import Place
from benchmarks.gpu.subjects import products, read
from benchmarks.gpu.timing import settle, side_by_side
from renorm.ops.schedules import gpu_products

DTYPES = {"float32": torch.float32, "float16": torch.float16}


@contextmanager
def ahead() -> Generator[None]:
    """Inside, the tiles that are chosen copy one round ahead."""
    chosen = gpu_products.choose, gpu_products.choose_of_warps
    try:
        gpu_products.choose = lambda *args: replace(chosen[0](*args), is_ahead=True)
        gpu_products.choose_of_warps = lambda *args: replace(chosen[1](*args), is_ahead=True)
        yield
    finally:
        gpu_products.choose, gpu_products.choose_of_warps = chosen


@cache
def compiled(place: Place, name: str, dtype: str) -> tuple[Any, Any, list[Any]]:
    """Return the module as it is, that which copies ahead, and the inputs of both, on the CPU."""
    subject = products(place.is_gpu)[name]
    torch.manual_seed(1)
    module = subject.build().to(DTYPES[dtype])
    inputs = [torch.randn(shape).to(DTYPES[dtype]) for shape in subject.shapes]
    model, _ = read(module, tuple(inputs))
    now = renorm.compile(model, target=place.target)
    with ahead():
        return now, renorm.compile(model, target=place.target), inputs


def measured(place: Place, name: str, seconds: float) -> dict[str, Any]:
    """Return milliseconds of both in each dtype, and how far their results are apart, relative to the largest."""
    settle(place)
    found: dict[str, Any] = {"error": 0.0, "ms": {}}
    for dtype in DTYPES:
        *modules, host = compiled(place, name, dtype)
        inputs = [x.to(place.device) for x in host]
        outs = [torch.empty(m.outputs[0].shape, dtype=DTYPES[dtype], device=place.device) for m in modules]
        stream = {"stream": torch.cuda.current_stream().cuda_stream} if place.is_gpu else {}

        def call(m: Any, y: Any, given: list[Any] = inputs, stream: dict[str, Any] = stream) -> Callable[[], Any]:
            return lambda: m.run(*given, out=[y], **stream)

        calls = {
            f"{dtype}{', ahead' if i else ''}": call(m, y) for i, (m, y) in enumerate(zip(modules, outs, strict=True))
        }
        times = side_by_side(place, calls, seconds)
        found["error"] = max(found["error"], largest([outs[1].float()], [outs[0].float()]))
        found["ms"] |= {k: spread(v) for k, v in times.items()}
    return found

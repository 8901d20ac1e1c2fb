"""Estimated times of kernels: per iteration, with weights near and far, in reports."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

import renorm
from renorm import ops, te
from renorm.codegen import llvm
from renorm.codegen.abi import CompiledKernel
from renorm.core.target import Target
from renorm.graph.ir import Graph
from renorm.runtime.module import Module
from renorm.runtime.profile import profile
from renorm.tir.nodes import Kernel

TARGET = Target()


def scaled(rows: int, columns: int, *weights: str) -> Kernel:
    """The kernel of x * w + y, a parallel loop of rows. weights: of its parameters."""
    x, w, y = (te.placeholder((rows, columns), "float32", name=n) for n in "xwy")
    z = te.compute((rows, columns), lambda i, j: x[i, j] * w[i, j] + y[i, j], name="z")
    s = te.create_schedule([z.op])
    s[z].parallel(s[z].op.axis[0])
    _, lanes = s[z].split(s[z].op.axis[1], 8)
    s[z].vectorize(lanes)
    kernel = te.lower(s, [x, w, y, z], name="k")
    return replace(kernel, attrs={"weights": weights})


def compiled(kernel: Kernel) -> CompiledKernel:
    return llvm.compile_kernel(kernel, TARGET)


def test_iterations_add_up_to_kernels() -> None:
    found = compiled(scaled(64, 4096))
    assert found.phases == (64,)
    assert 64 * found.accesses[0].nanoseconds == pytest.approx(found.near.nanoseconds, rel=0.01)
    assert found.nanoseconds == pytest.approx(found.near.nanoseconds, rel=0.01)
    assert found.near == found.far  # it has no weights
    assert found.near.bound


def test_weights_come_from_afar() -> None:
    plain, weighted = compiled(scaled(64, 512)), compiled(scaled(64, 512, "w", "y"))
    assert plain.near.nanoseconds < weighted.near.nanoseconds < weighted.far.nanoseconds < inf
    assert weighted.far.bound.endswith(("cache", "memory"))


def test_kernels_whose_weights_differ_are_not_the_same() -> None:
    keys = {llvm.structure(scaled(8, 64, *weights), TARGET) for weights in ((), ("w",), ("y",))}
    assert len(keys) == 3


def test_what_lies_in_place_is_read_once() -> None:
    kernel = scaled(64, 16384)
    assert compiled(kernel).in_place  # z may be x
    assert compiled(kernel).near.nanoseconds < 64 * 16384 * 4 * 8 / 4  # bytes, at 4 per ns


def test_reports_tell_predicted_times() -> None:
    graph = Graph("network")
    x = graph.input("x", "float32", (1, 16, 20, 20))
    weight = np.ones((16, 16, 3, 3), np.float32)
    graph.outputs = [ops.relu(ops.conv(x, graph.constant(weight, "w"), pads=(1, 1, 1, 1)))]
    module = renorm.compile(graph, threads=1)
    assert isinstance(module, Module)
    assert all(k.predicted > 0 and k.bound for k in module.report.kernels)
    times = profile(module, np.ones((1, 16, 20, 20), np.float32), repeats=2)
    assert [(t.predicted, t.bound) for t in times] == [(k.predicted, k.bound) for k in module.report.kernels]
    told = times[0].to_json()
    assert told["predicted"] == times[0].predicted
    assert told["bound"] == times[0].bound

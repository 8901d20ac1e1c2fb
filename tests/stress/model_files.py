"""Attacks by what model files say: nodes in any order, versions and names that are missing, quantized networks that
saturate, and data that index and divide."""

from __future__ import annotations

import os
import random
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from tests.frontends.onnx_graphs import by_onnxruntime, inputs, network
from tests.frontends.quantized_files import spotter
from tests.frontends.tflite_files import litert
from tests.stress.attack import attack

import renorm
from renorm import ops
from renorm.core.dims import static
from renorm.core.errors import InvalidInput, RenormError
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.passes.sensitivity import Sensitivity

MOST_STEPS = 5  # of outputs of quantized networks; 3 was the most of 780


@attack(limit_s=60, in_gate=10)
def shuffled_nodes(seed: int) -> None:
    """Nodes in another order are the same network, under the same names."""
    model = network(seed)
    expected = interpret.run(renorm.read(model), inputs(seed))
    nodes = [*model.graph.node]
    random.Random(seed).shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    graph = renorm.read(model)
    assert [v.name for v in graph.outputs] == [o.name for o in model.graph.output]
    for a, b in zip(interpret.run(graph, inputs(seed)), expected, strict=True):
        np.testing.assert_array_equal(a, b)


@attack(limit_s=60, in_gate=20)
def files_with_faults(seed: int) -> None:
    """A file with something missing, doubled or renamed is read, or refused by one error that names it."""
    model, draw = network(seed), random.Random(seed)
    for _ in range(draw.randint(1, 4)):
        _damage(model, draw)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "attacked.onnx"
        path.write_bytes(model.SerializeToString())
        refused, graph = None, None
        try:
            graph = renorm.read(path)
        except RenormError as error:
            refused = error
        assert refused is None or path.name in refused.headline, refused
    if graph is not None:
        interpret.run(graph, [np.ones(static(v.shape), v.dtype) for v in graph.inputs])


def _damage(model: onnx.ModelProto, draw: random.Random) -> None:
    graph = model.graph
    node = draw.choice(graph.node) if graph.node else None
    match draw.randint(0, 8):
        case 0:
            del model.opset_import[:]
        case 1 if graph.initializer:
            del graph.initializer[draw.randrange(len(graph.initializer))]
        case 2 if node:
            node.op_type = draw.choice(["LayerNormalization", "Mish", "GroupNormalization", "LSTM", "", "Relu"])
        case 3 if node:
            node.domain = draw.choice(["com.acme", "com.microsoft", "ai.onnx", ""])
        case 4 if node:
            graph.node.append(node)
        case 5 if node and node.input:
            node.input[0] = draw.choice([o for n in graph.node for o in n.output] + ["nowhere", ""])
        case 6 if node:
            node.attribute.append(onnx.helper.make_attribute(draw.choice(["axis", "alpha", "to"]), draw.randint(-9, 9)))
        case 7:
            graph.output.append(graph.output[0])
        case _:
            for stated in model.opset_import:
                stated.version = draw.randint(1, 26)


@attack(limit_s=60, in_gate=10)
def optimized_files(seed: int) -> None:
    """ONNX Runtime runs what is written of a network that it runs, to the same numbers."""
    model = network(seed)
    try:
        expected = by_onnxruntime(model, inputs(seed))
    except Exception:  # it has no kernel of an op at this opset
        return
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "optimized.onnx")
        renorm.optimize(model, path, opt_level=seed % 3)
        found = by_onnxruntime(onnx.load(path), inputs(seed))
    sensitivity = Sensitivity.of(renorm.read(model), inputs(seed))
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        difference = sensitivity.judge(i, a, b)
        assert difference.agrees, difference


@attack(limit_s=60, in_gate=6)
def quantized_networks(seed: int) -> None:
    """Quantized networks that saturate are a few steps from what LiteRT computes in integers."""
    if find_spec("ai_edge_litert") is None:
        return
    rng = np.random.default_rng(seed)
    content, x = spotter(rng, ("int8", "uint8", "int16")[seed % 3], depth=int(rng.integers(1, 9)))
    (theirs,), (ours,) = litert(content, x), interpret.run(renorm.read(content), [x])
    assert np.abs(ours.astype(np.int64) - theirs.astype(np.int64)).max() <= MOST_STEPS


@attack(limit_s=120, in_gate=4)
def hostile_indices_and_divisors(seed: int) -> None:
    """Whatever indices and divisors come, kernels read nothing outside and do not trap; checked ones name the node."""
    rng = np.random.default_rng(seed)
    dtype = str(rng.choice(["int32", "int64"]))
    graph, given = _indexing(rng, dtype)
    plain, checked = (renorm.compile(graph, threads=1, checked=c) for c in (False, True))
    for attempt in range(8):
        arrays = [_hostile(rng, v, is_hostile=attempt > 0) for v in given]
        expected = interpret.run(graph, arrays)
        for a, b in zip(plain.run(*arrays), expected, strict=True):
            np.testing.assert_array_equal(a, b)
        x, i, a, b = arrays
        extent = x.shape[-1]
        is_sound = bool((b != 0).all() and (i >= -extent).all() and (i < extent).all())
        found, said = list[Any](), ""
        try:
            found = checked.run(*arrays)
        except InvalidInput as error:
            said = str(error)
        assert bool(said) != is_sound, said
        assert is_sound or "'picked'" in said or "'shared'" in said, said
        for mine, theirs in zip(found, expected):
            np.testing.assert_array_equal(mine, theirs)


def _indexing(rng: np.random.Generator, dtype: str) -> tuple[Graph, list[Any]]:
    """A graph that indexes its first input by the second one, and divides the third by the fourth."""
    graph = Graph("hostile")
    extents = tuple(int(n) for n in rng.integers(1, 7, 2))
    x, rows = graph.input("x", "float32", extents), int(rng.integers(1, 9))
    shape = {"gather": (rows,), "gather_elements": (extents[0], rows), "gather_nd": (extents[0], 1)}
    kind = str(rng.choice([*shape]))
    i = graph.input("i", "int64" if kind == "gather_nd" else dtype, shape[kind])
    a, b = (graph.input(name, dtype, (rows,)) for name in "ab")
    options = {"gather_nd": {"batch_dims": 1}}.get(kind, {"axis": 1})
    picked = getattr(ops, kind)(x, i, **options, name="picked")
    divided = ops.div(a, b, name="shared")
    graph.outputs = [ops.neg(picked), divided, ops.mod(a, b), ops.mod(a, b, fmod=True)]
    return graph, [x, i, a, b]


def _hostile(rng: np.random.Generator, v: Any, is_hostile: bool) -> Any:
    if v.dtype == "float32":
        return rng.standard_normal(v.shape).astype(np.float32)
    info = np.iinfo(v.dtype)
    ends = [0, -1, info.min, info.max, info.min + 1, 1 << 20]
    if is_hostile and rng.random() < 0.8:
        return rng.choice([*ends, *range(-9, 9)], v.shape).astype(v.dtype)
    return np.zeros(v.shape, v.dtype) if v.name == "i" else rng.integers(1, 9, v.shape).astype(v.dtype)

"""Artifacts for other CPUs: each is refused, or runs; none ends the process by an instruction that is not there."""

from __future__ import annotations

import random
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tests.stress.attack import attack

import renorm
from renorm import ops
from renorm.codegen.llvm import subtarget
from renorm.core.features import FEATURES, NEEDED
from renorm.errors import InvalidArtifact, InvalidTarget
from renorm.graph.ir import Graph
from renorm.targets import find

_names = cache(subtarget._names)


def _text(rng: random.Random) -> str:
    """A target of any name and features, of this LLVM's and a few others; more often than not for this architecture."""
    triple = rng.choice(("", "x86_64-linux-gnu", "x86_64-linux-gnu", "aarch64-linux-gnu"))
    names, features = _names(triple or "x86_64-linux-gnu")
    words = [f"-mtriple={triple}"] if triple else []
    if triple or rng.random() < 0.7:
        words.append(f"-mcpu={rng.choice((*names, 'no-cpu', '64', 'help-me')) if rng.random() < 0.9 else 'x86-64-v3'}")
    known = list(FEATURES["aarch64" if triple.startswith("aarch64") else "x86_64"])
    count = rng.choice((0, 0, 1, 2, 5))
    chosen = [rng.choice("+-") + rng.choice((rng.choice(known), rng.choice(features))) for _ in range(count)]
    return " ".join(["llvm", *words, *([f"-mattr={','.join(chosen)}"] if chosen else [])])


def _network() -> Graph:
    rng = np.random.default_rng(0)

    def array(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    g = Graph("other")
    y = ops.conv(g.input("x", "float32", (1, 16, 9, 9)), array(32, 16, 3, 3), pads=(1,) * 4)
    y = ops.softmax(ops.batch_norm(y, array(32), array(32), array(32), abs(array(32)) + 0.5))
    g.outputs = [ops.exp(ops.cast(ops.cast(y, to="float16"), to="float32"))]
    return g


@attack(limit_s=60, in_gate=2)
def names(seed: int) -> None:
    """Any CPU name with any features is a target or an InvalidTarget, and its code requires what makes its width."""
    rng = random.Random(seed)
    for _ in range(20):
        try:
            target = find(_text(rng))
        except InvalidTarget:
            continue
        arch = target.machine
        assert subtarget.subtarget(target).arch == arch
        assert set(NEEDED[arch]) <= set(subtarget.subtarget(target).features) <= set(FEATURES[arch])
        assert target.vector_bytes < 64 or "avx512f" in subtarget.subtarget(target).features or target.has is None


@attack(limit_s=120, in_gate=2)
def artifacts(seed: int) -> None:
    """An artifact for any CPU is refused here, or gives the numbers that this machine's own code gives."""
    rng = random.Random(seed)
    text = _text(rng)
    try:
        m = renorm.compile(_network(), target=text, threads=1)
    except InvalidTarget:
        return
    x = np.random.default_rng(seed).normal(size=(1, 16, 9, 9)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.renorm"
        m.save(path)
        try:
            loaded = renorm.load(path, threads=1)
        except InvalidArtifact:
            return
        (found,) = loaded.run(x)
    (expected,) = renorm.compile(_network(), threads=1).run(x)
    np.testing.assert_allclose(found, expected, rtol=2e-3, err_msg=text)

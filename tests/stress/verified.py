"""Attacks on verify=True: code that is wrong passes for right, or right code for wrong."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
from tests.driver.faults import COUNTED, FAULTS, faulty
from tests.driver.faults import network as to_be_faulty
from tests.driver.random_networks import network
from tests.passes.folding.cases import numbered
from tests.stress.attack import attack

import renorm
from renorm.core.dtypes import FLOATS
from renorm.driver.cache import SWITCH
from renorm.driver.module import CompiledModule
from renorm.errors import VerificationError

Array = np.ndarray[Any, Any]
Fault = Callable[[np.random.Generator, Array], Array]


@attack(limit_s=240, in_gate=1)
def faults_in_kernels(seed: int) -> None:
    """A kernel that computes something else than its op says is refused, at every dtype and level."""
    rng = np.random.default_rng(seed)
    os.environ[SWITCH] = "0"  # code with a fault is nobody else's
    dtype = str(rng.choice([*FLOATS, "int8", "int32", "int64", "uint8"]))
    table = FAULTS if dtype in FLOATS else COUNTED
    name, level = str(rng.choice([*table])), int(rng.integers(1, 4))
    with faulty(name, table[name]):
        assert is_refused(to_be_faulty(dtype), level), f"{name}, {dtype}, level {level}"


def _channel(rng: np.random.Generator, y: Array) -> Array:
    """One channel half as large again; the largest, for one of zeros would be right."""
    axis = min(1, y.ndim - 1)
    sizes = np.abs(y).max(axis=tuple(a for a in range(y.ndim) if a != axis))
    where = np.expand_dims(np.arange(len(sizes)) == sizes.argmax(), [a for a in range(y.ndim) if a != axis])
    return np.where(where, y * 1.5, y)


def _element(rng: np.random.Generator, y: Array) -> Array:
    """One element is not a number."""
    y = y.copy()
    y.reshape(-1)[rng.integers(y.size)] = np.nan
    return y


OUTPUTS: list[Fault] = [lambda rng, y: y * 0, lambda rng, y: -y, _channel, _element]


@attack(limit_s=240, in_gate=1)
def faults_in_outputs(seed: int) -> None:
    """Of a random network an output that is wrong is refused, but where the report says that it could not be seen."""
    rng, n = np.random.default_rng(seed), network(seed)
    right, fault, level = CompiledModule.evaluate, OUTPUTS[seed % len(OUTPUTS)], int(rng.integers(1, 4))

    def wrong(self: CompiledModule, arrays: Any) -> list[Array]:
        first, *others = right(self, arrays)
        return [fault(np.random.default_rng(seed), first).astype(first.dtype) if first.any() else first, *others]

    shapes = {name: x.shape for name, x in n.feeds.items()}
    m = compiled(n.model, level, shapes)
    if m.evaluate([*n.feeds.values()])[0].any():
        with mock.patch.object(CompiledModule, "evaluate", wrong):
            assert is_refused(n.model, level, shapes), f"{n}\nlevel {level}"


@attack(limit_s=240, in_gate=2)
def honest_networks(seed: int) -> None:
    """A random network is refused at no level, and no rewrite of it is taken back."""
    case = numbered(seed).build()[0] if seed % 2 else None
    model = network(seed).model if case is None else case.model()
    inputs = network(seed).feeds if case is None else case.inputs
    m = compiled(model, 1 + seed % 3, {name: x.shape for name, x in inputs.items()}, verify=True)
    assert not [reason for _, _, reason in m.report.refusals if reason.startswith("reverted")]


def compiled(model: Any, level: int, shapes: Any = None, verify: bool = False) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return renorm.compile(model, opt_level=level, shapes=shapes, verify=verify, threads=1)


def is_refused(model: Any, level: int, shapes: Any = None) -> bool:
    """Or at least said not to have been compared."""
    try:
        m = compiled(model, level, shapes, verify=True)
    except VerificationError:
        return True
    return bool(m.report.verified.unchecked or m.report.verified.outputs[0].unchecked)

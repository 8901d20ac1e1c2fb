"""verify=True beside compiled code that is wrong: every fault is refused, at every dtype and level; and what it cannot
compare, it says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.driver.faults import COUNTED, FAULTS, faulty, network

import renorm
from renorm import ops
from renorm.core.dtypes import FLOATS
from renorm.driver.module import OpenModule
from renorm.errors import VerificationError
from renorm.graph.ir import Graph

LEVELS = (1, 2, 3)
INTEGERS = ("int32", "int8", "uint8", "int64")


def assert_caught(name: str, dtype: str, level: int, small: float = 1.0) -> None:
    g = network(dtype, small)
    table = FAULTS if dtype in FLOATS else COUNTED
    with faulty(name, table[name]), pytest.raises(VerificationError, match="other results than the interpreter"):
        renorm.compile(g, opt_level=level, verify=True, threads=1)


def rotated(table: Iterable[str], dtypes: Sequence[str]) -> list[tuple[str, str, int]]:
    """Each name once, with dtypes and levels in turn."""
    return [(name, dtypes[i % len(dtypes)], LEVELS[i % 3]) for i, name in enumerate(table)]


@pytest.mark.parametrize(
    ("name", "dtype", "level"),
    [*rotated(FAULTS, ("float16", "bfloat16")), *rotated(FAULTS, ("float64", "float32")), *rotated(COUNTED, INTEGERS)],
)
def test_every_fault_is_caught(name: str, dtype: str, level: int) -> None:
    assert_caught(name, dtype, level)


@pytest.mark.exhaustive
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("name", "dtype"), [*product(FAULTS, FLOATS), *product(COUNTED, INTEGERS)], ids=lambda said: str(said)
)
def test_every_fault_is_caught_at_every_dtype_and_level(name: str, dtype: str, level: int) -> None:
    assert_caught(name, dtype, level)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["one wrong channel of 64", "one channel of zeros"])
def test_a_channel_a_hundred_thousandth_as_large_is_seen(name: str, dtype: str) -> None:
    assert_caught(name, dtype, 2, small=1e-5)


@pytest.mark.parametrize(("dtype", "level"), [(d, LEVELS[i % 3]) for i, d in enumerate([*FLOATS, "int32"])])
def test_what_is_right_is_not_refused(dtype: str, level: int) -> None:
    m = renorm.compile(network(dtype, 1e-3), opt_level=level, verify=True, threads=1)
    assert not [r for r in m.report.refusals if "reverted" in r[2]]
    assert m.report.verified is not None
    assert m.report.verified.unchecked == ()
    (output,) = m.report.verified.outputs
    assert output.error <= output.tolerance
    assert output.unchecked == ""


def unchecked(m: Any) -> list[str]:
    assert m.report.verified is not None
    return [*m.report.verified.unchecked, *(o.unchecked for o in m.report.verified.outputs if o.unchecked)]


def test_code_for_another_machine_is_said_not_to_be_compared() -> None:
    g = network("float32")
    m = renorm.compile(g, target="llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1", verify=True)
    assert [said for said in unchecked(m) if "the compiled code, which is for aarch64 neoverse-n1" in said]
    assert "not verified: the compiled code" in str(m.report)
    assert [*m.report.to_json()["verified"]["unchecked"]] == unchecked(m)


def test_what_another_cpu_shares_with_this_one_is_compared() -> None:
    with faulty("zeros", FAULTS["zeros"]), pytest.raises(VerificationError):
        renorm.compile(network("float32"), target="llvm -mcpu=haswell", verify=True)


@pytest.mark.parametrize("name", ["zeros", "one wrong channel of 64", "one wrong row"])
def test_what_stands_beside_external_code_is_compared(name: str) -> None:
    """A convolution of the accelerator reads what the faulty kernel writes; its own numbers are said, not judged."""
    rng, g = np.random.default_rng(1), Graph("partly_external")
    x = g.input("x", "float32", (1, 64, 6, 5))
    w = rng.standard_normal((8, 64, 3, 3)).astype(np.float32)
    g.outputs = [ops.conv(ops.neg(ops.tanh(x)), w, name="outside"), ops.abs(ops.tanh(x))]
    m = renorm.compile(g, target="tandem", verify=True)
    (said,) = unchecked(m)
    assert "outside" in said
    assert m.report.verified is not None
    assert len(m.report.verified.outputs) == 2
    with faulty(name, FAULTS[name], target="tandem"), pytest.raises(VerificationError):
        renorm.compile(g, target="tandem", verify=True)


def test_integers_that_rounding_decides_are_counted() -> None:
    """Every second element is a tie; those that are not are compared."""
    g = Graph("ties")
    x = g.input("x", "float32", (64, 64))
    third = np.float32(1 / 3)
    at_ties = ops.add(
        ops.mul(ops.mul(ops.round(x), third), np.float32(3)), np.tile(np.array([0.5, 0.25], np.float32), 32)
    )
    g.outputs = [ops.cast(ops.floor(ops.add(at_ties, np.float32(0.5))), to="int32")]
    m = renorm.compile(g, verify=True)
    assert m.report.verified is not None
    with faulty("off by one", COUNTED["off by one"], "floor"), pytest.raises(VerificationError):
        renorm.compile(g, verify=True)


def open_network() -> Graph:
    g = Graph("open_to_be_faulty")
    x = g.input("x", "float32", ("n", 64, "h", "w"))
    g.outputs = [ops.add(ops.neg(ops.exp(x)), x)]
    return g


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("level", [0, 3])
def test_every_fault_is_caught_where_extents_are_open(name: str, level: int) -> None:
    with faulty(name, FAULTS[name]), pytest.raises(VerificationError, match=r"where n = \d+, h = \d+, w = \d+"):
        renorm.compile(open_network(), opt_level=level, verify=True, threads=1)


def test_open_code_that_is_right_is_compared_at_several_extents() -> None:
    m = renorm.compile(open_network(), verify=True, threads=1)
    assert isinstance(m, OpenModule), m
    assert m.report.verified is not None
    assert m.report.verified.extents[0] == "n = 1, h = 1, w = 1"
    assert len(m.report.verified.extents) == 3
    (output,) = m.report.verified.outputs
    assert output.error <= output.tolerance
    assert not [r for r in m.report.refusals if "reverted" in r[2]]
    assert "verified where n = 1, h = 1, w = 1" in str(m.report).splitlines()


def test_open_extents_are_probed_within_what_is_stated() -> None:
    m = renorm.compile(open_network(), shapes={"x": ("2..4", 64, "16*h", "16*h")}, verify=True, threads=1)
    assert isinstance(m, OpenModule), m
    assert m.report.verified is not None
    assert m.report.verified.extents == ("n = 2, h = 1", "n = 3, h = 6", "n = 4, h = 7")

"""Symbols get their values from a call's shapes, and from elements that decide shapes."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pytest

from renorm.core.dims import Dim, Shape, Sym, Symbol, maximum
from renorm.core.extents import LONGEST
from renorm.core.inputs import IDLE, element_symbols, fixed_extents, format_elements, given_symbols
from renorm.core.random_inputs import random_inputs
from renorm.errors import InvalidInput


@dataclass
class Given:
    name: str
    shape: Shape
    dtype: str = "float32"
    deciding: tuple[Dim, ...] = ()


A, B, REST = Sym("s.0"), Sym("s.1"), Sym("n.rest")
S = Given("s", (3,), "int64", (A, IDLE, B))


def test_elements_of_few_integers_have_names_of_their_own() -> None:
    inputs = [Given("a/b", (2,), "int64"), Given("a_b", (), "int32"), Given("9", (1,), "uint8"), Given("x", (2,))]
    inputs += [Given("long", (17,), "int64"), Given("none", (0,), "int64"), Given("open", (Sym("n"),), "int64")]
    found = element_symbols(inputs)
    assert {n: list(map(str, e)) for n, e in found.items()} == {
        "a/b": ["a_b.0", "a_b.1"],
        "a_b": ["a_b_.0"],
        "9": ["_9.0"],
    }


def test_shapes_and_elements_tell_symbols() -> None:
    x = Given("x", (maximum(A, B) + REST, 3))
    assert given_symbols([S, x]) == ["n.rest", "s.0", "s.1"]
    shapes = {"x": (7, 3), "s": (3,)}
    assert fixed_extents([S, x], shapes, "net", {"s": [2, -9, 5]}) == {"s.0": 2, "s.1": 5, "n.rest": 2}
    assert format_elements(S.deciding) == " = [s.0, ?, s.1]"


def test_extents_that_are_sums_of_the_same_symbols_tell_each() -> None:
    p, q, r = Sym("p"), Sym("q"), Sym("r")
    x, y = Given("x", (2 * p + q, q + r)), Given("y", (p + q, 3 * p + q + r))
    assert fixed_extents([x, y], {"x": (8, 5), "y": (6, 11)}, "net") == {"p": 2, "q": 4, "r": 1}
    with pytest.raises(InvalidInput, match=re.escape("y, axis 0: 9, but 8 + -1*p is in ..8 where q is 8 + -2*p")):
        fixed_extents([x, y], {"x": (8, 5), "y": (9, 11)}, "net")


@pytest.mark.parametrize(
    ("elements", "rows", "words"),
    [
        ((2, 0, -1), 7, "s, element 2: -1, but s.1 is in 0.."),
        ((2, 0, LONGEST + 1), 7, "s, element 2: 2147483648, but an extent is at most 2147483647"),
        ((2, 0, 8), 7, "x, axis 0: 7, but 8 + n.rest is in 8.. where s.0 is 2, s.1 is 8"),
    ],
)
def test_elements_that_cannot_be_are_named(elements: tuple[int, ...], rows: int, words: str) -> None:
    x = Given("x", (maximum(A, B) + REST, 3))
    with pytest.raises(InvalidInput) as caught:
        fixed_extents([S, x], {"x": (rows, 3), "s": (3,)}, "net", {"s": elements})
    assert words in str(caught.value)


def test_random_elements_are_extents() -> None:
    bounded = Given("s", (2,), "int64", (Sym(Symbol("s.0", 4, 9)), 7))
    made = random_inputs([bounded, Given("x", (Sym("s.0"), 2))])
    assert made["s"].tolist() == [4, 7]
    assert made["x"].shape[1] == 2
    told = random_inputs([bounded, Given("x", (Sym("s.0"), 2))], held={"s": np.array([5, 7])})
    assert told["s"].tolist() == [5, 7]
    assert told["x"].shape == (5, 2)

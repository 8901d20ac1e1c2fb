"""What users state of open extents."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import pytest

from renorm.core import stated as stating
from renorm.core.dims import Dim, Shape, Sym, bounds, symbols_of
from renorm.core.errors import InvalidInput
from renorm.core.inputs import fixed_extents
from renorm.core.stated import split_shape


@dataclass
class Given:
    name: str
    shape: Shape
    dtype: str = "float32"
    deciding: Shape = ()


N, H, W = Sym("N"), Sym("H"), Sym("W")
INPUTS = [Given("x", (N, 3, H, W)), Given("y", (N, 5))]


def stated(**shapes: Any) -> dict[str, Dim]:
    return stating.stated(INPUTS, shapes, None, "net")[0]


def test_names_multiples_and_numbers() -> None:
    h, w = Sym("h"), Sym("w")
    assert stated(x=["n", 3, "16*h", "16*w"]) == {"N": Sym("n"), "H": 16 * h, "W": 16 * w}
    assert stated(x=["?", "3", None, 7]) == {"N": N, "H": H, "W": 7}
    assert stated(x=["n", 3, "s", "s"]) == {"N": Sym("n"), "H": Sym("s"), "W": Sym("s")}
    assert stated(x=[N, 3, "8*?", 4 * w + 1]) == {"N": N, "H": 8 * H, "W": 4 * w + 1}
    assert stated() == {"N": N, "H": H, "W": W}


def test_one_name_that_means_another_extent_than_the_models() -> None:
    assert stated(x=["N", 3, "32*H", "N"]) == {"N": N, "H": 32 * H, "W": N}


def test_ranges_are_those_of_extents() -> None:
    found = stated(x=["1..64", 3, "32*H:30..1290", "w:..8"], y=["n:5..", 5])
    assert {s: bounds(d) for s, d in found.items()} == {"N": (5, 64), "H": (32, 1280), "W": (0, 8)}
    assert symbols_of(found["N"]) == {"n"}
    assert stated(x=["4..4", 3, "?", "?"])["N"] == 4


def test_a_number_tells_a_name() -> None:
    assert stated(x=["n", 3, "n", "?"], y=[4, 5]) == {"N": 4, "H": 4, "W": W}
    assert stated(x=["2*n", 3, "n", "?"], y=[4, 5]) == {"N": 4, "H": 2, "W": W}


def test_facts_of_the_network_stay() -> None:
    inputs = [Given("x", (Sym("N", 2, 9), 16 * Sym("H", 0, 4)))]
    found = stating.stated(inputs, {"x": ["n:..5", "?"]}, None, "net")[0]
    assert {s: bounds(d) for s, d in found.items()} == {"N": (2, 5), "H": (0, 4)}
    assert stating.stated(inputs, {"x": ["?", "32*h"]}, None, "net")[0]["H"] == 2 * Sym("h")


def test_contradictions_are_listed_together() -> None:
    with pytest.raises(InvalidInput) as caught:
        stated(x=["n:1..3", 4, "q!", "16*?"], y=[5, "m"], z=[1])
    for part in ("'z' is not an input", "4 where the model has 3", "'q!' is no extent", "'m' where the model has 5",
                 "5 is not in 1..3"):  # fmt: skip
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("shapes", "problem"),
    [
        ({"x": [1, 3, 2]}, "x has rank 4, not 3"),
        ({"x": ["n", 3, "?", "?"], "y": ["m", 5]}, "N is m here and n elsewhere"),
        ({"x": [4, 3, "?", "?"], "y": [3, 5]}, "N is 3 here and 4 elsewhere"),
        ({"x": ["16*n", 3, "?", "?"], "y": [33, 5]}, "N is 33 here and 16*n elsewhere"),
        ({"x": ["..4", 3, "?", "?"], "y": ["5..", 5]}, "N can be no number: it is in 5..4"),
        ({"x": ["n:9..7", 3, "?", "?"]}, "is no extent"),
        ({"x": ["0*n", 3, "?", "?"]}, "is no extent"),
        ({"x": [-1, 3, "?", "?"]}, "is no extent"),
        ({"x": [True, 3, "?", "?"]}, "is no extent"),
        ({"x": [1.5, 3, "?", "?"]}, "is no extent"),
    ],
)
def test_what_cannot_be(shapes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem.replace("*", r"\*")):
        stated(**shapes)


INTEGERS = [
    Given("rate", (), "int64"),
    Given("axes", (N,), "int32"),
    Given("flag", (1,), "bool"),
    Given("k", (), "float16"),
]


def test_elements_of_inputs() -> None:
    extents, values = stating.stated(INTEGERS, None, {"rate": 16000, "axes": [2, 3], "flag": [True], "k": 0.1}, "net")
    assert extents == {"N": 2}
    assert [(v.dtype.name, v.tolist()) for v in values.values()] == [
        ("int64", 16000), ("int32", [2, 3]), ("bool", [True]), ("float16", float(np.float16(0.1)))
    ]  # fmt: skip


def test_elements_that_do_not_fit() -> None:
    given = {"rate": 1.5, "axes": [2**40], "flag": [2], "k": "a", "z": 1}
    with pytest.raises(InvalidInput) as caught:
        stating.stated(INTEGERS, {"axes": [3]}, given, "net")
    for part in ("'z' is not an input", "rate is int64[]: it cannot be 1.5", "axes is int32[N]: it cannot be [1099",
                 "flag is bool[1]: it cannot be [2]", "k is float16[]: 'a' is no number"):  # fmt: skip
        assert part in str(caught.value)
    with pytest.raises(InvalidInput, match="the value given for flag has rank 1, not 0"):
        stating.stated(INTEGERS, None, {"flag": True}, "net")
    with pytest.raises(InvalidInput, match="N is 3 here and 2 elsewhere"):
        stating.stated(INTEGERS, {"axes": [3]}, {"axes": [1, 2]}, "net")


def test_shapes_of_the_command_line() -> None:
    assert split_shape("?x3x16*hx16*w") == ["?", "3", "16*h", "16*w"]
    assert split_shape("1..64x3x224x224") == ["1..64", "3", "224", "224"]
    assert split_shape("n:1..64,max,3") == ["n:1..64", "max", "3"]
    assert split_shape("") == []
    for wrong in ("1xx3", "nx-1", "a b x", "maxx3"):
        with pytest.raises(ValueError, match="is no shape"):
            split_shape(wrong)


def test_numbers_of_a_call() -> None:
    """Against extents that have facts: multiples, ranges, equal ones, products."""
    n, h = Sym("n", 1, 8), Sym("h")
    inputs = [Given("x", (n, 16 * h, 3)), Given("y", (n * h, 2 * h + 1))]
    sizes = fixed_extents(inputs, {"x": (2, 32, 3), "y": (4, 5)}, "net")
    assert sizes == {"n": 2, "h": 2}
    assert {type(name) for name in sizes} == {str}  # an artifact holds them
    with pytest.raises(InvalidInput) as caught:
        fixed_extents(inputs, {"x": (9, 33, 4), "y": (4, 5, 6)}, "net")
    for part in ("9, but n is in 1..8", "33 is 16*h for no h", "4 where the model has 3", "rank 2, not 3"):
        assert part in str(caught.value)
    with pytest.raises(InvalidInput, match=r"5 where h\*n is 4"):
        fixed_extents(inputs, {"x": (2, 32, 3), "y": (5, 5)}, "net")
    with pytest.raises(InvalidInput, match="h is 3 here and 2 elsewhere"):
        fixed_extents(inputs, {"x": (2, 32, 3), "y": (4, 7)}, "net")
    assert bounds(n * h) == (0, inf)

"""Dataclasses as JSON and back: what was written is read, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from renorm.core import records


@dataclass(frozen=True)
class Inner:
    pairs: tuple[tuple[int, int], ...]
    word: str | None = None


@dataclass(frozen=True)
class Cell:
    is_row = True

    row: int
    column: int


@dataclass(frozen=True)
class Outer:
    inner: Inner
    several: tuple[Inner, ...]
    share: float
    is_it: bool
    cell: Cell
    extents: Mapping[str, int]
    names: Sequence[str]
    code: bytes = b""


OUTER = Outer(
    Inner(((1, 2), (3, -4)), "w"), (Inner(()), Inner(((0, 0),))), 1.0, True, Cell(1, 2), {"a": 3}, ("b",), b"code"
)


def written() -> Any:
    return json.loads(json.dumps(records.plain(OUTER, without=("code",))))


def test_what_was_written_is_read() -> None:
    assert records.record(Outer, written(), code=b"code") == OUTER
    assert written()["cell"] == [1, 2]
    assert type(records.record(Outer, {**written(), "share": 1}, code=b"").share) is float


@pytest.mark.parametrize(
    "change",
    [
        {"share": "1"},
        {"share": True},
        {"is_it": 1},
        {"inner": None},
        {"inner": [[1, 2]]},
        {"inner": {"pairs": [[1]], "word": None}},
        {"inner": {"pairs": [[1, 2.0]], "word": None}},
        {"inner": {"pairs": [], "word": 3}},
        {"inner": {"pairs": []}},
        {"several": {}},
        {"more": 1},
        {"inner": {"pairs": [[1, 1 << 63]], "word": None}},
        {"share": 1 << 1024},
        {"inner": {"pairs": [], "word": "\ud800"}},
        {"extents": {"a": 1.5}},
        {"extents": []},
        {"cell": {"row": 1, "column": 2}},
        {"cell": [1]},
        {"cell": [1, "2"]},
        {"names": "ab"},
    ],
)
def test_nothing_else_is(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is not|does not have|surrogates"):
        records.record(Outer, {**written(), **change}, code=b"")


def test_what_has_no_form_is_not_written() -> None:
    for value in (OUTER, np.float32(1), [1], {1: 2}, 1 << 63):
        with pytest.raises(TypeError, match="no form in JSON"):
            records.plain(value)


def test_a_fault_is_told_with_its_place_and_briefly() -> None:
    inner = {"pairs": [[1, 2], [3] * 10_000], "word": None}
    with pytest.raises(ValueError, match=r"several: pairs: \[3, 3, .* is not a list of 2") as error:
        records.record(Outer, {**written(), "several": [inner]}, code=b"")
    assert len(str(error.value)) < 100

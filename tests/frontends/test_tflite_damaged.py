"""Refuse damaged TensorFlow Lite files that were a foreign exception, or took more memory than there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.frontends import fuzz_outcome
from tests.frontends.tflite_files import File

import renorm
from renorm import Limits
from renorm.errors import InvalidModel, LimitExceeded

WIDE = 1 << 28


def _iota(file: File) -> None:
    file.tensor("y", (WIDE, 2), "int32")
    file.operator("STABLEHLO_IOTA", [], ["y"], "StablehloIotaOptions", iota_dimension=0)


def _diagonal(file: File) -> None:
    file.tensor("x", (2, WIDE))
    file.tensor("y", (2, WIDE, WIDE))
    file.operator("MATRIX_DIAG", ["x"], ["y"], "MatrixDiagOptions")


def _set_diagonal(file: File) -> None:
    file.tensor("x", (3, WIDE))
    file.tensor("d", (3,))
    file.tensor("y", (3, WIDE))
    file.operator("MATRIX_SET_DIAG", ["x", "d"], ["y"], "MatrixSetDiagOptions")


def _update(file: File) -> None:
    file.tensor("x", (WIDE, 3))
    file.tensor("u", (1, 2))
    file.tensor("at", (2,), "int32")
    file.tensor("y", (WIDE, 3))
    file.operator("DYNAMIC_UPDATE_SLICE", ["x", "u", "at"], ["y"])


@pytest.mark.parametrize("made", [_iota, _diagonal, _set_diagonal, _update])
def test_constants_that_operators_ask_for_and_files_do_not_hold(made: Any) -> None:
    """A place along each axis, or a diagonal, of extents that a file of a few bytes states."""
    file = File()
    made(file)
    given = [name for name in file.tables if name != "y"]
    with pytest.raises(LimitExceeded, match=r"elements|bytes"):
        renorm.read(file.written(given, ["y"]), limits=Limits(elements=1 << 26, bytes=1 << 40))


@pytest.mark.parametrize("fields", [{"num_bits": 1 << 30}, {"num_bits": 0}, {"num_bits": -3}, {"min": 2.0, "max": 2.0}])
def test_bits_and_ends_that_are_none(fields: dict[str, Any]) -> None:
    file = File()
    file.tensor("x", (2, 3))
    file.tensor("y", (2, 3))
    stated = {"min": -1.0, "max": 1.0, "num_bits": 8, **fields}
    file.operator("FAKE_QUANT", ["x"], ["y"], "FakeQuantOptions", **stated)
    with pytest.raises(InvalidModel, match="expected 2 to 16 bits, min < max"):
        renorm.read(file.written(["x"], ["y"]))


def test_an_operator_that_reads_a_variable_beside_what_it_moves(tmp_path: Path) -> None:
    file = File()
    file.tensor("x", (2, 3))
    file.tensor("v", (2, 3))
    file.tables["v"]["is_variable"] = True
    file.tensor("y", (2, 3))
    file.operator("MAXIMUM", ["x", "v"], ["y"], "MaximumMinimumOptions")
    path = tmp_path / "m.tflite"
    path.write_bytes(file.written(["x"], ["y"]))
    assert fuzz_outcome.outcome(path, is_computed=True) == fuzz_outcome.Outcome("read")


def test_bytes_of_variables_are_counted() -> None:
    file = File()
    file.tensor("x", (2, 3))
    file.tensor("v", (2, 3))
    file.tables["v"]["is_variable"] = True
    file.tensor("y", (2, 3))
    file.operator("ADD", ["x", "v"], ["y"], "AddOptions")
    content = file.written(["x"], ["y"])
    with pytest.raises(LimitExceeded, match="bytes: 24, at most 23"):
        renorm.read(content, limits=Limits(bytes=23))

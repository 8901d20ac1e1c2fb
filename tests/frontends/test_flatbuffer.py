"""Tables come back as they were written, other tools read them, and damaged files give only renorm's own errors."""

from __future__ import annotations

import random
import struct
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.frontends.mutations import any_bytes, encoding, tables
from tests.frontends.test_tflite_reader import CASES, build
from tests.frontends.tflite_files import File
from tests.shared_files import shared

import renorm
from renorm.errors import InvalidModel, RenormError
from renorm.frontends.tflite.flatbuffer import Table, decode, encode
from renorm.frontends.tflite.schema import IDENTIFIERS, SCALARS, schema

MODEL = "models/tiny_resnet8.tflite"


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Table):
        return a.name == b.name and all(same(a[f], b[f]) for f in {*a.fields, *b.fields})
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    return a == b


def small() -> bytes:
    file = File()
    x, y = file.tensor("x", (2, -1, 5, 3)), file.tensor("y", (2, 4, 5, 4))
    w = file.constant("w", np.ones((4, 3, 3, 3), np.float32))
    b = file.constant("b", np.zeros(4, np.int32), scale=([0.5, 1, 2, 3], [0, 0, 0, 0], 0))
    file.operator("CONV_2D", [x, w, b], [y], "Conv2DOptions", stride_h=1, stride_w=1, fused_activation_function=1)
    return file.written([x], [y])


@pytest.mark.parametrize("identifier", IDENTIFIERS)
def test_schema_is_complete(identifier: bytes):
    """Every type that a field names is a scalar, a table or a union whose members are tables."""
    found = schema(identifier)
    for table, fields in found.tables.items():
        for f in fields:
            if f is None or f.type in SCALARS or f.type == "string":
                continue
            assert f.type in (found.unions if f.is_union else found.tables), (table, f)
    for union in found.unions.values():
        assert all(member in found.tables for member in union.values())


def test_numbers_that_other_tools_use():
    circle, lite = schema(b"CIR0"), schema(b"TFL3")
    codes = circle.enums["BuiltinOperator"]
    assert (codes["INSTANCE_NORM"], codes["RMS_NORM"], codes["ROPE"], codes["TRANSPOSE_CONV"]) == (-2, -6, -7, 67)
    assert "ROPE" not in lite.enums["BuiltinOperator"]
    assert circle.unions["BuiltinOptions"][254] == "InstanceNormOptions"
    assert lite.unions["BuiltinOptions"][126] == "RightShiftOptions"


def test_written_tables_are_read_back():
    identifier, model = decode(memoryview(small()), "small")
    assert identifier == b"TFL3"
    conv = model["subgraphs"][0]["operators"][0]["builtin_options"]
    assert (conv["stride_h"], conv["fused_activation_function"], conv["dilation_h_factor"]) == (1, 1, 1)
    assert model["subgraphs"][0]["tensors"][0].items("shape_signature") == [2, -1, 5, 3]
    assert same(model, decode(memoryview(encode(identifier, model, "again")), "again")[1])


def test_elements_of_tensors_are_aligned():
    content = small()
    _, model = decode(memoryview(content), "small")
    start = np.frombuffer(content, np.uint8).__array_interface__["data"][0]
    for buffer in model["buffers"][1:]:
        assert (buffer["data"].__array_interface__["data"][0] - start) % 16 == 0


def test_a_real_file_is_the_same_after_a_round_trip():
    identifier, model = decode(memoryview(shared(MODEL).read_bytes()), MODEL)
    assert same(model, decode(memoryview(encode(identifier, model, "")), "")[1])


def test_a_vtable_is_shared_and_absent_fields_cost_nothing():
    table = Table("Model", schema(b"TFL3"), {"buffers": [Table("Buffer", schema(b"TFL3")) for _ in range(1000)]})
    assert len(encode(b"TFL3", table, "")) < 1000 * (4 + 4) + 100


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "identifier"),
        (b"ABCDEFGHIJKL", "b'EFGH'"),
        (b"\x00\x00\x00\x00TFL3", "leads nowhere"),
        (struct.pack("<I4sIIII", 8, b"TFL3", 2**31, 0, 0, 0), "damaged at byte"),
    ],
)
def test_what_is_no_file_is_refused(content: bytes, words: str):
    with pytest.raises(InvalidModel, match=words):
        decode(memoryview(content), "file")


def _read(content: bytes) -> bool:
    """Whether a mutated file is a model; any error but renorm's own is a failure of the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            renorm.read(content)
        except RenormError:
            return False
    return True


def test_damaged_files_give_errors_of_renorm_only():
    chance, content = random.Random(3), small()
    read = [_read(any_bytes(content, chance)) for _ in range(3000)]
    assert 50 < sum(read) < 2950  # some mutations change nothing that matters


def _damaged(count: int, seed: int) -> Iterator[bytes]:
    """Files of all operators after a mutation."""
    chance, files = random.Random(seed), [build(case)[0] for case in CASES]
    for _ in range(count):
        yield chance.choice((tables, encoding))(chance.choice(files), chance)


def test_files_that_say_what_cannot_be_give_errors_of_renorm_only():
    """Indices, extents, numbers of operators, quantization; offsets, vtables, lengths: see mutations.py."""
    assert 400 < sum(map(_read, _damaged(3000, 11))) < 2600


@pytest.mark.slow
def test_a_damaged_network_gives_errors_of_renorm_only():
    chance, content = random.Random(4), shared(MODEL).read_bytes()
    _, model = decode(memoryview(content), "")
    for buffer in model["buffers"]:  # mutations are to meet the tables, not the weights
        if buffer["data"] is not None and buffer["data"].size > 64:
            buffer["data"] = None
    content = encode(b"TFL3", model, "")
    for _ in range(1500):
        _read(any_bytes(content, chance))

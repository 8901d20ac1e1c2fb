"""Objects in memory: relocations of both architectures, protection, refusal of what is damaged or needs more."""

from __future__ import annotations

import ctypes
import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from renorm.codegen.llvm.walk import compile_walker
from renorm.core.target import Target
from renorm.errors import InvalidArtifact, InvalidTarget
from renorm.runtime import elf, layout, loader


def function(image, index, name, result, *arguments):
    return ctypes.CFUNCTYPE(result, *arguments)(image.address(index, name))


def maps(address: int) -> str:
    """Protection of the page at an address."""
    with open("/proc/self/maps") as lines:
        for line in lines:
            span, rights, *_ = line.split()
            first, end = (int(x, 16) for x in span.split("-"))
            if first <= address < end:
                return rights
    raise AssertionError(f"{address:x} is not mapped")


def test_objects_run_where_they_are_loaded(assemble, table_text):
    image = loader.load([assemble(table_text)] * 3, "x86_64")
    word = ctypes.c_int64
    for i in range(3):
        assert [function(image, i, "fourfold", word, word)(k) for k in range(5)] == [44, 88, 132, 176, 220]
        assert [function(image, i, "lane", ctypes.c_float, word)(k) for k in range(4)] == [1.5, 2.5, 3.5, 4.5]
        out = (ctypes.c_int64 * 1)()
        choose = function(image, i, "choose", word, word, ctypes.c_void_p)
        assert [choose(k, ctypes.addressof(out)) for k in range(-1, 6)] == [-1, 100, 201, 302, 403, -504, -1]
        where = function(image, i, "where", ctypes.c_void_p)()
        assert where % 64 == 0
        assert maps(where) == "r--p"
        assert maps(image.address(i, "lane")) == "r-xp"


def test_no_page_is_writable_and_executable(assemble, table_text):
    def both() -> list[str]:
        with open("/proc/self/maps") as lines:
            return [line for line in lines if " rwx" in line]

    before = both()  # ctypes has one for callbacks
    images = [loader.load([assemble(table_text)], "x86_64"), loader.load([compile_walker(Target())], "x86_64")]
    assert both() == before
    assert images


def test_local_symbols_are_not_found(assemble, table_text):
    image = loader.load([assemble(table_text)], "x86_64")
    with pytest.raises(InvalidArtifact, match=r"does not define pick\n  it defines choose, fourfold"):
        image.address(0, "pick")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "declare i64 @f(i64)\ndefine i64 @g(i64 %x) {\n %y = call i64 @f(i64 %x)\n ret i64 %y\n}",
            "needs symbol 'f'",
        ),
        ("@v = global i32 3\ndefine ptr @f() {\n ret ptr @v\n}", "section .data is writable"),
        ("@v = global i32 0\ndefine ptr @f() {\n ret ptr @v\n}", "section .bss is writable"),
        ("@v = thread_local global i32 7\ndefine ptr @f() {\n ret ptr @v\n}", "writable"),
    ],
)
def test_what_needs_more_than_code_and_constants_is_refused(assemble, text, message):
    with pytest.raises(InvalidArtifact, match=message):
        loader.load([assemble(text)], "x86_64")


def test_object_for_another_machine(assemble, table_text):
    with pytest.raises(InvalidArtifact, match="object 1 is for aarch64, expected x86_64"):
        loader.load([assemble(table_text), assemble(table_text, "aarch64")], "x86_64")
    with pytest.raises(InvalidTarget, match="known: x86_64, aarch64"):
        compile_walker(Target(triple="riscv64-unknown-linux-gnu"))


def test_walker_is_self_contained():
    for arch in ("x86_64", "aarch64"):
        o = elf.read(compile_walker(Target(triple=f"{arch}-unknown-linux-gnu")))
        assert o.arch == arch
        assert not o.relocations
        assert {s.name for s in o.symbols if s.is_global} == {layout.RUN, layout.WORK, layout.STOP_WORK, layout.JOIN}


# ---- aarch64, read back instruction by instruction ----


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def page_of(word: int, at: int) -> int:
    """What ADRP at an address computes."""
    return (at & ~0xFFF) + (signed((word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3, 21) << 12)


def test_aarch64_addresses(assemble, table_text):
    data = assemble(table_text, "aarch64")
    image = loader.load([data, data], "aarch64")
    o = elf.read(data)
    assert {r.type for r in o.relocations} >= {275, 277}
    for i in range(2):
        # each function's code, from its symbol on
        def words(name, image=image, i=i):
            at = image.address(i, name)
            return at, struct.unpack("<16I", ctypes.string_at(at, 64))

        # where: adrp x0, page; add x0, x0, offset: the constants are what they are in the object
        at, (adrp, add, *_) = words("where")
        assert adrp & 0x9F000000 == 0x90000000
        assert add & 0xFFC00000 == 0x91000000
        where = page_of(adrp, at) + (add >> 10 & 0xFFF)
        assert where % 64 == 0
        np.testing.assert_array_equal(np.frombuffer(ctypes.string_at(where, 16), "<f4"), [1.5, 2.5, 3.5, 4.5])
        assert maps(where) == "r--p"


def test_aarch64_loads_and_calls(assemble):
    # two functions in sections of their own, so that the call needs a relocation; a load whose offset is scaled by 8
    text = """
define internal i64 @low(i64 %k) noinline section ".text.low" {
  %v = load i64, ptr getelementptr (i8, ptr @cells, i64 8)
  %w = add i64 %v, %k
  ret i64 %w
}
@cells = internal constant [2 x i64] [i64 1, i64 1234567], align 16
define i64 @high(i64 %k) section ".text.high" {
  %v = call i64 @low(i64 %k)
  %w = add i64 %v, 1
  ret i64 %w
}
define ptr @low_at() section ".text.low" {
  ret ptr @low
}
"""
    data = assemble(text, "aarch64")
    types = {r.type for r in elf.read(data).relocations}
    assert {283, 275, 286} <= types
    image = loader.load([data], "aarch64")
    at = image.address(0, "high")
    code = struct.unpack("<8I", ctypes.string_at(at, 32))
    ((index, call),) = [(k, w) for k, w in enumerate(code) if w >> 26 == 0b100101]
    low = at + 4 * index + 4 * signed(call & 0x3FFFFFF, 26)
    adrp, load = next(
        (a, b) for a, b in zip(*(struct.unpack("<4I", ctypes.string_at(low + k, 16)) for k in (0, 4))) if a >> 31
    )
    assert load & 0xFFC00000 == 0xF9400000  # ldr x, [x, offset * 8]
    cell = page_of(adrp, low) + (load >> 10 & 0xFFF) * 8
    assert struct.unpack("<q", ctypes.string_at(cell, 8)) == (1234567,)


# ---- damage ----


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_objects_are_refused_or_load(data, assemble, table_text):
    damaged = bytearray(assemble(table_text))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.one_of(st.just(len(damaged)), st.integers(0, len(damaged))))
    with suppress(InvalidArtifact):  # any other exception is a fault
        loader.load([bytes(damaged[:end])], "x86_64")

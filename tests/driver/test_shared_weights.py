"""Modules of one network for several extents hold a large constant once where their kernels read it in the same form,
and none that no module reads."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import renorm
from renorm import ops
from renorm.driver import background
from renorm.driver import compile as compiling
from renorm.driver.module import SPECIALIZATIONS, OpenModule, SpecializingModule
from renorm.driver.weights import LARGE, SharedConstants
from renorm.errors import InvalidSchedule
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.runtime.module import Module

Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.usefixtures("kept_code")


def image(channels: int = 48) -> Graph:
    """Convolutions of planes of any size: whether they are Winograd's, and of which tiles, depends on it."""
    rng = np.random.default_rng(3)
    g = Graph("image")
    x = g.input("x", "float32", ("n", 3, "h", "w"))
    weights = [rng.normal(size=(channels, c, 3, 3)).astype(np.float32) * 0.1 for c in (3, channels, channels)]
    for w in weights:
        x = ops.relu(ops.conv(x, w, pads=(1,) * 4))
    g.outputs = [x]
    return g


def images(n: int, h: int, w: int) -> Array:
    return np.random.default_rng(n + h + w).normal(size=(n, 3, h, w)).astype(np.float32)


def held(modules: Iterable[Module]) -> dict[int, Array]:
    """Return the memory of weights of modules, each once: by its address."""
    return {a.ctypes.data: a for m in modules for a in m._weights.arrays if a.nbytes}


def nbytes(modules: Iterable[Module]) -> int:
    return sum(a.nbytes for a in held(modules).values())


def large(m: Module) -> list[bytes]:
    """Return the large constants of a module."""
    data = m._weights.tobytes()
    return [data[w.offset : w.offset + w.nbytes] for w in m.program.weights if w.nbytes >= LARGE]


def check(m: Any, g: Graph, x: Array) -> None:
    for ours, theirs in zip(m.run(x), interpret.run(g, [x]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_what_is_equal_is_held_once(precision: str) -> None:
    g = image()
    m = renorm.compile(g, precision=precision, threads=1)
    assert isinstance(m, OpenModule)
    shapes = [(1, 40, 40), (2, 40, 40), (1, 5, 6), (3, 64, 64)]
    modules: list[Module] = [m, *(m.specialized(x=images(*s).shape) for s in shapes)]
    of_all = [part for one in modules for part in large(one)]
    once = sum(map(len, dict.fromkeys(of_all)))
    assert once < sum(map(len, of_all))
    small = sum(one.program.weight_bytes - sum(map(len, large(one))) for one in modules)
    assert nbytes(modules) <= once + small + 64 * len(of_all)
    for s, one in zip(shapes, modules[1:]):
        check(one, g, images(*s))
        check(m, g, images(*s))


def test_what_is_read_in_another_form_goes_with_the_module_that_reads_it() -> None:
    g = image()
    m = renorm.compile(g, threads=1)
    assert isinstance(m, OpenModule)
    common, found = held([m]), list[bool]()
    for s in ((1, 40, 40), (1, 5, 6), (1, 3, 90)):
        one = m._specializations._specialize(dict(zip("nhw", s)))  # of which nobody else knows
        check(one, g, images(*s))
        arrays = [a for at, a in held([one]).items() if at not in common]
        found.append(any(a.nbytes >= LARGE for a in arrays))
        own = list(map(weakref.ref, arrays))
        del arrays
        del one
        gc.collect()
        assert not [a for a in own if a() is not None]
    assert any(found), "no shape has large constants of its own, so that none could go"
    assert held([m]).keys() == common.keys()


def test_a_module_for_one_shape_may_outlive_the_open_one() -> None:
    g = image()
    m = renorm.compile(g, threads=1)
    assert isinstance(m, OpenModule)
    one = m.specialized(x=(1, 3, 40, 40))
    mine, before = held([one]), {at: weakref.ref(a) for at, a in held([m]).items()}
    del m
    gc.collect()
    assert {at for at, a in before.items() if a() is not None} <= mine.keys()
    check(one, g, images(1, 40, 40))


def test_specialisations_that_take_turns_hold_what_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold one copy for the latest few modules, and none for those that went, where no kernel is open."""

    def closed(*args: Any) -> Any:
        raise InvalidSchedule("closed")

    monkeypatch.setattr(compiling, "_opened", closed)
    g = image()
    m = renorm.compile(g, precision="exact", threads=1)
    assert isinstance(m, SpecializingModule)
    refs = list[weakref.ref[Array]]()
    for n in range(1, SPECIALIZATIONS + 4):
        check(m, g, images(n, 12, 12))
        refs += [weakref.ref(a) for a in m.specialized(x=(n, 3, 12, 12))._weights.arrays]
    modules = m._made.all()
    assert len(modules) == SPECIALIZATIONS
    one = modules[-1]
    large_bytes = sum(map(len, large(one)))
    assert large_bytes > 0.9 * one.program.weight_bytes
    assert nbytes(modules) <= 2 * large_bytes + SPECIALIZATIONS * (one.program.weight_bytes - large_bytes)
    gc.collect()
    alive = {a.ctypes.data for ref in refs if (a := ref()) is not None}
    assert alive == {a.ctypes.data for one in modules for a in one._weights.arrays}


def test_modules_made_in_the_background_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "OFTEN", 2)
    g = image()
    m = renorm.compile(g, precision="exact", specializations=2, threads=1)
    assert isinstance(m, OpenModule)
    for n in (2, 3):
        for _ in range(4):
            check(m, g, images(n, 24, 24))
    assert m.wait_specialized(120)
    made = [m.serving(images(n, 24, 24)) for n in (2, 3)]
    assert m not in made
    assert nbytes([m, *made]) < 1.5 * m.program.weight_bytes
    for n in (2, 3):
        check(m, g, images(n, 24, 24))


def test_a_module_whose_weights_lie_apart_is_saved_whole(tmp_path: Path) -> None:
    g, x = image(), images(1, 24, 24)
    m = renorm.compile(g, threads=1)
    assert isinstance(m, OpenModule)
    one, alone = m.specialized(x=x.shape), renorm.compile(g, shapes={"x": x.shape}, threads=1)
    assert isinstance(alone, Module)
    assert len(one._weights.arrays) > 1 == len(alone._weights.arrays)
    assert one._weights.tobytes() == alone._weights.tobytes()
    expected = one.run(x)[0]
    np.testing.assert_array_equal(expected, alone.run(x)[0])
    for made in (m, one):
        made.save(tmp_path / "m.renorm")
        loaded: Any = renorm.load(tmp_path / "m.renorm")
        assert loaded._weights.tobytes() == made._weights.tobytes()
        np.testing.assert_array_equal(loaded.run(x)[0], made.run(x)[0])
    for name, value in one.graph.constants.items():
        np.testing.assert_array_equal(value.data, alone.graph.constants[name].data)
    np.testing.assert_array_equal(Module(*one.parts(), threads=1).run(x)[0], expected)


def test_equal_bytes_decide() -> None:
    """Not where they are looked for, which may be alike: weights full of zeros."""
    shared, zeros = SharedConstants(), np.zeros(LARGE, np.uint8)
    other = zeros.copy()
    other[8 * 9 + 3] = 1
    assert shared.kept(zeros) is zeros
    assert shared.kept(other) is other
    assert shared.kept(zeros.copy()) is zeros
    assert shared.kept(zeros[: LARGE // 2]).nbytes == LARGE // 2
    assert shared.nbytes == LARGE
    nans = np.full(LARGE, 0xFF, np.uint8)
    assert shared.kept(nans) is nans
    assert shared.kept(nans.copy()) is nans
    del nans, zeros
    gc.collect()
    assert shared.nbytes == 0


def test_threads_that_share() -> None:
    shared, found = SharedConstants(), list[Array]()
    source = np.random.default_rng(0).integers(0, 256, LARGE, np.uint8)

    def make() -> None:
        for _ in range(200):
            found.append(shared.kept(source.copy()))
            assert np.array_equal(found[-1], source)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len({id(a) for a in found}) <= len(threads)


RESIDENT = """
import numpy as np, renorm
from renorm import ops
from renorm.graph.ir import Graph

g = Graph("wide")
x = g.input("x", "float32", ("n", 2048))
for i in range(3):
    x = ops.relu(ops.gemm(x, np.random.default_rng(i).normal(size=(2048, 2048)).astype(np.float32) * 0.02))
g.outputs = [x]

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

m = renorm.compile(g, threads=1)
m.run(np.ones((3, 2048), np.float32))
m.specialized(x=(2, 2048))  # what the compiler needs is there
before = resident()
for n in range(40, 46):
    m.specialized(x=(n, 2048)).run(np.ones((n, 2048), np.float32))
print(resident() - before, m.program.weight_bytes)
"""


def test_a_process_holds_weights_once() -> None:
    done = subprocess.run([sys.executable, "-c", RESIDENT], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    grown, weights = map(int, done.stdout.split())
    assert weights >= 48 << 20
    assert grown < 2.5 * weights  # six copies, if each had its own

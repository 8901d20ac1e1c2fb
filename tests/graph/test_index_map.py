"""Index maps of random chains of steps, against NumPy doing the same to an array of channel numbers."""

from typing import Any

import numpy as np
import pytest

from renorm.core.dims import Sym
from renorm.graph.index_map import Joined, Moved, Padded, Permuted, Regrouped, Reindexing, Repeated, Strided

Array = np.ndarray[Any, Any]


def factors(size: int, rng: np.random.Generator) -> tuple[int, ...]:
    """A random shape of so many elements."""
    found = [1] if rng.random() < 0.3 else []
    for prime in (2, 3, 5):
        while size % prime == 0:
            size //= prime
            if found and rng.random() < 0.6:
                found[-1] *= prime
            else:
                found.append(prime)
    return (*found, size) if size > 1 else tuple(found)


def drawn(shape: tuple[int, ...], rng: np.random.Generator) -> tuple[Reindexing, Any]:
    """A step, and what NumPy does; -1 stands for elements from elsewhere."""
    kind = rng.integers(5)
    if kind == 0:
        to = factors(int(np.prod(shape)), rng)
        return Regrouped(to), lambda x: x.reshape(to)
    if kind == 1:
        order = tuple(int(a) for a in rng.permutation(len(shape)))
        return Permuted(order), lambda x: x.transpose(order)
    if kind == 2:
        slices = tuple(slice(None, None, int(rng.choice([1, 1, -1, 2]))) for _ in shape)
        return Strided(slices), lambda x: x[slices]
    if kind == 3:
        mode = str(rng.choice(["constant", "edge", "wrap"]))
        pads = tuple((int(rng.integers(2)), int(rng.integers(2))) for _ in shape)
        more: dict[str, Any] = {"constant_values": -1} if mode == "constant" else {}
        return Padded(pads, mode=mode), lambda x: np.pad(x, pads, mode, **more) if x.ndim else x  # type: ignore[call-overload]
    times = tuple(int(rng.choice([1, 1, 2])) for _ in shape)
    return Repeated(times), lambda x: np.tile(x, times)


def relation(channels: Array, axis: int) -> set[tuple[int, int]]:
    """All (position along an axis, channel) of elements."""
    at = np.moveaxis(channels, axis, 0)
    return {(i, int(c)) for i, each in enumerate(at) for c in np.unique(each) if c >= 0}


@pytest.mark.parametrize("seed", range(200))
def test_channels_are_those_of_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(rng.choice([1, 2, 3, 4, 6])) for _ in range(rng.integers(1, 4)))
    chain, functions = list[Reindexing](), list[Any]()
    for _ in range(rng.integers(1, 5)):
        now = Moved(np.zeros(shape), *chain).shape
        step, f = drawn(now, rng)
        chain, functions = [*chain, step], [*functions, f]
    moved = Moved(np.zeros(shape), *chain)
    for axis, extent in enumerate(shape):
        channels = np.broadcast_to(
            np.arange(extent).reshape([-1 if a == axis else 1 for a in range(len(shape))]), shape
        )
        for f in functions:
            channels = f(channels)
        assert channels.shape == moved.shape
        carry = moved.carry(0, axis)
        if carry is not None:
            assert {(int(a), int(b)) for a, b in carry.pairs} == relation(channels, carry.axis)


def image(*shape: Any) -> Any:
    """Something that has a shape."""
    return type("Image", (), {"shape": shape})()


def test_a_symbolic_batch_is_in_no_way() -> None:
    n, h = Sym("N"), Sym("H")
    flat = Moved(image(n, 6, h, 4), Regrouped((n, 6, h * 4)))
    carry = flat.carry(0, 1)
    assert carry is not None
    assert (carry.axis, carry.pairs.tolist()) == (1, [[i, i] for i in range(6)])
    assert flat.carry(0, 2) is None
    assert flat.carry(0, 3) is None
    assert Moved(image(n, 6), Regrouped((n * 6,))).carry(0, 1) is None


def test_groups_of_channels_are_followed_where_most_differ() -> None:
    carry = Moved(image(5, 6), Regrouped((5, 3, 2))).carry(0, 1)
    assert carry is not None
    assert carry.axis == 1
    assert sorted(map(tuple, carry.pairs.tolist())) == [(0, 0), (0, 1), (1, 2), (1, 3), (2, 4), (2, 5)]


def test_a_part_of_unknown_place_carries_other_axes_alone() -> None:
    joined = Joined(1, [image(2, Sym("C")), image(2, 3)], (2, Sym("C") + 3))
    assert joined.carry(1, 1) is None
    carry = joined.carry(1, 0)
    assert carry is not None
    assert carry.pairs.tolist() == [[0, 0], [1, 1]]

"""Regions against every byte: where boxes lie, what lies inside of what, what shares bytes."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from renorm import ops
from renorm.graph.ir import Graph, Within
from renorm.graph.strided_region import StridedRegion, root


def elements(p: StridedRegion) -> list[int]:
    """Every byte, in order."""
    return [begin + byte for begin in p.begins for byte in range(p.run)]


@st.composite
def regions(draw: st.DrawFn, least: int = 0) -> StridedRegion:
    run, rows = draw(st.integers(least, 6)), draw(st.integers(1, 4))
    return StridedRegion.of(draw(st.integers(0, 12)), run, rows, run + draw(st.integers(0, 5)))


@st.composite
def boxes(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    ends = draw(st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3).map(sorted), max_size=4))
    return [end + 1 for *_, end in ends], [b - a + 1 for a, b, _ in ends], [a for a, *_ in ends]


@given(boxes(), st.sampled_from([1, 4]))
def test_boxes(box: tuple[list[int], list[int], list[int]], itemsize: int) -> None:
    whole, part, starts = box
    numbers = np.arange(prod(whole)).reshape(whole)[tuple(slice(s, s + n) for s, n in zip(starts, part))]
    wanted = [itemsize * int(n) + byte for n in numbers.reshape(-1) for byte in range(itemsize)]
    region = StridedRegion.of_box(whole, part, starts, itemsize)
    if region is None:
        jumps = [k for k in range(1, len(wanted)) if wanted[k] != wanted[k - 1] + 1]
        between = {b - a for a, b in zip([0, *jumps], jumps)}
        assert len({wanted[b] - wanted[a] for a, b in zip([0, *jumps], jumps)}) > 1 or len(between) > 1
        return
    assert elements(region) == wanted
    assert (region.nbytes, region.end) == (len(wanted), wanted[-1] + 1)
    steps = region.strides(part, itemsize)
    assert steps is not None
    found = [region.offset + itemsize * sum(i * k for i, k in zip(at, steps)) for at in product(*map(range, part))]
    assert found == wanted[::itemsize]


@given(regions(least=1), st.data())
def test_what_lies_in_what_lies_elsewhere(outer: StridedRegion, data: st.DataObject) -> None:
    bytes_of_outer = elements(outer)
    run = data.draw(st.integers(1, outer.nbytes))
    offset = data.draw(st.integers(0, outer.nbytes - run))
    pitch = data.draw(st.integers(run, 12 + run))
    rows = data.draw(st.integers(1, 1 + (outer.nbytes - offset - run) // pitch))
    inner = StridedRegion.of(offset, run, rows, pitch)
    found = inner.inside(outer)
    if found is not None:
        assert elements(found) == [bytes_of_outer[k] for k in elements(inner)]
    else:
        assert outer.rows > 1
    assert inner.inside(StridedRegion.of(0, 100)) == inner


@given(regions(), regions(), st.booleans())
def test_places_that_share_bytes(a: StridedRegion, b: StridedRegion, alike: bool) -> None:
    if alike and a.rows > 1:
        b = StridedRegion.of(b.offset, min(b.run, a.pitch), b.rows, a.pitch)
    shares = bool(set(elements(a)) & set(elements(b)))
    is_guessed = a.rows > 1 < b.rows and a.pitch != b.pitch
    assert a.overlaps(b) == b.overlaps(a)
    assert a.overlaps(b) or not shares
    assert shares or not a.overlaps(b) or is_guessed or not (a.run and b.run)


def test_values_may_lie_within_values_thousands_deep() -> None:
    g = Graph()
    values = [g.input("x", "float32", (64,))]
    for i in range(5000):
        values.append(ops.relu(values[-1]))
        if i:
            values[-1].within = Within(values[-2], StridedRegion(0, 256))
    assert root(values[-1]) == (values[1], StridedRegion(0, 256))
    whole = ops.concat([values[1], values[0]], axis=0)
    values[1].within = Within(whole, StridedRegion(256, 256))  # and with it all others
    for v in (values[-1], values[2], values[1]):
        assert root(v) == (whole, StridedRegion(256, 256))

"""Where members of a tree meet."""

from __future__ import annotations

import random

import pytest

from renorm.core.ancestry import Ancestry


def above(tree: Ancestry[int], member: int | None) -> list[int | None]:
    way: list[int | None] = [member]
    while member is not None:
        member = tree.above[member]
        way.append(member)
    return way


@pytest.mark.parametrize("reach", [1, 3, 1000])
def test_two_members_meet_where_their_ways_to_the_root_do(reach: int) -> None:
    rng, tree = random.Random(0), Ancestry[int]()
    for i in range(300):
        tree.add(i, rng.randrange(max(0, i - reach), i) if i % 50 else None)
    for _ in range(2000):
        a, b = rng.choice([None, *range(300)]), rng.choice([None, *range(300)])
        theirs = set(above(tree, b))
        assert tree.meet(a, b) == next(m for m in above(tree, a) if m in theirs)


def test_a_meeting_far_up_takes_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    tree, asked = Ancestry[int](), list[int]()
    for i in range(20_000):
        tree.add(i, i - 1 if i else None)
    tree.add(-1, 3)
    parent = Ancestry._parent  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(Ancestry, "_parent", lambda self, a: asked.append(1) or parent(self, a))
    assert tree.meet(19_999, -1) == 3
    assert len(asked) < 60

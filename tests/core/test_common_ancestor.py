"""Where members of a tree meet."""

from __future__ import annotations

import random

import pytest

from renorm.core.common_ancestor import Ancestry


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


class Counted(dict[int, int | None]):
    """asked: how often a member was looked up."""

    asked = 0

    def __getitem__(self, member: int) -> int | None:
        self.asked += 1
        return super().__getitem__(member)


def test_a_meeting_far_up_takes_few_steps() -> None:
    tree = Ancestry[int]()
    for i in range(20_000):
        tree.add(i, i - 1 if i else None)
    tree.add(-1, 3)
    tree.above = counted = Counted(tree.above)
    assert tree.meet(19_999, -1) == 3
    assert 0 < counted.asked < 60

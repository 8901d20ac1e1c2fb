"""A list that knows what is in it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from renorm.core.indexed_list import Listed

CHANGES = {
    "append": lambda a, x: a.append(x),
    "clear": lambda a, x: a.clear(),
    "extend": lambda a, x: a.extend([x, x + 1]),
    "insert": lambda a, x: a.insert(0, x),
    "pop": lambda a, x: a and a.pop(),
    "remove": lambda a, x: a and a.remove(a[-1]),
    "delete": lambda a, x: a.__delitem__(slice(0, x % 2)),
    "add": lambda a, x: a.__iadd__([x]),
    "repeat": lambda a, x: a.__imul__(x % 3),
    "assign": lambda a, x: a.__setitem__(slice(0, 1), [x]),
    "reverse": lambda a, x: a.reverse(),
    "sort": lambda a, x: a.sort(),
}


@given(st.lists(st.tuples(st.sampled_from(sorted(CHANGES)), st.integers(0, 5)), max_size=8))
def test_members_follow_every_change(changes: list[tuple[str, int]]) -> None:
    ours, plain = Listed([1, 2, 3]), [1, 2, 3]
    for name, x in changes:
        for held in (ours, plain):
            CHANGES[name](held, x)
        assert ours == plain
        assert ours.members == set(plain)

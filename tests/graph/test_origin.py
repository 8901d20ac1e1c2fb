"""Names that nodes stand for, put together in any order."""

from __future__ import annotations

import sys

from renorm.graph.origin import Origin


def test_names_stand_once_in_the_order_of_their_parts() -> None:
    inner = Origin(("b", "a"), ("c",))
    both = Origin(inner, ("a", "d"), inner)
    assert both == ("b", "a", "c", "d")
    assert both == Origin(("b", "a", "c"), ("d",))
    assert (len(both), both[0], both[1:], "d" in both, {*both}) == (4, "b", ("a", "c", "d"), True, set("abcd"))
    assert repr(both) == "('b', 'a', 'c', 'd')"


def test_parts_may_be_deeper_than_python_calls_and_have_parts_in_common() -> None:
    row = Origin(("0",))
    for i in range(2 * sys.getrecursionlimit()):
        row = Origin(row, (str(i),), row)
    assert len(row) == 2 * sys.getrecursionlimit()


def test_of_nothing_there_is_none() -> None:
    assert not Origin()
    assert not Origin((), Origin(), ())
    assert Origin((), ("a",))

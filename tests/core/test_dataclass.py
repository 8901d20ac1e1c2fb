"""Our dataclasses are those of the standard library: what is made, compared, shown and refused."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from typing import Any, ClassVar

import pytest

from renorm.core.dataclass import dataclass


def family(dataclass: Callable[..., Any]) -> dict[str, Any]:
    """Classes with everything that renorm uses of dataclasses, made by one of the two decorators."""

    @dataclass(frozen=True)
    class Empty:
        pass

    @dataclass(frozen=True)
    class Point:
        """A place."""

        x: int
        y: float = 2.5
        kind: ClassVar[str] = "point"
        hidden: Any = field(default=None, repr=False, compare=False)
        tags: list[str] = field(default_factory=list)

        @property
        def double(self) -> int:
            return 2 * self.x

    @dataclass(frozen=True)
    class Wide(Point):
        z: tuple[int, ...] = ()

    @dataclass(frozen=True, eq=False)
    class Alone:
        x: int

    @dataclass
    class Open:
        x: int
        made: int = field(init=False)
        fixed: int = field(init=False, default=9)
        more: dict[str, int] = field(init=False, default_factory=dict)

        def __post_init__(self) -> None:
            self.made = self.x + 1

    @dataclass(frozen=True)
    class Own:
        x: int

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "own"

    class Under(Point):
        pass

    return {c.__name__: c for c in (Empty, Point, Wide, Alone, Open, Own, Under)}


OURS, THEIRS = family(dataclass), family(dataclasses.dataclass)


def shown(value: Any) -> str:
    return repr(value).replace("<locals>", "")


@pytest.mark.parametrize("name", OURS)
def test_classes_have_the_same_fields_and_parameters(name: str) -> None:
    ours, theirs = OURS[name], THEIRS[name]
    assert [f.name for f in dataclasses.fields(ours)] == [f.name for f in dataclasses.fields(theirs)]
    assert ours.__match_args__ == theirs.__match_args__
    a, b = inspect.signature(ours).parameters.values(), inspect.signature(theirs).parameters.values()
    assert [(p.name, p.kind, p.default is p.empty) for p in a] == [(p.name, p.kind, p.default is p.empty) for p in b]
    assert (ours.__hash__ is None) == (theirs.__hash__ is None)


@pytest.mark.parametrize(
    ("name", "given", "other"),
    [
        ("Empty", {}, {}),
        ("Point", {"x": 1}, {"x": 1, "hidden": 3}),
        ("Point", {"x": 1, "y": float("nan")}, {"x": 1, "tags": ["a"]}),
        ("Wide", {"x": 1, "z": (1, 2)}, {"x": 1, "z": (1, 3)}),
        ("Alone", {"x": 1}, {"x": 1}),
        ("Open", {"x": 1}, {"x": 1}),
        ("Own", {"x": 1}, {"x": 2}),
        ("Under", {"x": 1}, {"x": 2}),
    ],
)
def test_objects_are_alike(name: str, given: dict[str, Any], other: dict[str, Any]) -> None:
    found: list[Any] = []
    for made in (OURS[name], THEIRS[name]):
        a, b, c = made(**given), made(**other), made(**given)
        assert copy.copy(a).__dict__ == a.__dict__
        found.append((shown(a), shown(b), a == b, a != b, a == c, a == 3, a.__dict__ == c.__dict__))
    assert found[0] == found[1]


def test_equal_ones_have_equal_hashes() -> None:
    ours = OURS["Alone"]
    assert len({ours(1), ours(1)}) == 2
    assert hash(OURS["Own"](1)) == 7
    assert len({OURS["Empty"](), OURS["Empty"]()}) == 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(OURS["Open"](1))
    with pytest.raises(TypeError, match="unhashable"):
        hash(OURS["Point"](1))  # a list among its fields
    assert OURS["Point"](1) != OURS["Under"](1)


def test_frozen_ones_cannot_be_changed() -> None:
    for made in (OURS, THEIRS):
        p = made["Point"](1)
        for change in (lambda p: setattr(p, "x", 2), lambda p: setattr(p, "new", 2), lambda p: delattr(p, "x")):
            with pytest.raises(FrozenInstanceError, match=r"cannot (assign to|delete) field"):
                change(p)
        under = made["Under"](1)
        under.new = 3  # which the subclass adds
        with pytest.raises(FrozenInstanceError):
            under.x = 2
        assert dataclasses.replace(p, x=5).x == 5
        assert dataclasses.replace(p, x=5).double == 10
    made = OURS["Open"](1)
    made.x = 4
    assert (made.x, made.made, made.fixed, made.more) == (4, 2, 9, {})
    assert OURS["Point"](1).tags is not OURS["Point"](1).tags


@dataclass(frozen=True)
class Stored:
    x: int


def test_they_are_pickled_and_matched() -> None:
    assert pickle.loads(pickle.dumps(Stored(3))) == Stored(3)
    match Stored(3):
        case Stored(x):
            assert x == 3

"""Arguments are held against annotations, which are read when a function is first called."""

from __future__ import annotations

from typing import Any

import pytest

from renorm.te import arguments


def test_a_call_may_come_while_another_thread_reads_the_annotations(monkeypatch: pytest.MonkeyPatch) -> None:
    @arguments.checked("te.")
    def subtract(a: int, b: int) -> int:
        return a - b

    check, asked, inner = arguments._check, list[Any](), list[int]()

    def interrupted(hint: Any) -> Any:
        asked.append(hint)
        if len(asked) == 2:  # `a` is known, `b` is not
            inner.append(subtract(5, 3))
        return check(hint)

    monkeypatch.setattr(arguments, "_check", interrupted)
    assert subtract(7, 3) == 4
    assert inner == [2]

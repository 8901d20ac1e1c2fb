"""What a profile says of launches, beside figures worked out by hand."""

from __future__ import annotations

import pytest

from renorm.runtime.profile import Limits, StepTime, trace
from renorm.runtime.report import WorkRecord

LIMITS = Limits(flops=100e9, bytes=20e9)


def test_the_limit_is_the_longer_of_operations_and_bytes() -> None:
    assert LIMITS.seconds(WorkRecord(flops=10**9, bytes=10**6)) == pytest.approx(0.01)
    assert LIMITS.seconds(WorkRecord(flops=10**6, bytes=10**9)) == pytest.approx(0.05)


def test_speeds_and_the_part_of_the_limit() -> None:
    step = StepTime("k", 0.1, 0.08, ("n",), WorkRecord(10**9, 10**9))
    assert step.flops_per_second == pytest.approx(1e10)
    assert step.bytes_per_second == pytest.approx(1e10)
    assert step.of_limit(LIMITS) == pytest.approx(0.5)
    assert StepTime("k", 0.0, 0.0).of_limit(LIMITS) == 0.0


def test_a_trace_has_launches_end_to_end() -> None:
    steps = [StepTime("a", 2e-6, 1e-6), StepTime("b", 3e-6, 3e-6, ("n",), WorkRecord(6, 12, True))]
    events = [e for e in trace("net", steps, LIMITS)["traceEvents"] if e["ph"] == "X"]
    assert [(e["name"], e["ts"], e["dur"]) for e in events] == [("a", 0.0, 2.0), ("b", 2.0, 3.0)]
    assert events[1]["args"]["work"] == {"flops": 6, "bytes": 12, "is_nominal": True}
    assert events[1]["args"]["nodes"] == ("n",)

"""What a profile says of launches, beside figures worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from renorm.runtime.profile import Roofline, StepTime, trace
from renorm.runtime.report import WorkRecord
from renorm.runtime.table import Recording

LIMITS = Roofline(flops=100e9, bytes=20e9)


def test_the_limit_is_the_longer_of_operations_and_bytes() -> None:
    assert LIMITS.seconds(WorkRecord(flops=10**9, bytes=10**6)) == pytest.approx(0.01)
    assert LIMITS.seconds(WorkRecord(flops=10**6, bytes=10**9)) == pytest.approx(0.05)


def test_speeds_and_the_part_of_the_limit() -> None:
    step = StepTime("k", 0.1, 0.08, ("n",), WorkRecord(10**9, 10**9))
    assert step.flops_per_second == pytest.approx(1e10)
    assert step.bytes_per_second == pytest.approx(1e10)
    assert step.of_limit(LIMITS) == pytest.approx(0.5)
    assert StepTime("k", 0.0, 0.0).of_limit(LIMITS) == 0.0


def test_a_trace_has_a_track_for_each_thread() -> None:
    steps = [StepTime("a", 2e-6, 1e-6), StepTime("b", 3e-6, 3e-6, ("n",), WorkRecord(6, 12, True))]
    # thread 1 has no part in the first phase of b
    parts = [[(1_500, 2_000), (2_000, 3_000), (5_000, 7_000)], [(1_700, 3_500), (0, 0), (5_100, 6_000)]]
    run = Recording(1_000, 8_000, np.array(parts), (0, 1, 3))
    events = [e for e in trace("net", run, steps, LIMITS)["traceEvents"] if e["ph"] == "X"]
    seen = [[(e["name"], e["ts"], e["dur"]) for e in events if e["tid"] == thread] for thread in (0, 1)]
    assert seen == [
        [
            *(("wait", 0.0, 0.5), ("a", 0.5, 0.5), ("wait", 1.0, 0.0), ("b", 1.0, 1.0), ("wait", 2.0, 2.0)),
            *(("b", 4.0, 2.0), ("wait", 6.0, 1.0)),
        ],
        [("wait", 0.0, 0.7), ("a", 0.7, 1.8), ("wait", 2.5, 1.6), ("b", 4.1, 0.9), ("wait", 5.0, 2.0)],
    ]
    last = events[-2]["args"]
    assert (last["work"], last["nodes"], last["phase"]) == (
        {"flops": 6, "bytes": 12, "is_nominal": True},
        ("n",),
        "2 of 2",
    )

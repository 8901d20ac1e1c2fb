"""Tests that take long by themselves: found by measuring, left out of the quick tier.

`scripts/test --measure` runs everything, writes their ids to long_tests.txt, and prints the files that take most.
"""

from __future__ import annotations

import resource
from collections import defaultdict
from pathlib import Path

import pytest

LONG = Path(__file__).with_suffix(".txt")
MOST = 30  # files that are printed
LIMIT_S = 0.3  # of processor time, children included: what other work on the machine changes least

_begun = pytest.StashKey[float]()


class Measured:
    """A plugin that collects processor times; with pytest-xdist, from all workers."""

    def __init__(self) -> None:
        self._found: dict[str, float] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        item.stash[_begun] = _spent()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.when == "call":  # user_properties travel to the process that collects
            item.user_properties.append(("processor_s", _spent() - item.stash[_begun]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == "processor_s" and isinstance(value, float):
                self._found[report.nodeid] = value

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not hasattr(session.config, "workerinput"):
            LONG.write_text("".join(f"{test}\n" for test, s in sorted(self._found.items()) if s > LIMIT_S))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        files, quick = defaultdict[str, float](float), defaultdict[str, float](float)
        for test, seconds in self._found.items():
            file = test.partition("::")[0]
            files[file] += seconds
            quick[file] += seconds if seconds <= LIMIT_S else 0
        write = terminalreporter.write_line
        write(f"{sum(files.values()):.0f} s of processor time, {sum(quick.values()):.0f} s in short tests; most in")
        for file, seconds in sorted(files.items(), key=lambda item: -item[1])[:MOST]:
            write(f"{seconds:8.1f} s, {quick[file]:6.1f} s in short tests  {file}")


def _spent() -> float:
    """Seconds of processor time of this process and of the children that it has waited for."""
    spent = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(s.ru_utime + s.ru_stime for s in spent)

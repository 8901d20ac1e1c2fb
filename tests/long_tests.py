"""Say which tests take long, as measured, and leave some of them out of the quick tier and of the gate.

`scripts/test --measure` runs everything, writes long_tests.txt, and prints the files that take most. Its lines are
`seconds id`, of processor time: tests that take long by themselves, and parametrized functions that take long in all.
"""

from __future__ import annotations

import resource
import zlib
from collections import defaultdict
from collections.abc import Sequence
from math import ceil, sqrt
from pathlib import Path

import pytest

LONG = Path(__file__).with_suffix(".txt")
MOST = 30  # files that are printed
LIMIT_S = 0.3  # of processor time, children included: what other work on the machine changes least
# Of a function with so many parameters that takes n * SHARE_S, children included, the gate tries one in sqrt(n)
MANY, SHARE_S = 8, 8.0
WHOLE = ("tests/docs/",)  # what all is asked of: documentation that runs


def measured() -> dict[str, float]:
    """Return seconds of tests, and of parametrized functions, that are long."""
    lines = (line.split(" ", 1) for line in LONG.read_text().splitlines())
    return {test: float(seconds) for seconds, test in lines}


def function_of(test: str) -> str:
    return test.partition("[")[0]


def left_out(function: str, family: Sequence[pytest.Item], seconds: float) -> set[pytest.Item]:
    """Return which items of a function with parameters, which take so long together, the gate leaves out: of each run
    of so many neighbours all but one, by chance that is always the same, since neighbours differ in the parameter that
    changes fastest; but the first of each value of a parameter that has few."""
    every = ceil(sqrt(seconds / SHARE_S)) if len(family) >= MANY and not function.startswith(WHOLE) else 1
    if every <= 1:
        return set()
    runs = [family[i : i + every] for i in range(0, len(family), every)]
    kept = {min(run, key=lambda item: zlib.crc32(item.nodeid.encode())) for run in runs}
    firsts = dict[str, dict[int, pytest.Item]]()
    for item in family:
        for name, index in item.callspec.indices.items() if isinstance(item, pytest.Function) else ():
            firsts.setdefault(name, {}).setdefault(index, item)
    kept.update(item for values in firsts.values() if len(values) < MANY for item in values.values())
    return {*family} - kept


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
            functions = defaultdict[str, float](float)
            for test, seconds in self._found.items():
                if "[" in test:
                    functions[function_of(test)] += seconds
            long = {test: s for test, s in self._found.items() if s > LIMIT_S}
            long |= {function: s for function, s in functions.items() if s > SHARE_S}
            LONG.write_text("".join(f"{s:.1f} {test}\n" for test, s in sorted(long.items())))

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

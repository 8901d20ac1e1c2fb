"""Cases by the thousand: none wrong, none unsupported, and every norm folded that can be folded exactly."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import click
from tests.passes.folding.cases import Case, numbered, smallest
from tests.passes.folding.check import check

KINDS = ("wrong", "unsupported", "missed", "silent", "crashed")
BATCH = 50  # cases between two lines of progress, for each process


@dataclass
class Total:
    """What became of cases. problems: (number of the case, kind, sentence)."""

    cases: int = 0
    compiled: int = 0
    norms: int = 0
    due: int = 0
    before: int = 0
    after: int = 0
    fates: Counter[str] = field(default_factory=Counter[str])
    reasons: Counter[str] = field(default_factory=Counter[str])
    problems: list[tuple[int, str, str]] = field(default_factory=list[tuple[int, str, str]])
    largest_error: float = 0.0
    sensitive: int = 0  # cases whose network is off by more itself when it is rounded

    def add(self, other: Total) -> None:
        for name, value in vars(other).items():
            mine = getattr(self, name)
            setattr(self, name, max(mine, value) if name == "largest_error" else mine + value)

    def count(self, kind: str) -> int:
        return sum(k == kind for _, k, _ in self.problems)


def run(numbers: range, every: int) -> Total:
    """Cases by their numbers; each `every`th is compiled and verified, too."""
    total = Total()
    for number in numbers:
        compiles = bool(every) and number % every == 0
        total.cases += 1
        total.compiled += compiles
        case = numbered(number)
        try:
            found = check(case, compiles)
        except Exception:  # of any kind: a fuzzer goes on
            total.problems.append((number, "crashed", traceback.format_exc()[-1500:]))
            continue
        total.norms += found.norms
        total.due += found.due
        total.before += found.nodes[0]
        total.after += found.nodes[1]
        total.fates += found.fates
        total.reasons += found.reasons
        total.problems += [(number, kind, said) for kind, said in found.problems.items()]
        total.sensitive += found.sensitive
        if case.dtype == "float32":
            total.largest_error = max(total.largest_error, found.error)
    return total


def batches(cases: int, seed: int, every: int, jobs: int) -> Iterator[Total]:
    parts = [range(n, min(n + BATCH, seed + cases)) for n in range(seed, seed + cases, BATCH)]
    if jobs == 1:
        yield from (run(part, every) for part in parts)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(run, parts, [every] * len(parts))


def printed(total: Total) -> str:
    lines = [
        f"{total.cases} cases, {total.compiled} compiled, verified too where no factor is tiny; {total.norms} norms"
    ]
    lines += [
        f"norms that have to be folded  {total.due}",
        f"largest relative error, float32  {total.largest_error:.1e}",
        f"not counted there, of networks that their own rounding moves by as much  {total.sensitive}",
    ]
    lines.append(f"nodes that scale or shift  {total.before}, {total.after} remain")
    lines.append("batch and instance norms  " + ", ".join(f"{k} {n}" for k, n in total.fates.most_common()))
    lines += [f"{n:6} refused: {reason}" for reason, n in total.reasons.most_common()]
    lines.append(", ".join(f"{kind} {total.count(kind)}" for kind in KINDS))
    return "\n".join(lines)


def explained(case: Case) -> bool:
    """Prints what becomes of a case; whether nothing is wrong."""
    found = check(case, compiles=True)
    print(case, found, sep="\n")
    if found.problems:
        kinds = set(found.problems)
        least = smallest(case, lambda c: not kinds.isdisjoint(check(c, compiles="wrong" in kinds).problems))
        print("the smallest that fails alike:", least, check(least, compiles=True), sep="\n")
    return not found.problems


@click.command(help=__doc__)
@click.option("--cases", type=click.IntRange(1), default=10000, show_default=True)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Number of the first case; to resume, of the next."
)
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes.")
@click.option("--compile-every", "every", type=click.IntRange(0), default=20, show_default=True, help="0: none.")
@click.option("--case", help="One case: its number, or its text.")
@click.option("--json", "into", type=click.Path(path_type=Path), help="A file for counts and problems.")
def main(cases: int, seed: int, jobs: int, every: int, case: str | None, into: Path | None) -> None:
    os.environ["RENORM_CACHE"] = "0"
    if case is not None:
        sys.exit(not explained(numbered(int(case)) if case.isdigit() else Case.parse(case)))
    total, started = Total(), time.monotonic()
    for part in batches(cases, seed, every, jobs):
        total.add(part)
        for number, kind, said in part.problems:
            print(f"{kind} in case {number}: {said}", flush=True)
        found = ", ".join(f"{kind} {total.count(kind)}" for kind in KINDS)
        seconds = time.monotonic() - started
        print(f"{total.cases}/{cases} in {seconds:.0f} s; {found}; next seed {seed + total.cases}", file=sys.stderr)
        if into is not None:
            into.write_text(json.dumps({"seed": seed, "seconds": seconds, **vars(total)}, indent=1))
    print(printed(total))
    sys.exit(bool(total.problems))


if __name__ == "__main__":
    main()

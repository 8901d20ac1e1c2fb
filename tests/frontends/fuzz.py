"""Damaged model files by the hundred thousand: whether reading them gives anything but graphs and errors of renorm.

    python -m tests.frontends.fuzz --format onnx --files 100000 --seed 0

Each file is read in a process with little memory, and ends in a graph or an error of renorm that names the file, within
seconds. One in so many is also prepared as for a compilation, and computed. Anything else is a finding: it is made
smaller and written to `findings/`, where a test reads it from then on. With --guided, files that reach lines of the
readers which none before did are damaged further.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from tests.frontends import fuzz_archives, fuzz_onnx, mutations
from tests.frontends.fuzz_outcome import Outcome, outcome
from tests.frontends.fuzz_processes import LATE, START, ended, guarded, judged, limited, silenced
from tests.frontends.fuzz_seeds import seeds
from tests.frontends.fuzz_traces import Traces

from renorm.cli.progress import progress

Change = Callable[[bytes, random.Random], bytes]
Smaller = Callable[[bytes], Iterator[bytes]]


def _cut(content: bytes) -> Iterator[bytes]:
    """Give files without a piece."""
    size = len(content) // 2
    while size:
        yield from (content[:at] + content[at + size :] for at in range(0, len(content), size))
        size //= 4


FORMATS: dict[str, tuple[Change, Smaller]] = {
    "onnx": (fuzz_onnx.mutated, fuzz_onnx.smaller),
    "tflite": (mutations.flatbuffer, mutations.smaller),
    "circle": (mutations.flatbuffer, mutations.smaller),
    "keras": (fuzz_archives.keras, fuzz_archives.smaller),
    "h5": (fuzz_archives.hdf5, _cut),
    "pt2": (fuzz_archives.program, fuzz_archives.smaller),
}
FINDINGS = Path(__file__).parent / "findings"
TURN = 2_000  # files that a process reads before another one takes its place
COMPUTED = 16  # one in so many graphs is computed


# --- processes --------------------------------------------------------------------------------------------------------


@dataclass
class _Work:
    """What one process does. traces: lines that are known, where it is to go on from files that reach further. at: the
    file that it is at, and when it began with it, as the parent sees it."""

    form: str
    seed: int
    numbers: range
    corpus: list[bytes]
    directory: Path
    traces: Traces | None
    at: Any = field(default_factory=lambda: START.RawArray(ctypes.c_double, 2))

    @property
    def path(self) -> Path:
        return self.directory / f"held.{self.form}"

    def __call__(self, to: Any) -> None:
        os.chdir(self.directory)
        silenced(self.directory)
        limited()
        change, traces = FORMATS[self.form][0], self.traces
        for i in self.numbers:
            chance = random.Random(f"{self.seed} {i}")
            content = change(_drawn(self.corpus, chance, traces is not None), chance)
            self.path.write_bytes(content)
            self.at[0], self.at[1] = i, time.monotonic()
            is_computed = i % COMPUTED == 0
            if traces is None:
                found = guarded(self.path, is_computed)
            else:
                with traces:
                    found = guarded(self.path, is_computed)
                if traces.new:
                    self.corpus.append(content)
                    to.send(("kept", content, traces.new))
            to.send(("read", found, content if found.fault else b"", time.monotonic() - self.at[1]))
        to.send(("done",))


def _drawn(corpus: Sequence[bytes], chance: random.Random, is_guided: bool) -> bytes:
    """Return a file to damage: of a corpus that grows, the younger half as often as the other."""
    first = len(corpus) // 2 if is_guided and chance.random() < 0.5 else 0
    return corpus[chance.randrange(first, len(corpus))]


def reduced(content: bytes, form: str, found: Outcome, seconds: float = 30.0) -> bytes:
    """Return a smaller file of which becomes the same."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for other in FORMATS[form][1](content):
            if time.monotonic() > end:
                break
            if len(other) < len(content) and judged(other, form, True).place == found.place:
                content = other
                break
        else:
            break
    return content


# --- the run ----------------------------------------------------------------------------------------------------------


class Run:
    """Files of a format in so many processes at once. end: when it is over, whatever is left."""

    def __init__(self, form: str, files: int, seed: int, jobs: int, end: float, is_guided: bool, results: Path):
        self.form, self.files, self.seed, self.jobs, self.end = form, files, seed, jobs, end
        self.traces, self.results = Traces() if is_guided else None, results
        self.corpus, self.kinds, self.findings = seeds(form), Counter[str](), dict[str, int]()
        self.slowest = 0.0

    def go(self) -> int:
        """Return how many findings there are, each of which is printed."""
        started, turns = time.monotonic(), [range(i, min(i + TURN, self.files)) for i in range(0, self.files, TURN)]
        held, known = list[tuple[Any, Any, _Work]](), len(self.corpus)
        where = "/dev/shm" if Path("/dev/shm").is_dir() else None
        with tempfile.TemporaryDirectory(dir=where) as directory, progress(f"damaged .{self.form} files") as tell:
            names = count()
            first = Path(directory) / f"first.{self.form}"
            first.write_bytes(self.corpus[0])
            outcome(first)  # imports what reads the format, before processes are forked: it is the time of no file
            while turns or held:
                while turns and len(held) < self.jobs and time.monotonic() < self.end:
                    held.append(self._begun(turns.pop(0), Path(directory) / str(next(names))))
                if time.monotonic() > self.end:
                    turns.clear()
                    [process.kill() for process, _, _ in held]
                if tell:
                    tell(f"{len(self.findings)} findings", self.kinds.total(), self.files)
                ready = wait([received for _, received, _ in held], 0.5)
                for process, received, work in [*held]:
                    left = self._followed(process, received, work, received in ready)
                    if left is not None:
                        held.remove((process, received, work))
                        turns[:0] = [left] if left and time.monotonic() < self.end else []
        seconds = time.monotonic() - started
        outcomes = ", ".join(f"{kind} {n}" for kind, n in self.kinds.most_common())
        grown = f", {len(self.corpus) - known} files that reach further" if self.traces is not None else ""
        print(
            f"{self.form}: {self.kinds.total()} files of seed {self.seed} from {known}{grown}: {outcomes}; "
            f"{len(self.findings)} findings; the slowest took {self.slowest:.2f} s; {seconds:.0f} s",
            flush=True,
        )
        return len(self.findings)

    def _begun(self, numbers: range, directory: Path) -> tuple[Any, Any, _Work]:
        directory.mkdir()
        (directory / "held.data").write_bytes(bytes(4096))
        work = _Work(self.form, self.seed, numbers, self.corpus, directory, self.traces)
        work.at[0], work.at[1] = numbers.start, time.monotonic()
        received, to = START.Pipe(False)
        process = START.Process(target=work, args=(to,))
        process.start()
        to.close()
        return process, received, work

    def _followed(self, process: Any, received: Any, work: _Work, is_ready: bool) -> range | None:
        """Take what a process says. Return the files that are left where it has ended."""
        is_done = False
        try:
            while is_ready and not is_done and received.poll():
                kind, *said = received.recv()
                if kind == "kept" and self.traces is not None:
                    self.corpus.append(said[0])
                    self.traces.known |= said[1]
                elif kind == "read":
                    self._take(*said)
                is_done = kind == "done"
            if is_done or time.monotonic() < work.at[1] + LATE:
                if not is_done:
                    return None
                process.join()
                return range(0)
            is_late = True
        except EOFError:
            is_late = False
        if time.monotonic() < self.end:
            fault = ended(process, work.directory, is_late)
            self._take(fault, work.path.read_bytes() if work.path.exists() else b"", time.monotonic() - work.at[1])
        return range(int(work.at[0]) + 1, work.numbers.stop)

    def _take(self, found: Outcome, content: bytes, seconds: float) -> None:
        self.kinds[found.kind] += 1
        self.slowest = max(self.slowest, seconds)
        if not found.fault:
            return
        self.findings[found.place] = self.findings.get(found.place, 0) + 1
        if self.findings[found.place] > 1:
            return
        small = reduced(content, self.form, found)
        name = f"{sha256(small).hexdigest()[:12]}.{self.form}"
        self.results.mkdir(parents=True, exist_ok=True)
        (self.results / name).write_bytes(small)
        print(f"--- {found.place}\n{found.fault[-3000:]}\n    {self.results / name}, {len(small)} bytes", flush=True)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--format", choices=[*FORMATS, "all"], default="all")
    arguments.add_argument("--files", type=int, default=100_000, help="of each format")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--minutes", type=float, default=1e9, help="for each format at most")
    arguments.add_argument("--jobs", type=int, default=2, help="processes at once")
    arguments.add_argument("--guided", action="store_true", help="go on from files that reach further")
    arguments.add_argument("--results", type=Path, default=FINDINGS, help="where findings are written to")
    given, found = arguments.parse_args(), 0
    for form in FORMATS if given.format == "all" else (given.format,):
        end = time.monotonic() + 60 * given.minutes
        results = given.results.absolute()
        found += Run(form, given.files, given.seed, given.jobs, end, given.guided, results).go()
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())

"""Many kernels at once: LLVM runs in one thread of a process at a time, so others are compiled in other processes.

A worker is a plain child (`codegen.worker`) that talks over pipes: it does not import the program that started it, so
it makes no difference whether that is a script, a notebook, a thread, or itself a child. It is used only where it runs
the same source files. Whatever becomes of a worker, no kernel is lost: what it did not deliver is compiled here.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from renorm.codegen import llvm, serialization, structural_hash, worker
from renorm.codegen.abi import CompiledKernel
from renorm.core.locks import condition
from renorm.core.room import start_thread
from renorm.core.target import Target
from renorm.tir.nodes import Kernel

KERNEL = 0.025  # seconds that a kernel takes, before any has been measured
START = 0.2  # seconds until a worker is ready: Python, NumPy and llvmlite
PATIENCE = 10.0  # seconds without any news after which a worker is taken for dead

Told = Callable[[int], None]  # kernels done so far


def compile_all(
    kernels: Sequence[Kernel], target: Target, processes: int, told: Told = lambda done: None
) -> tuple[list[CompiledKernel], int]:
    """Machine code of each kernel, in order, and how many processes worked on it: this one, and others as far as there
    is work that pays for starting them, `processes` at the most.

    Raises what codegen.llvm.compile_kernel raises, for the first kernel that cannot be compiled.
    """
    return _Work(kernels, replace(target, supports=(), codegen=None), told).done(processes)


class _Work:
    """Kernels to compile, and who takes them. Slots of `_found` are filled once each, in any order."""

    def __init__(self, kernels: Sequence[Kernel], target: Target, told: Told):
        self._kernels, self._target, self._told = kernels, target, told
        self._found: list[CompiledKernel | None] = [None] * len(kernels)
        self._waiting = deque(range(len(kernels)))
        self._news = condition("kernels to compile")  # guards what follows
        self._out = 0  # kernels that workers have
        self._joined = 0  # workers that were ready in time
        self._workers: list[tuple[subprocess.Popen[bytes], threading.Thread | None]] = []

    def done(self, processes: int) -> tuple[list[CompiledKernel], int]:
        since, here = time.perf_counter(), 0
        try:
            while (i := self._take()) is not None:
                mean = (time.perf_counter() - since) / here if here else KERNEL
                self._employ(min(processes - 1, int(mean * (len(self._waiting) + 1) / (2 * START))))
                with suppress(Exception):  # raised below, in order
                    self._found[i] = llvm.compile_kernel(self._kernels[i], self._target)
                here += 1
            self._wait()
        finally:
            for each in self._workers:
                _end(*each)
        # what failed, here or elsewhere, and what a worker took along when it died
        compiled = [c or llvm.compile_kernel(k, self._target) for c, k in zip(self._found, self._kernels)]
        return compiled, 1 + self._joined

    def _take(self) -> int | None:
        self._told(len(self._kernels) - self._found.count(None))
        with self._news:
            return self._waiting.popleft() if self._waiting else None

    def _wait(self) -> None:
        """Until workers have answered, or have been silent for too long."""
        while self._has_news():
            self._told(len(self._kernels) - self._found.count(None))

    def _has_news(self) -> bool:
        with self._news:
            return self._out > 0 and self._news.wait(PATIENCE)

    def _employ(self, wanted: int) -> None:
        """Sees to it that there are so many workers, as far as they can be started."""
        with suppress(OSError, RuntimeError):  # no more processes or threads
            while len(self._workers) < wanted:
                process = start()
                self._workers.append((process, None))
                start_thread(thread := threading.Thread(target=self._serve, args=(process,), daemon=True))
                self._workers[-1] = (process, thread)

    def _serve(self, process: subprocess.Popen[bytes]) -> None:
        """Feeds one worker, in a thread that mostly waits for it."""
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(Exception):  # it died, or says what makes no sense
            if worker.receive(process.stdout).decode() != structural_hash.SOURCES:
                return
            with self._news:
                self._joined += 1
            while (i := self._lend()) is not None:
                compiled = None
                try:
                    worker.send(process.stdin, pickle.dumps((self._kernels[i], self._target)))
                    answer = worker.receive(process.stdout)
                    compiled = serialization.decode(answer, self._kernels[i].name) if answer else None
                finally:
                    with self._news:
                        self._found[i] = compiled
                        self._out -= 1
                        self._news.notify()

    def _lend(self) -> int | None:
        with self._news:
            if not self._waiting:
                return None
            self._out += 1
            return self._waiting.popleft()


def start(module: str = "renorm.codegen.worker") -> subprocess.Popen[bytes]:
    """A new worker, which runs `main` of a module. Raises OSError where this program is no Python that could be started
    again."""
    program = sys.executable or ""
    if getattr(sys, "frozen", False) or not Path(program).name.startswith(("python", "pypy")):
        raise OSError("no Python to start")
    package = str(Path(__file__).parents[2])
    paths = [p for p in sys.path if isinstance(p, str) and os.path.isabs(p)]
    paths += [] if package in paths else [package]
    code = f"import sys; sys.path[:] = {paths!r}; from {module} import main; main()"
    # one thread for NumPy's BLAS, which nothing here uses and which costs time and memory to start
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return subprocess.Popen(
        [program, "-I", "-S", *(["-B"] if sys.dont_write_bytecode else []), "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # an interrupt from the keyboard is for the parent, which ends its workers
    )


def _end(process: subprocess.Popen[bytes], thread: threading.Thread | None) -> None:
    process.kill()
    if thread is not None:
        thread.join()
    with suppress(OSError), process:  # closes the pipes and waits; what was not sent can be sent no more
        pass

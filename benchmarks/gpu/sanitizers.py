"""NVIDIA's sanitizers, side by side, each over the same small program."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import IO, Any

from benchmarks.gpu.place import Place
from benchmarks.machine import ROOT

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


def sanitized(place: Place, seconds: float) -> dict[str, dict[str, Any]]:
    """Return what each tool says: its summary, and the first lines that it wrote. Without a GPU the program runs
    alone."""
    program = [sys.executable, "-m", "benchmarks.gpu.sanitized", place.target, f"{seconds / 2:.0f}"]
    if place.is_gpu:
        tool = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
        if not tool:
            return {"compute-sanitizer": {"summary": "is not installed", "program": ""}}
        options = ["--report-api-errors", "no", "--print-limit", "20"]  # bindings ask for functions that are not there
        calls = {name: [tool, "--tool", name, *options, *program] for name in TOOLS}
    else:
        calls = {"no tool": program}
    until = time.monotonic() + seconds
    running = {name: _begun(call) for name, call in calls.items()}
    return {name: _said(process, to, until) for name, (process, to) in running.items()}


def _begun(call: list[str]) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    to = tempfile.TemporaryFile()  # noqa: SIM115 - for _said; a pipe would fill while another tool is waited for
    return subprocess.Popen(call, cwd=ROOT, stdout=to, stderr=to, start_new_session=True), to


def _said(process: subprocess.Popen[bytes], to: IO[bytes], until: float) -> dict[str, Any]:
    try:
        ended = f"ended with {process.wait(max(1.0, until - time.monotonic()))}"
    except subprocess.TimeoutExpired:
        ended = "was ended: no time left"
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    with to:
        to.seek(0)
        lines = [line.rstrip() for line in to.read().decode(errors="replace").splitlines() if line.strip("= \t")]
    summaries = [line.strip("= ") for line in lines if "SUMMARY" in line]
    program = next((line for line in lines if line.startswith("network off")), "the program did not come to its end")
    return {"summary": "; ".join(summaries) or ended, "program": program, "lines": [line[:300] for line in lines[:60]]}

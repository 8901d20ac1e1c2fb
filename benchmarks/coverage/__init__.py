"""python -m benchmarks coverage, coverage-page: networks of public definitions as ONNX files, through renorm."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from benchmarks.machine import commit, now
from benchmarks.run import RESULTS


@click.command("coverage")
@click.option("--networks", default="", help="Packages, package/name, or package/name/form; default: all.")
@click.option("--seconds", type=float, default=600.0, show_default=True, help="The most that one file may take.")
@click.option("--into", type=click.Path(path_type=Path), default=None, help="The file of results, which keeps others.")
def coverage(networks: str, seconds: float, into: Path | None) -> None:
    """Takes ONNX files of networks of public definitions through renorm, and compares them with ONNX Runtime."""
    from benchmarks.coverage.run import run  # needs PyTorch

    path = into or RESULTS / f"coverage-{now()[:10]}-{commit()['id'][:8]}.json"
    wrong = run(networks.split(",") if networks else [], path, seconds, _tell)
    print(path)
    if wrong:
        sys.exit(f"{len(wrong)} not right: {', '.join(wrong)}")


@click.command("coverage-page")
def coverage_page() -> None:
    """Writes docs/networks.md from the results."""
    from benchmarks.coverage.page import write

    print(write())


COMMANDS = (coverage, coverage_page)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

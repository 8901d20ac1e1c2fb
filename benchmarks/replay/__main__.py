"""python -m benchmarks.replay: digests of compiled programs, and what changed since another commit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from rich.console import Console
from rich.progress import Progress

from benchmarks.machine import ROOT
from benchmarks.replay import compare, subjects
from benchmarks.replay.record import TARGETS, read, record, write

BUILD = ROOT / "build" / "replay"


@click.command()
@click.option("--against", metavar="REV", help="Compare with this commit, which is replayed where it was not yet.")
@click.option(
    "--only", metavar="TEXT", default="", help="Subjects whose name contains this: 'op conv', 'file resnet50'."
)
@click.option("--targets", default=",".join(TARGETS), show_default=True)
@click.option("--loops", is_flag=True, help="Stop before machine code, which takes most of the time.")
@click.option("--json", "is_json", is_flag=True, help="Differences as JSON.")
@click.option("--models", type=click.Path(path_type=Path), default=BUILD / "models", help="The folder of files.")
@click.option("--into", type=click.Path(path_type=Path), help="The file of digests.")
def main(
    against: str | None, only: str, targets: str, loops: bool, is_json: bool, models: Path, into: Path | None
) -> None:
    """Compiles networks, examples and samples of all ops for several targets, and writes a digest of each kernel."""
    console = Console(stderr=True)
    chosen_targets = targets.split(",")
    if unknown := [t for t in chosen_targets if t not in TARGETS]:
        raise click.BadParameter(f"{', '.join(unknown)}; known: {', '.join(TARGETS)}", param_hint="--targets")
    models = models.resolve()
    subjects.make_files(models, console.print)
    chosen = [name for name in subjects.names(models) if only in name]
    if not chosen:
        raise click.BadParameter(f"no subject's name contains {only!r}", param_hint="--only")
    arguments = [*(["--only", only] if only else []), "--targets", targets, *(["--loops"] if loops else [])]
    old = None if against is None else _replayed(against, arguments, models)
    path = into or _file("changed" if _git("status", "--porcelain") else _git("rev-parse", "HEAD"), arguments)
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("compiling", total=None)
        made = record(
            models,
            None if loops else BUILD / "cache",
            chosen,
            chosen_targets,
            lambda done, of: progress.update(bar, completed=done, total=of),
        )
    write(path, made)
    if old is None:
        print(f"{path}: {len(made)} programs, {sum(len(p.kernels) for p in made.values())} kernels")
        return
    before = read(old)
    found = compare.differences(before, made)
    print(json.dumps([vars(d) for d in found], indent=1) if is_json else "\n".join(compare.lines(found, before, made)))
    sys.exit(bool(found))


def _replayed(rev: str, arguments: list[str], models: Path) -> Path:
    """Return the file of digests of a commit, made by its own replay in a work tree of it."""
    try:
        name = _git("rev-parse", "--verify", f"{rev}^{{commit}}")
        _git("cat-file", "-e", f"{name}:benchmarks/replay")
    except subprocess.CalledProcessError as error:
        raise click.BadParameter(f"{rev}: {error.stderr.strip()}", param_hint="--against") from error
    path = _file(name, arguments)
    if path.exists():
        return path
    BUILD.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=BUILD) as folder:
        tree = Path(folder) / "tree"
        _git("worktree", "add", "--quiet", "--detach", str(tree), name)
        try:
            call = [sys.executable, "-m", "benchmarks.replay", *arguments, "--models", str(models), "--into", str(path)]
            subprocess.run(
                call, cwd=tree, env={**os.environ, "PYTHONPATH": f"{tree}/src{os.pathsep}{tree}"}, check=True
            )
        finally:
            _git("worktree", "remove", "--force", str(tree))
    return path


def _file(at: str, arguments: list[str]) -> Path:
    """Return the file that keeps the digests. at: a commit, or "changed"."""
    what = "_".join(a.strip("-").replace(" ", "-").replace(",", "-") for a in arguments)
    return BUILD / f"{at[:12]}_{what}.json"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()

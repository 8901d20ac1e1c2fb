"""The `renorm` command. A verb's file is imported when the verb is used: `renorm --help` loads no compiler.

What the list of verbs says of one is the first line of its file's docstring, `renorm VERB: what it tells or does.`
"""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

import renorm

VERBS = (
    "compile",
    "run",
    "bench",
    "profile",
    "check",
    "inspect",
    "optimize",
    "unfold",
    "cache",
    "demo",
    "doctor",
    "restat",
)


INTERRUPTED = 130  # as shells have it: 128 and SIGINT


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = import_module(f"renorm.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def main(self, *args: Any, **given: Any) -> Any:
        try:
            return super().main(*args, **given)
        except OSError:  # of what is printed outside of verbs: help, errors of the command line
            from renorm.cli.output import guarded  # only a failure pays for it

            with guarded(as_json=False):
                raise

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # while a verb is imported, too
            sys.exit(INTERRUPTED)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _summary(name)) for name in VERBS])


def _summary(verb: str) -> str:
    """Return what the file of a verb says it is for, read without importing it."""
    spec = find_spec(f"renorm.cli.{verb}")
    assert spec is not None
    assert spec.origin is not None
    title = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    said = title.partition("\n")[0].partition(": ")[2]
    return said[:1].upper() + said[1:]


@click.group(
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 numbers differ, 2 wrong command line, 3 model refused, 4 artifact refused, 70 a "
    "fault of renorm. RENORM_KEEP names ops or nodes to keep whole, as --keep does, separated by commas.",
)
@click.version_option(renorm.__version__, prog_name="renorm")
def main() -> None:
    """Compiles trained networks to native code, and says what becomes of every normalization.

    Begin with `renorm demo`, then `renorm inspect MODEL`.
    """

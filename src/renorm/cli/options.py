"""Options that several verbs share, and how their values are read."""

from __future__ import annotations

import functools
import json as json_text
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import click
import numpy as np

from renorm.cli import output
from renorm.core import limits
from renorm.core.dtypes import PRECISIONS
from renorm.core.files import arrays_of
from renorm.core.stated import split_shape
from renorm.errors import InvalidInput


class Shape(click.ParamType):  # pyright: ignore[reportMissingTypeArgument]  # generic in new versions of click only
    """`x=1x3x224x224`: an input's name and its shape, whose extents may be open as core.stated has it, `x=?x3x16*hx8`;
    `x=` is the shape of a scalar."""

    name = "NAME=SHAPE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[int | str, ...]]:
        if isinstance(value, tuple):
            return value
        name, sign, text = str(value).rpartition("=")
        try:
            shape = tuple(int(d) if d.isdecimal() else d for d in split_shape(text))
        except ValueError:
            shape = None
        if shape is None or not sign or not name:
            self.fail(f"{value!r} is not of the form x=1x3x224x224, x=?x3x16*hx16*w or x=1..64,3,max", param, ctx)
        return name, shape


class Limit(click.ParamType):  # pyright: ignore[reportMissingTypeArgument]
    """`operations=1e15`: a limit and what it is raised or lowered to."""

    name = "NAME=NUMBER"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        if isinstance(value, tuple):
            return value
        name, _, text = str(value).partition("=")
        if name not in limits.NAMES:
            self.fail(f"{value!r}: limits are {', '.join(limits.NAMES)}", param, ctx)
        try:
            number: Any = int(text) if text.isdecimal() else float(text)
            limits.Limits(**{name: number})
        except (ValueError, InvalidInput):
            self.fail(f"{value!r} is not of the form {name}=1e15, a whole number, 0 or more", param, ctx)
        return name, number


class Finite(click.FloatRange):
    """Numbers of a range, without NaN and infinities."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if not isfinite(number := super().convert(value, param, ctx)):
            self.fail(f"{value!r} is not finite", param, ctx)
        return number


FILE = click.Path(path_type=Path)
OUTPUT = click.Path(path_type=Path, dir_okay=False)

model = click.argument("model", type=FILE)
json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
opt_level = click.option(
    "--opt-level", type=click.IntRange(0, 3), default=3, show_default=True, help="How much to optimize."
)
target = click.option(
    "--target",
    default="llvm",
    show_default=True,
    help='What to compile for: "llvm -mcpu=haswell", "tandem", "onednn, cuda", "package.module:name", ...',
)
keep = click.option("--keep", multiple=True, metavar="NAME", help="An op or a node to keep whole; may be repeated.")
verify = click.option(
    "--verify", is_flag=True, help="Compare each rewrite with the graph before it; revert what differs."
)
precision = click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    default="fast",
    show_default=True,
    help="exact: without algorithms that round differently. bfloat16: weights and values between kernels are. "
    "tf32: what a GPU's tensor cores multiply is.",
)
_STATED = "An input's shape, x=1x3x224x224; ? is open, 16*h a multiple, 1..64 between."


def _shape(callback: Callable[[click.Context, click.Parameter, Any], Any], told: str) -> Callable[..., Any]:
    return click.option("--shape", "shapes", multiple=True, type=Shape(), callback=callback, help=f"{_STATED} {told}")


def _one_each(ctx: click.Context, param: click.Parameter, given: tuple[tuple[str, Any], ...]) -> dict[str, Any] | None:
    for name, _ in given:
        if len(shapes := [shape for other, shape in given if other == name]) > 1:
            told = ", ".join("x".join(map(str, shape)) for shape in shapes)
            raise click.BadParameter(f"{name} has {len(shapes)} shapes, {told}: this verb takes one of each input")
    return dict(given) or None


@dataclass(frozen=True)
class Shapes:
    """The shapes of inputs that a verb runs. stated: what compile is told, None where nothing is. calls: what the
    network is called with, one after the other: shapes by the names of inputs, open where nobody gives numbers.

    An input may have several shapes of numbers, which calls take in turn. Then those of its extents stay open in which
    they differ; a shape with open extents says which do, and what is known of them.
    """

    stated: dict[str, tuple[int | str, ...]] | None = None
    calls: tuple[dict[str, tuple[int | str, ...]], ...] = ({},)

    @property
    def is_open(self) -> bool:
        """Return whether extents are said to be open, or are by having several values."""
        return any(not isinstance(d, int) for shape in (self.stated or {}).values() for d in shape)


def _listed(ctx: click.Context, param: click.Parameter, given: tuple[tuple[str, Any], ...]) -> Shapes:
    facts, numbers = dict[str, Any](), dict[str, list[Any]]()
    for name, shape in given:
        if all(isinstance(d, int) for d in shape):
            numbers.setdefault(name, []).append(shape)
        elif facts.setdefault(name, shape) != shape:
            raise click.BadParameter(f"{name} has two shapes with open extents, of which one is what compiling is told")
    if odd := [name for name, shapes in numbers.items() if len(set(map(len, shapes))) > 1]:
        raise click.BadParameter(f"shapes of {', '.join(odd)} have different ranks")
    shared = {n: tuple(d[0] if len(set(d)) == 1 else "?" for d in zip(*shapes)) for n, shapes in numbers.items()}
    stated = {**shared, **facts}
    count = max(map(len, numbers.values()), default=1)
    if odd := [f"{name} has {len(shapes)}" for name, shapes in numbers.items() if len(shapes) not in (1, count)]:
        raise click.BadParameter(f"inputs take their shapes in turn: {', '.join(odd)}, others have {count}")
    calls = ({**facts, **{name: (shapes * count)[i] for name, shapes in numbers.items()}} for i in range(count))
    return Shapes(stated or None, tuple(calls))


shape = _shape(_one_each, "May be repeated for other inputs.")
shapes_in_turn = _shape(
    _listed, "May be repeated, also for one input: it is compiled once, with open extents, and called with each."
)
limit = click.option(
    "--limit",
    "limits",
    multiple=True,
    type=Limit(),
    callback=lambda ctx, param, given: limits.Limits(**dict(given)),
    help=f"What the model may ask for, operations=1e15: {', '.join(limits.NAMES)}. May be repeated.",
)
threads = click.option("--threads", type=click.IntRange(1), default=None, help="Threads that run the network.")
train_state = click.option(
    "--train-state",
    is_flag=True,
    help="Running statistics of norms in training mode are state, which each run replaces.",
)
checked = click.option(
    "--checked", is_flag=True, help="A run that meets an index outside its axis, or divides by zero, is an error."
)
seed = click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of random inputs.")
given = click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="[NAME=]FILE|NAME=VALUE",
    help="A .npy file, or a .npz file with one array per input; sr=16000 is a constant when compiling.",
)
bound = click.option(
    "--input",
    "bound",
    multiple=True,
    metavar="NAME=VALUE",
    callback=lambda ctx, param, given: _bound(given),
    help='Elements of an input, constants then: sr=16000, axes=[2,3]; n="1..64" stays open. May be repeated.',
)


def split_values(given: Sequence[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return elements of --input, NAME=VALUE in JSON, by their names, and what names files."""
    values, files = dict[str, Any](), list[str]()
    for text in given:
        name, sign, value = text.partition("=")
        try:
            found = json_text.loads(value) if sign and name else None
        except ValueError:
            found = None
        if isinstance(found, (bool, int, float, list, str)):
            values[name] = found
        else:
            files.append(text)
    return values, tuple(files)


def _bound(given: Sequence[str]) -> dict[str, Any] | None:
    values, others = split_values(given)
    if others:
        raise click.BadParameter(f"{', '.join(others)} is not of the form sr=16000 or axes=[2,3]")
    return values or None


def arrays(files: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
    """The arrays of --input by the names of a network's inputs: `x=file.npy`, `file.npy` for the next input that is not
    named, `file.npz` for several at once."""
    found: dict[str, Any] = {}
    for text in files:
        name, sign, file = text.rpartition("=")
        if isinstance(held := arrays_of(file), np.ndarray):
            left = [n for n in names if n not in found]
            if not sign and not left:
                raise InvalidInput(f"--input {text}: every input has an array already", [f"inputs: {', '.join(names)}"])
            found[name if sign else left[0]] = held
        else:
            found.update(held)
    unknown = [n for n in found if n not in names]
    if unknown:
        raise InvalidInput(f"{', '.join(unknown)}: no such input", [f"inputs: {', '.join(names)}"])
    return found


def _gathering(into: str, names: Sequence[str], options: Sequence[Any]) -> Callable[[Callable[..., Any]], Any]:
    """Return what gives a verb these options. The values of those called `names` arrive as one dict, `into`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def gathered(*args: Any, **given: Any) -> Any:
            held = {name: given.pop(name) for name in names if name in given}
            return command(*args, **{into: held}, **given)

        for option in reversed(options):
            gathered = option(gathered)
        return gathered

    return decorate


# as renorm.compile takes them
_OPTIONS = (
    "opt_level",
    "target",
    "keep",
    "verify",
    "precision",
    "shapes",
    "threads",
    "limits",
    "train_state",
    "checked",
)


def _compiling(shape: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    return _gathering("options", _OPTIONS, (opt_level, target, keep, verify, precision, shape, threads, limit))


compiling = _compiling(shape)
calling = _compiling(shapes_in_turn)  # the same, where `shapes` are Shapes
trusting = _gathering(
    "trust",  # as renorm.load takes it
    ("digest", "key"),
    (
        click.option("--digest", metavar="SHA256", help="An artifact is refused that does not have this digest."),
        click.option("--key", metavar="FILE", help="An artifact is refused that this public key's owner did not sign."),
    ),
)


def verb(name: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Makes a function a verb: with --json, and with errors of renorm turned into text and exit codes. The function
    returns what is to be printed as JSON, and itself prints what people read, which is silent with --json."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        @functools.wraps(function)
        def guarded(*args: Any, as_json: bool, **given: Any) -> None:
            with output.guarded(as_json):
                output.finish(function(*args, **given), as_json)

        return click.command(name)(json(guarded))

    return decorate

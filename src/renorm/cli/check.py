"""renorm check: whether compiled code, or another file, computes the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import renorm
from renorm.cli import network, output
from renorm.cli.options import FILE, Shapes, arrays, calling, given, model, seed, split_values, verb
from renorm.cli.progress import progress
from renorm.core.difference import Difference
from renorm.core.random_inputs import random_inputs
from renorm.core.tolerance import Tolerance
from renorm.driver import compare_parts
from renorm.driver.compare import REFERENCES, Comparison, compare, compare_draws, compare_open
from renorm.driver.draws import drawn, load_draws, random_draws, save_draws
from renorm.driver.runners import RUNNERS, run_draws
from renorm.driver.state import first_run
from renorm.errors import InvalidInput
from renorm.frontends.outline import Hosted, Outline

_RUNNER = "interpreter"  # the default of --with


@verb("check")
@model
@click.argument("after", metavar="[AFTER]", required=False, type=FILE)
@click.option("-d", "--delta", type=click.FloatRange(0), help="Two files: an element may differ by that, absolute.")
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    help="Of an output's largest value. Default, without -d: what its dtype allows, in every channel.",
)
@click.option("--with", "runner", type=click.Choice([*RUNNERS]), default=_RUNNER, help="What runs two files.")
@click.option("--draws", type=click.IntRange(1), default=1, show_default=True, help="How many random inputs.")
@click.option("--inputs", "inputs_file", type=FILE, help="A file that --save wrote, or an .npz: inputs by name.")
@click.option("--save", "save_to", type=FILE, help="Keep inputs and MODEL's outputs there, .h5 or .npz.")
@click.option("--expected", "expected_file", type=FILE, help="Compare MODEL with what --save kept there.")
@click.option("--names", "names_count", is_flag=True, help="Names that differ count as a difference.")
@given
@seed
@click.option("--reference", type=click.Choice(REFERENCES), default=None, help="Default: ort if it runs the model.")
@calling
def command(
    model: Path,
    after: Path | None,
    delta: float | None,
    tolerance: float | None,
    runner: str,
    draws: int,
    inputs_file: Path | None,
    save_to: Path | None,
    expected_file: Path | None,
    names_count: bool,
    inputs: tuple[str, ...],
    seed: int,
    reference: str | None,
    options: dict[str, Any],
) -> output.Outcome:
    """Compares MODEL compiled by renorm with ONNX Runtime, or with the reference interpreter, on random inputs
    or given ones; names the first node that diverges. Says how far each layer that is computed by an algorithm which
    rounds differently is from its definition in float64; with --precision bfloat16 or tf32, how far each value between
    kernels is. With a shape that leaves extents open, or several of one input, the network is compiled once for all of
    them, and compared at each.

    With AFTER, two files (.onnx, .tflite, .circle, also one of each) are run on the same inputs by what --with names:
    renorm's interpreter in float64, renorm's own code, ONNX Runtime (ort), LiteRT, or tico's runtime of Circle files
    (circle). Inputs and outputs are taken by position, and differing names reported apart. An element differs if
    |before - after| is above -d, or above --tolerance times the largest absolute value of the output before; with both,
    if it is above both; with neither, if it is above what the dtype allows in its channel, and what rounding moves the
    network by. --save keeps inputs and MODEL's outputs, with which --expected compares later.

    Exit code 1 if outputs differ."""
    allowed = Tolerance(delta or 0.0, tolerance if delta is None else tolerance or 0.0)
    if after is None and expected_file is None and save_to is None:
        if delta is not None:
            raise InvalidInput("-d compares two files", do="name a second file, or use --tolerance")
        of_two = {"--inputs": inputs_file, "--draws": draws > 1, "--names": names_count, "--with": runner != _RUNNER}
        if unused := [option for option, is_given in of_two.items() if is_given]:
            raise InvalidInput(f"{', '.join(unused)} is for two files", do="name a second file, or --expected, --save")
        return _compiled(model, inputs, seed, reference, tolerance, options)
    if after is not None and expected_file is not None:
        raise InvalidInput("--expected takes the place of one of two files", do="name one model")
    shapes, limits = options.pop("shapes"), options["limits"]
    if len(shapes.calls) > 1:
        raise InvalidInput("two files are compared at one shape of each input", do="leave out the other shapes")
    if expected_file is not None:
        before = load_draws(expected_file, inputs_file), f"kept in {expected_file.name}"
    else:
        if inputs_file is not None:
            given = load_draws(inputs_file)
        else:
            named = arrays(inputs, [v.name for v in renorm.read(model, limits=limits).inputs])
            given = random_draws(model, named, seed=seed, count=draws, shapes=shapes.calls[0], limits=limits)
        with progress(f"running {model.name}"):
            before = run_draws(model, given, runner, **options)
    if save_to is not None:
        save_draws(save_to, before[0])
        output.line(f"{save_to}: inputs and outputs, {len(before[0])} times; computed by {before[1]}")
        if after is None and expected_file is None:
            return output.Outcome({"saved": str(save_to), "draws": len(before[0]), "by": before[1]})
    last = after or model
    with progress(f"running {last.name}"):
        found = compare_draws(before, run_draws(last, before[0], runner, **options), allowed, model, after, limits)
    output.line(f"before: {found.before}")
    output.line(f"after:  {found.after}")
    _print(found, f"values, {found.draws} draw{'s' if found.draws > 1 else ''} of inputs")
    output.line("names: the same" if not found.names else f"names: {len(found.names)} differ")
    output.table("names that differ", ("", "before", "after"), found.names)
    if (f := found.first) is not None:
        output.line(
            f"first diverging tensor: {f.name!r}, made by {f.node} ({f.op}): "
            f"{f.distance:.3g} of {f.largest:.3g} at {list(f.worst)}"
        )
    elif not found.agrees and after is not None:
        output.line("no tensor that has the same name and shape in both diverges where the interpreter runs both")
    return _outcome(found, found.agrees and not (names_count and found.names))


def _compiled(
    model: Path,
    inputs: tuple[str, ...],
    seed: int,
    reference: str | None,
    tolerance: float | None,
    options: dict[str, Any],
) -> output.Outcome:
    bound, files = split_values(inputs)
    shapes: Shapes = options.pop("shapes")
    try:
        graph = first_run(renorm.read(model, inputs=bound, limits=options["limits"]))
    except Hosted as error:
        if error.outline is None:
            raise
        return _in_parts(model, error.outline, files, bound, seed, reference, tolerance, shapes, options)
    held = arrays(files, [v.name for v in graph.inputs])
    calls = [drawn(graph, held, seed, s) for s in shapes.calls]
    elements: dict[str, Any] = {name: graph.constants[name].told for name in bound}
    named: dict[str, Any] = {"reference": reference, "tolerance": tolerance, "bound": tuple(bound)}
    arguments = [{**call, **elements} for call in calls]
    with progress(f"checking {model.name}") as tell:
        named |= options | {"progress": tell}
        if shapes.is_open:
            compared = list(compare_open(model, arguments, shapes=shapes.stated, **named))
        else:
            compared = [compare(model, given, **named) for given in arguments]
    return _told(calls, compared)


def _in_parts(
    model: Path,
    outline: Outline,
    files: tuple[str, ...],
    bound: Mapping[str, Any],
    seed: int,
    reference: str | None,
    tolerance: float | None,
    shapes: Shapes,
    options: dict[str, Any],
) -> output.Outcome:
    inputs = outline.plan.inputs
    held = arrays(files, [v.name for v in inputs])
    calls = [random_inputs(inputs, seed, s, held=held) for s in shapes.calls]
    with progress(f"checking {model.name}") as tell:
        more: dict[str, Any] = {"inputs": bound, "progress": tell, **options}
        compared = list(compare_parts.compare(model, outline, calls, reference, tolerance, **more))
    return _told(calls, compared)


def _told(calls: Sequence[Mapping[str, Any]], compared: Sequence[Comparison]) -> output.Outcome:
    told = list[tuple[Mapping[str, Any], Mapping[str, Any]]]()
    for call, found in zip(calls, compared, strict=True):
        where = f" at {network.shapes_text(call)}" if len(calls) > 1 else ""
        _print(found, f"against {found.reference}{where}")
        if found.roundings:
            layers = [(r.node, r.algorithm, r.l2, r.largest) for r in found.roundings]
            title = f"layers that round differently{where}"
            output.table(title, ("node", "algorithm", "relative L2 error", "largest"), layers)
        if found.held:
            title = f"values as memory holds them, from float64{where}"
            values = [(h.value, h.node, h.dtype, h.l2, h.largest, h.reason) for h in found.held]
            output.table(
                title, ("value", "node", "as", "relative L2 error", "largest", "why not in fewer digits"), values
            )
        if f := found.first:
            output.line(f"first diverging node: {f.node!r} ({f.op}), relative error {f.error:.3g}")
        told.append((call, _outcome(found, found.agrees).data))
    agrees = all(found.agrees for found in compared)
    return output.Outcome(network.of_calls(told) | {"agrees": agrees}, 0 if agrees else 1)


def _print(found: Comparison, title: str) -> None:
    columns = ("", "output", "type", "relative error", "largest error", "allowed", "largest value", "differ", "")
    rows = [
        (i, d.name, d.before_type, d.error, d.distance, d.limit, d.largest, d.differing, _verdict(d, found.reference))
        for i, d in enumerate(found.outputs)
    ]
    output.table(title, columns, rows)


def _verdict(d: Difference, reference: str) -> str:
    verdict = ("agrees" if d.largest else "agrees, all zero") if d.agrees else f"DIFFERS, most at {list(d.worst)}"
    if d.own is not None and d.departs is not None:
        verdict = "agrees with the definition" if d.agrees else verdict
        verdict += f": from float64 {reference} is off by {d.departs:.3g}, renorm by {d.own:.3g}"
    verdict = d.why or verdict
    verdict += f"; not compared: {d.unchecked}" if d.unchecked else ""
    return verdict + (f", axes moved: {d.moved}" if d.moved else "")


def _outcome(found: Comparison, agrees: bool) -> output.Outcome:
    outputs = [asdict(d) | {"agrees": d.agrees, "unchecked": d.unchecked} for d in found.outputs]
    return output.Outcome(asdict(found) | {"outputs": outputs, "agrees": agrees}, 0 if agrees else 1)

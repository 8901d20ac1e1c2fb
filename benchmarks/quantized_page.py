"""docs/quantized.md: how far quantized networks are from integer kernels of other runtimes, and how fast they are."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT, label
from benchmarks.quantized_latency import OF_ONNX, OF_TFLITE
from benchmarks.run import RESULTS

PAGE = ROOT / "docs" / "quantized.md"
STEP = 1.01  # with what rounding adds to the difference of two neighbours
FEW = 4  # tensors that are named of a file
PEERS = ("ort", "openvino", "openvino_default", "litert")
PARTS = ("networks", "flat", "latency")
FLAT = """
What LiteRT computes otherwise than the definition from the tensors that it made itself, operator by operator, and what
renorm does (`passes/litert.py`; files are written with the operators that were read):

- ADD, SUB: XNNPACK has ratios of scales of 21 bits, and rounds halves upwards. Followed.
- LEAKY_RELU: XNNPACK multiplies by 256ths, which decides one element in a hundred. Followed.
- HARD_SWISH, SQUARED_DIFFERENCE, BATCH_MATMUL, RELU to another scale: products with fractions of 15 or 31 bits, which
  are rounded and, after a shift, rounded again. Followed.
- RESIZE_BILINEAR: XNNPACK rounds halves upwards. Followed; its weights of 11 bits are not.
- MEAN: XNNPACK rounds to even integers with their zero point; of 16 bits LiteRT rounds twice. Followed.
- Convolutions of 16 bits are scaled by fractions of 15 bits, which is a step at the ends of the range. Followed. LiteRT
  adds up in 64 bits and renorm in float32, so that one element in some thousands is a step off in each layer, and such
  networks are some steps apart: 2 of 65,536 after ten layers, 41 after 120.
- LOGISTIC of 16 bits: LiteRT interpolates in a table, and one element in six is a step from the function. Not followed.
- TRANSPOSE_CONV and PRELU of 8 bits: products are of float32. One element in some thousands, beside a half, is another
  one than that of XNNPACK's float32 or of the second rounding. Not followed.
- Dynamic ranges: LiteRT quantizes data in each run, renorm multiplies floats, which the file has. Not followed.
"""
LIMIT = """
The limit on Zen 4: a core begins 64 products of bytes in a cycle, of which there were 3.56e9 a second (`renorm profile`
measures multiply-adds, which begin as often). So the products of resnet50, 4.09e9, take 17.9 ms on one thread, and
those of mobilenet_v2, 0.30e9, 1.3 ms.
"""
WHY = {
    "leaky_relu": "A slope of 0.1 makes halves of many integers; what is a digit of float32 beside one becomes the "
    "other integer, in both runtimes.",
    "add": "ONNX Runtime adds `a * (a_scale / y_scale)` and `b * (b_scale / y_scale)` in float32, where the file says "
    "that a sum is divided by y_scale: what is a digit of float32 beside a half becomes the other integer.",
    "softmax": "ONNX Runtime replaces it by QLinearSoftmax, which adds exponentials from a table of 256 entries.",
    "conv_transpose": "Its weights are floats in the file. ONNX Runtime's optimizer quantizes them to 8 bits of its "
    "own accord, and the bias to 32.",
    "resize": "ONNX's text does not say how a mean of integers becomes one. Its reference evaluator takes the nearest "
    "one, halves to even, and so does renorm; ONNX Runtime drops the fraction. Its cubic means of floats are 3e-6 from "
    "float64 (renorm's are 5e-7), which decides some halves.",
    "mul": "The scale of an attention mask of -3.4e38 is rounded up, so that -127 times it is -inf. renorm cuts that "
    "to the least float. ONNX Runtime multiplies it by 0 and makes -128 of the NaN: everything is masked.",
    "concat": "Floats that are quantized while the network runs are sums in float32, in another order in both runtimes "
    "than in the definition: what is beside a half becomes the other integer.",
}


def results(folder: Path = RESULTS) -> dict[str, Any]:
    """Return what was measured: of each part the newest; of latency, that of each kind of machine."""
    found, timed = dict[str, Any](), dict[str, tuple[str, Any]]()
    for file in sorted(folder.glob("quantized-*.json"), key=lambda f: json.loads(f.read_text())["when"]):
        new = json.loads(file.read_text())
        where = {part: _where(new, part) for part in PARTS if part in new}
        found |= {**new, "where": found.get("where", {}) | where}
        if "latency" in new:
            timed.pop(label(new), None)
            timed[label(new)] = where["latency"], new["latency"]
    return found | {"latency": [*timed.values()][::-1]}


def _where(new: dict[str, Any], part: str) -> str:
    """Return a sentence that says when, of which commit and on which machine a part was measured."""
    commits = dict[str, dict[str, None]]()  # networks of each
    for name, forms in new[part].items() if part == "networks" else ():
        for form in forms.values():
            commits.setdefault(_named(form.get("on", new["commit"])), {})[name] = None
    first, *older = sorted(commits or {_named(new["commit"]): {}}, key=lambda c: -len(commits.get(c, ())))
    of = ", and ".join([first, *(f"{', '.join(commits[c])} of {c}" for c in older)])
    machine = new["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    return (
        f"Measured on {new['when'][:10]}, of commit {of}, on {label(new)}, {machine['cores']} cores, with {packages}."
    )


def _named(commit: Mapping[str, Any]) -> str:
    return f"{commit['id'][:8]}{' with changes' if commit['changed'] else ''}"


def page(found: Mapping[str, Any]) -> str:
    """Return the page."""
    cases = [of for own in found["networks"].values() for of in own.values()]
    near = [of for of in cases if of.get("steps", 2 * STEP) <= STEP]
    whole = sum(all(of.get("steps", 2 * STEP) <= STEP for of in own.values()) for own in found["networks"].values())
    exact = sum(of.get("steps") == 0 for of in cases)
    defined = [of for of in cases if of not in near and of.get("from definition", 2 * STEP) <= STEP]
    packages, where = found["machine"]["packages"], found.get("where", {})
    return (
        "\n".join(
            [
                f"""# Quantized networks

{len(near)} of {len(cases)} files of {len(found["networks"])} networks agree with the integer kernels of ONNX Runtime
{packages.get("onnxruntime", "")} to one step at every output, {exact} of them in every element
(`python -m benchmarks quantized`). Of the others, {len(defined)} are at most one step from what the file says, in
float64{_rest(cases)}. {whole} networks agree in every file. Networks have public definitions and random weights;
ONNX Runtime's quantizer and its optimizer make the files, in two of eight forms of each network, in four of small ones,
in all of a few. Inputs are random numbers and walks, whose neighbours are alike; the second batch is of 3
images of odd sizes, and the first file of each network is compiled once for both.

A step is the scale of an output that is dequantized, or a 255th of the range of another one. *reference off* is how far
ONNX Runtime is from what the file says, computed in float64; *off* is how far renorm is. Files that are more than one
step from ONNX Runtime are bold. {where.get("networks", "")}

## What quantized files become

- Integers between kernels are counted in steps from their zero point. A product of two quantized tensors is one of
  integers, with one multiplication by `x_scale * w_scale` behind it; sums are exact.
- Rounding is to nearest, halves to even, and results are cut to the range of the integer type, where files say so.
- A NaN becomes 0 where integers are written, and stays one between kernels.
- What QuantizeLinear and DequantizeLinear enclose is computed in float32, as the file says, and resized integers are
  rounded: where ONNX Runtime does otherwise is below, operator by operator.
- Integers whose scale makes an infinity of them stand for the greatest float.

## Agreement with ONNX Runtime
""",
                *_agreement(found["networks"]),
                *_departures(found["networks"]),
                *(_flat(found["flat"], where.get("flat", "")) if "flat" in found else ()),
                *_latency(found["latency"]),
            ]
        ).rstrip()
        + "\n"
    )


def _rest(cases: Sequence[Mapping[str, Any]]) -> str:
    """Return a part of a sentence about files that agree with nothing."""
    far = sum(min(of.get("steps", 2 * STEP), of.get("from definition", 2 * STEP)) > STEP for of in cases)
    return f", and {far} {'are' if far > 1 else 'is'} neither" if far else ""


def _agreement(networks: Mapping[str, Any]) -> Iterator[str]:
    yield "| network | form | steps | share that differs | off | reference off |"
    yield "|---|---|---|---|---|---|"
    for name, own in networks.items():
        for form, of in own.items():
            if "said" in of:
                yield f"| {name} | {form} | not read | | | {of['said'].splitlines()[0]} |"
                continue
            if "reference said" in of:
                off, node = _steps(of["from definition"]), _node(of["reference said"])
                yield f"| {name} | {form} | | | {off} | does not run {node} |"
                continue
            steps = _steps(of["steps"])
            steps = steps if of["steps"] <= STEP else f"**{steps}**"
            off, others = _steps(of["from definition"]), _steps(of["reference from definition"])
            yield f"| {name} | {form} | {steps} | {of['share']:.1%} | {off} | {others} |"
    yield ""


def _departures(networks: Mapping[str, Any]) -> Iterator[str]:
    """Of files that are more than a step apart, the tensors that are not what the definition makes of those before."""
    apart = [
        (f"{n}, {form}", of["departures"]) for n, o in networks.items() for form, of in o.items() if "departures" in of
    ]
    if not apart:
        return
    yield """## Where they depart

Of files that are more than a step apart: the quantized tensors that a runtime computes otherwise than the definition
does from the quantized tensors that the runtime itself made before, after the operator that makes what is quantized,
and by how many steps. Why ONNX Runtime's differ is said below.

| file | renorm | ONNX Runtime |
|---|---|---|"""
    operators = dict.fromkeys(place.split()[0] for _, of in apart for place in of["ONNX Runtime"])
    for name, of in apart:
        columns = ["; ".join(places[:FEW]) + ("; ..." if len(places) > FEW else "") for places in of.values()]
        yield f"| {name} | {' | '.join(columns)} |"
    yield ""
    yield from (f"- {operator}: {WHY[operator]}" for operator in operators if operator in WHY)
    yield ""


def _node(said: str) -> str:
    """Return what an error of ONNX Runtime says of a node."""
    return said.partition("running ")[2].partition(" Status")[0] or said


def nearest(steps: Mapping[str, Any]) -> float:
    """Return how many steps a TensorFlow Lite file is from the kernels of LiteRT that it is nearest to."""
    return min(steps.get(kernels, math.inf) for kernels in ("reference", "xnnpack"))


def _flat(files: Mapping[str, Any], where: str) -> Iterator[str]:
    near, networks = sum(nearest(of) <= STEP for of in files.values()), dict[str, list[float]]()
    for name, of in files.items():
        networks.setdefault(name.partition(".")[0], []).append(nearest(of))
    drawn = sum(name.startswith("random") for name in networks)
    whole = sum(max(own) <= STEP for own in networks.values())
    yield f"""## Agreement with LiteRT

{near} of {len(files)} TensorFlow Lite files are at most one step from LiteRT's reference kernels or from those of
XNNPACK, which it runs by default and which are not the same: the last column has how far one is from the other. Of
{len(networks)} networks, {drawn} of them drawn at random, {whole} are so in every file. A step of int16 is one of
65,536. {where}

| file | reference | built in | xnnpack | xnnpack from reference |
|---|---|---|---|---|"""
    for name, of in files.items():
        if "said" in of:
            yield f"| {name} | not read | | | {of['said'].splitlines()[0]} |"
            continue
        columns = [_steps(of[key]) for key in ("reference", "built in", "xnnpack", "xnnpack from reference")]
        yield f"| {name} | {' | '.join(columns)} |"
    yield FLAT


def _latency(machines: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]) -> Iterator[str]:
    yield """## Latency

Milliseconds, medians of turns that are interleaved, each runtime in a process of its own. *renorm_tflite* and *litert*
run the TensorFlow Lite file of the same architecture. The ratio is renorm's faster one to the fastest of the others."""
    for where, measured in machines:
        yield from _times(where, measured)
    yield LIMIT


def _times(where: str, measured: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    names = (*OF_ONNX, *OF_TFLITE)
    yield f"""
{where}

| network | threads | {" | ".join(names)} | ratio |
|---|---|{"---|" * len(names)}---|"""
    for of in measured:
        times = {name: of["runtimes"].get(name, {}).get("ms") for name in names}
        own, others = ([times[n] for n in names if times[n] and (n in PEERS) == is_peer] for is_peer in (False, True))
        ratio = f"{min(own) / min(others):.2f}" if own and others else ""
        columns = [f"{times[n]:.3f}" if times[n] else "" for n in names]
        yield f"| {of['network']} | {of['threads']} | {' | '.join(columns)} | {ratio} |"


def _steps(value: float) -> str:
    """Return a number of steps, 0 where it is that of rounding."""
    return "0" if value < 0.005 else f"{value:.2f}".rstrip("0").rstrip(".")


def write() -> Path:
    """Write the page of all results."""
    PAGE.write_text(page(results()))
    return PAGE

"""renorm demo: the trained network of examples/digits, compiled, run and checked."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import renorm
from renorm.cli import output
from renorm.cli.inspect import norms_table
from renorm.cli.options import keep, opt_level, target, threads, verb, verify
from renorm.cli.progress import progress
from renorm.driver.compare import compare
from renorm.driver.worker import timed
from renorm.errors import InvalidInput

# in a wheel the files lie beside this one, in a checkout under examples
_PLACES = (Path(__file__).parent / "digits", Path(__file__).parents[3] / "examples" / "digits")
_SECONDS = 1.0  # for which each latency is measured


@verb("demo")
@opt_level
@target
@keep
@verify
@threads
def command(**options: Any) -> output.Outcome:
    """Compiles a small trained network that comes with renorm, and prints its accuracy on 540 handwritten digits, what
    became of its normalizations, its latency, and how far it is from ONNX Runtime."""
    directory = next((p for p in _PLACES if (p / "model.onnx").exists()), None)
    if directory is None:
        raise InvalidInput("the digits network is not there", [f"looked in {', '.join(map(str, _PLACES))}"])
    with np.load(directory / "test.npz") as held:
        images, labels = held["images"][:, None].astype(np.float32) / 16, held["labels"]
    model = directory / "model.onnx"
    with progress("compiling") as tell:
        module = renorm.compile(model, shapes={"pixels": images.shape}, progress=tell, **options)
        single = renorm.compile(model, shapes={"pixels": (1, *images.shape[1:])}, progress=tell, **options)
    scores = module.run(images)[0]
    accuracy = float((scores.argmax(1) == labels).mean())
    compared = compare(model, {"pixels": images}, **options)
    one = median(timed(lambda: single.run(images[:1]), _SECONDS))
    all_ = median(timed(lambda: module.run(images), _SECONDS))
    error = max(d.error for d in compared.outputs)
    output.line(f"digits: a network of {len(module.graph.nodes)} nodes in {len(module.report.kernels)} kernels")
    norms_table(module.report.norms)
    for line in module.report.verified.lines if module.report.verified else ():
        output.line(line)
    output.line(f"accuracy        {accuracy:.2%} of {len(labels)} images it was not trained on")
    output.line(f"latency         {one * 1e3:.0f} us for one image, {all_:.2f} ms for {len(labels)}")
    reference = {"ort": "ONNX Runtime", "interpreter": "the reference interpreter"}[compared.reference]
    verdict = "agrees" if compared.agrees else "DIFFERS"
    output.line(f"{verdict} with {reference}: largest difference {error:.1e} of the largest score")
    data = {
        "accuracy": accuracy,
        "images": len(labels),
        "latency_ms": {"one": one, "all": all_},
        "reference": compared.reference,
        "error": error,
        "agrees": compared.agrees,
        "report": module.report.to_json(),
    }
    return output.Outcome(data, 0 if compared.agrees else 1)

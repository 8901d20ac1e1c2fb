"""Small files of every kind that tests make, from which damaged ones are made. They are kept: they take seconds."""

from __future__ import annotations

import os
import pickle
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

_MOST = 6_000  # bytes of a file of ONNX: of what is larger most are elements
_KEPT = Path(__file__).parents[2] / ".pytest_cache"


def seeds(form: str) -> list[bytes]:
    """Return the files of a format: onnx, tflite, circle, keras, h5 or pt2."""
    made_by = [Path(__file__), *(Path(__file__).parent / f"test_{f}.py" for f in ("keras_models", "torch_program"))]
    state = [*map(_version, ("onnx", "torch", "keras")), *(p.read_text("utf-8") for p in made_by)]
    kept = _KEPT / f"fuzz-{form}-{sha256('-'.join(state).encode()).hexdigest()[:16]}"
    with suppress(OSError, EOFError, pickle.UnpicklingError):
        found: list[bytes] = pickle.loads(kept.read_bytes())
        return found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = list(dict.fromkeys(_MAKERS[form]()))
    _KEPT.mkdir(exist_ok=True)
    aside = kept.with_name(f"{kept.name}.{os.getpid()}")
    aside.write_bytes(pickle.dumps(made))
    aside.replace(kept)
    return made


def _version(package: str) -> str:
    with suppress(PackageNotFoundError):
        return version(package)
    return "none"


def _onnx() -> Iterator[bytes]:
    """Cases of the onnx package; bodies, functions, elements in another file."""
    from onnx import parser
    from onnx.external_data_helper import set_external_data
    from tests.frontends import test_control_flow as control_flow
    from tests.frontends.backend_cases import collect
    from tests.frontends.models import batch_norm, model, running
    from tests.frontends.test_function_bodies import FUNCTION

    yield from (c for case in collect() if len(c := case.model.SerializeToString()) < _MOST)
    texts = [
        *control_flow.LOOPS.values(),
        *(control_flow.SCAN.format(attributes=a) for a in control_flow.SCANS.values()),
    ]
    for _ in range(10):  # there are few of these, and most of what may be wrong
        yield from (model(text, opset=18).SerializeToString() for text in texts)
        yield parser.parse_model(
            FUNCTION.replace("CALLS", "z = my.leaky <alpha = 0.5> (x) y = my.outer (z)")
        ).SerializeToString()
        yield batch_norm([1.0, 2.0, 3.0]).SerializeToString()
        yield running(2, 3, 4).SerializeToString()
        outside = model("g (float[2, 3] x) => (float[2, 3] y) { y = Add(x, w) }", w=np.ones((2, 3), np.float32))
        set_external_data(outside.graph.initializer[0], "held.data", 0, 24)
        outside.graph.initializer[0].ClearField("raw_data")
        yield outside.SerializeToString()


def _tflite() -> Iterator[bytes]:
    from tests.frontends.quantized_files import spotter
    from tests.frontends.test_tflite_reader import CASES, build
    from tests.frontends.test_tflite_recurrent import lstm

    yield from (build(case)[0] for case in CASES)
    draw = np.random.default_rng(0)
    yield from (spotter(draw, dtype, depth)[0] for dtype in ("int8", "uint8", "int16") for depth in (1, 4))
    yield from (lstm(has_input, has_peepholes)[0] for has_input in (False, True) for has_peepholes in (False, True))


def _circle() -> Iterator[bytes]:
    from renorm.frontends.tflite.flatbuffer import Table, decode, encode
    from renorm.frontends.tflite.schema import schema

    own = schema(b"CIR0")

    def as_circle(value: Any) -> Any:
        if isinstance(value, Table):
            return Table(value.name, own, {k: as_circle(v) for k, v in value.fields.items()})
        return [as_circle(v) for v in value] if isinstance(value, list) else value

    for content in _tflite():
        with suppress(KeyError):  # what only the other format has
            yield encode(b"CIR0", as_circle(decode(memoryview(content), "seed")[1]), "seed")


def _saved(form: str) -> Callable[[], Iterator[bytes]]:
    def make() -> Iterator[bytes]:
        import logging

        from tests.frontends.keras_models import trained
        from tests.frontends.test_keras_layers import CASES, model_of
        from tests.frontends.test_keras_models import MODELS

        logging.getLogger("absl").setLevel(logging.ERROR)  # which advises against one of the formats
        makers = [*(lambda make=make: trained(make()) for make in MODELS.values())] * 2
        makers += [lambda make=make: model_of(make()) for make in [*CASES.values()][::3]]
        for make_model in makers:
            with tempfile.TemporaryDirectory() as directory, suppress(NotImplementedError, TypeError, ValueError):
                path = Path(directory) / f"seed.{form}"
                make_model().save(path)
                yield path.read_bytes()

    return make


def _pt2() -> Iterator[bytes]:
    import torch
    from tests.frontends.test_torch_program import BATCH, CALLS, Norms, trained

    class Applied(torch.nn.Module):
        def __init__(self, compute: Callable[..., Any]):
            super().__init__()
            self.compute = compute

        def forward(self, *given: torch.Tensor) -> Any:
            return self.compute(*given)

    given: list[tuple[torch.nn.Module, list[Any], Any]] = [(Applied(f), list(shapes), None) for f, shapes in CALLS]
    small = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    given += [(trained(Norms()), [(2, 3, 8, 8)], None), (trained(small), [(2, 3, 5, 7)], BATCH)]
    given += [(small.train(), [(2, 3, 5, 7)], None), (torch.nn.LSTM(3, 4), [(2, 5, 3)], None)]
    for module, shapes, dynamic in given:
        with tempfile.TemporaryDirectory() as directory, suppress(Exception):  # of PyTorch's exporter, whatever it is
            path = Path(directory) / "seed.pt2"
            tensors = tuple(torch.randn(*s) for s in shapes)
            torch.export.save(torch.export.export(module, tensors, dynamic_shapes=dynamic), path)
            yield path.read_bytes()


_MAKERS: dict[str, Callable[[], Iterator[bytes]]] = {
    "onnx": _onnx, "tflite": _tflite, "circle": _circle, "keras": _saved("keras"), "h5": _saved("h5"), "pt2": _pt2,
}  # fmt: skip

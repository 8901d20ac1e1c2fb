"""Without the onnx package models are read and run; what needs it says so, and how to get it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
from onnx import helper, parser

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "model.onnx"
BEFORE = """
import sys
sys.modules["onnx"] = None  # as if it were not installed
import numpy as np
import renorm
def refused(call, *words):
    try:
        call()
    except renorm.errors.RenormError as error:
        assert all(word in str(error) for word in words), str(error)
    else:
        raise AssertionError(words)
"""
FUNCTION = """<ir_version: 8, opset_import: ["": 17, "own": 1]> g (float[2] x) => (float[2] y) { y = own.twice (x) }
<opset_import: ["": 17], domain: "own"> twice (a) => (b) { b = Add (a, a) }"""
HANN = """<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) <int64 n = {2}> { w = HannWindow (n)
y = Mul (x, w) }"""


def without_onnx(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", BEFORE + program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_models_are_read_compiled_and_checked_against_another_runtime() -> None:
    without_onnx(f"""
m = renorm.compile({str(DIGITS)!r}, shapes={{"pixels": (2, 1, 8, 8)}}, verify=True)
import onnxruntime
x = np.random.default_rng(0).random((2, 1, 8, 8), dtype=np.float32)
(expected,) = onnxruntime.InferenceSession({str(DIGITS)!r}).run(None, {{"pixels": x}})
np.testing.assert_allclose(m.run(x)[0], expected, atol=1e-5)
""")


def test_what_needs_it_says_so(tmp_path: Path) -> None:
    function, hann, future = (tmp_path / f"{name}.onnx" for name in ("function", "hann", "future"))
    onnx.save(parser.parse_model(FUNCTION), function)
    onnx.save(parser.parse_model(HANN), hann)
    model = parser.parse_model(FUNCTION.split("\n")[0].replace("own.twice", "Relu"))
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", 99))
    future.write_bytes(model.SerializeToString())
    folded = tmp_path / "folded.onnx"
    without_onnx(f"""
install = 'pip install "renorm[onnx]"'
refused(lambda: renorm.optimize({str(DIGITS)!r}, {str(folded)!r}), "writing ONNX files needs the onnx package", install)
refused(lambda: renorm.unfold({str(DIGITS)!r}, {str(folded)!r}), "the reversal of ONNX files needs", install)
from renorm.frontends import statistics_of
refused(lambda: statistics_of({str(DIGITS)!r}), "the statistics of ONNX files needs", install)
refused(lambda: renorm.compile({str(function)!r}), "function.onnx: a model with functions of its own needs", install)
refused(lambda: renorm.compile({str(hann)!r}), "HannWindow", "the onnx package is not installed", install)
refused(lambda: renorm.compile({str(future)!r}), "ai.onnx 99", "known: 1 to", install)
""")
    assert not folded.exists()

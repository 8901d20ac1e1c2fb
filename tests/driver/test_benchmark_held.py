"""Other runtimes are held to AVX2 by what CPUID tells them; whether they are is measured."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from benchmarks import held, page
from onnx import parser
from tests.random_numbers import RNG

from renorm.driver.measure import Contender, side_by_side

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or not all(map(shutil.which, ("gcc", "objdump"))), reason="x86-64, gcc and objdump"
)
ASKING = """
#include <stdint.h>
static uint32_t early[4];
static void ask(uint32_t leaf, uint32_t subleaf, uint32_t *told) {
    __asm__ volatile("cpuid" : "=a"(told[0]), "=b"(told[1]), "=c"(told[2]), "=d"(told[3]) : "a"(leaf), "c"(subleaf));
}
__attribute__((constructor)) static void first(void) { ask(7, 0, early); }
void now(uint32_t leaf, uint32_t subleaf, uint32_t *told) { ask(leaf, subleaf, told); }
uint32_t *before(void) { return early; }
uint32_t constant(void) { uint32_t x; __asm__ volatile("movl $0x00a20f00, %0" : "=r"(x)); return x; }
"""
TELLING = """
import ctypes, json, sys
library, told = ctypes.CDLL(sys.argv[1]), (ctypes.c_uint32 * 4)()
library.before.restype = ctypes.POINTER(ctypes.c_uint32)
found = {"early": [library.before()[i] for i in range(4)], "constant": library.constant()}
for leaf, subleaf in ((0, 0), (7, 0), (7, 1), (13, 0)):
    library.now(leaf, subleaf, told)
    found[f"{leaf} {subleaf}"] = list(told)
print(json.dumps(found))
"""
AVX2, AVX512F = 1 << 5, 1 << 16  # of EBX, leaf 7
MODEL = """<ir_version: 8, opset_import: ["": 17]> g (float[1, 64, 14, 14] x) => (float[1, 64, 14, 14] y) {
y = Conv<pads = [1, 1, 1, 1]>(x, w) }"""


def asked(library: Path, folder: Path, variables: dict[str, str]) -> dict[str, list[int]]:
    call = [sys.executable, "-c", TELLING, str(library)]
    done = subprocess.run(call, cwd=folder, capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stderr
    return eval(done.stdout)


def test_cpuid_tells_of_nothing_beyond_avx2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "asking.c").write_text(ASKING)
    library = tmp_path / "asking.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "asking.c")], check=True)
    (tmp_path / "module.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(held, "_NUMPY", ("module", ["asking.so"]))
    (variables,) = held.variables(["renorm"], tmp_path / "made", lambda line: None).values()
    free, bound = asked(library, tmp_path, {}), asked(library, tmp_path, variables)
    assert bound["constant"] == free["constant"] == 0x00A20F00  # the same bytes within another instruction
    assert bound["0 0"] == free["0 0"]
    assert bound["early"] == bound["7 0"]  # constructors ask as well
    assert not bound["7 0"][1] & AVX512F
    assert bound["7 0"][1] & AVX2 == free["7 0"][1] & AVX2
    lost = free["7 0"][1] & ~bound["7 0"][1]
    assert lost == free["7 0"][1] & 0b1101_1100_0010_0011_0000_0000_0000_0000
    assert bound["13 0"][0] == free["13 0"][0] & ~0xE0 & ~0x60000


@pytest.mark.skipif(not held.narrower("llvm -mcpu=haswell"), reason="this CPU has no AVX-512")
@pytest.mark.parametrize("runtime", ["ort", "openvino", "ncnn"])
def test_runtimes_that_are_held_do_without_avx512(runtime: str, tmp_path: Path) -> None:
    pytest.importorskip({"ort": "onnxruntime"}.get(runtime, runtime))
    if runtime == "ncnn":
        pytest.importorskip("pnnx")
    model = parser.parse_model(MODEL)
    weights = RNG.standard_normal((64, 64, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "model.onnx")
    x = RNG.standard_normal((1, 64, 14, 14)).astype(np.float32)
    variables = held.variables([runtime, "renorm"], tmp_path / "made", lambda line: None)
    contenders = [
        Contender("held", runtime, tmp_path / "model.onnx", variables=variables[runtime]),
        Contender("free", runtime, tmp_path / "model.onnx", variables=variables["renorm"]),  # all but its own libraries
    ]
    compared = side_by_side(contenders, {"x": x}, 1, rounds=2, seconds=0.2)
    bound, free = compared.measured
    assert not bound.failure
    assert not free.failure
    assert bound.error(free) < 1e-5
    if free.avx512 is None:
        pytest.skip("this system does not tell which threads have used AVX-512")
    assert (bound.avx512, free.avx512) == (False, True)


def test_what_is_held_beside_which_target(monkeypatch: pytest.MonkeyPatch) -> None:
    assert held.narrower("llvm") == ""
    assert held.narrower("llvm -mcpu=znver3") == held.narrower("llvm -mcpu=haswell")


def test_without_a_compiler_switches_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[str]()
    monkeypatch.setattr(held.shutil, "which", lambda tool: None)
    found = held.variables(["openvino_default", "inductor", "renorm"], tmp_path, told.append)
    assert told == ["not held by CPUID: there is no gcc and no objdump"]
    assert found["openvino_default"]["ONEDNN_MAX_CPU_ISA"] == "AVX2"
    assert found["inductor"]["CXX"].endswith("g++")
    assert "ONEDNN_MAX_CPU_ISA" not in found["renorm"]


def test_the_page_says_who_was_not_held() -> None:
    networks = {"n": {"runtimes": {"ort": {"avx512": False}, "torch": {"avx512": True}, "mnn": {"failure": "none"}}}}
    assert page._not_held(networks) == "those of PyTorch eager have"
    assert page._not_held({"n": {"runtimes": {"ort": {"avx512": None}}}}) == "none has (of some it does not tell)"

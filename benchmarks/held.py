"""Other runtimes held to AVX2 on a machine with AVX-512, so that both widths can be measured on one machine.

OpenVINO and PyTorch have a switch, which part of their libraries do not look at; ONNX Runtime, MNN and ncnn have none.
All of them ask CPUID, so that what it tells is what they can be held by: benchmarks/held.c answers for it in their
processes. Whether a process did without AVX-512 is measured (`driver.measure.Measured.avx512`). What is told of the
machine otherwise, such as its caches, stays as it is.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

from renorm import targets

# of each runtime: a module, and the libraries beside it that choose kernels
_NUMPY = ("numpy", ["numpy/_core/_multiarray_umath*.so"])  # brings inputs and outputs everywhere
LIBRARIES = {
    "ort": ("onnxruntime", ["onnxruntime/capi/onnxruntime_pybind11_state*.so"]),
    "openvino": ("openvino", ["openvino/libs/libopenvino.so*", "openvino/libs/libopenvino_intel_cpu_plugin.so*"]),
    "mnn": ("_mnncengine", ["_mnncengine*.so"]),
    "ncnn": ("ncnn", ["ncnn/*.so"]),
    "torch": ("torch", ["torch/lib/lib*.so*"]),
}
_SAME = {"openvino_default": "openvino", "inductor": "torch"}
# the C library has functions for each width, too
_ALWAYS = {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ,-AVX512CD"}
_SWITCHES = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
_CPUID = b"\x0f\xa2"


def narrower(target: str) -> str:
    """Return the vectors that other runtimes must be held to beside code for that target; '' where this machine has no
    wider ones."""
    return "avx2" if targets.find(target).vector_bytes == 32 < targets.find("llvm").vector_bytes else ""


def variables(runtimes: Iterable[str], folder: Path, tell: Callable[[str], None]) -> dict[str, dict[str, str]]:
    """Return the environment in which each of the runtimes is held to AVX2. folder: for what has to be made once: code,
    and places of instructions, which take a minute to find in PyTorch."""
    folder.mkdir(parents=True, exist_ok=True)
    auditor = _auditor(folder, tell)
    found = dict[str, dict[str, str]]()
    for runtime in runtimes:
        held = dict(_ALWAYS)
        peer = LIBRARIES.get(_SAME.get(runtime, runtime))
        if peer:
            held |= _SWITCHES
        if auditor:
            lines = [line for which in (_NUMPY, peer) if which for line in _listed(*which, folder, tell)]
            listed = folder / f"{runtime}.cpuid"
            listed.write_text("".join(f"{line}\n" for line in lines))
            held |= {"LD_AUDIT": str(auditor), "HELD_CPUID": str(listed)}
        if runtime == "inductor":  # its kernels are compiled for the machine at hand
            held |= {"CXX": str(_compiler(folder)), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
        found[runtime] = held
    return found


def _auditor(folder: Path, tell: Callable[[str], None]) -> Path | None:
    """Return the library of held.c; None where it cannot be made."""
    source = Path(__file__).with_suffix(".c")
    library = folder / "held.so"
    if missing := [tool for tool in ("gcc", "objdump") if shutil.which(tool) is None]:
        tell(f"not held by CPUID: there is no {' and no '.join(missing)}")
        return None
    if not library.exists() or library.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


def _listed(module: str, patterns: Sequence[str], folder: Path, tell: Callable[[str], None]) -> Iterable[str]:
    """Yield the path of each library beside a module, and after it the places of its CPUID instructions; nothing where
    the module is not installed."""
    spec = find_spec(module)
    if spec is not None and spec.origin is not None:
        origin = Path(spec.origin)
        root = origin.parents[origin.name == "__init__.py"]
        for path in sorted({p.resolve() for pattern in patterns for p in root.glob(pattern)}):
            yield str(path)
            yield from _places(path, folder, tell)


def _places(library: Path, folder: Path, tell: Callable[[str], None]) -> list[str]:
    """Return the addresses of CPUID instructions in a library, hexadecimal. They are disassembled, so that the same
    bytes within other instructions are none of them."""
    about = library.stat()
    kept = folder / f"{library.name}-{about.st_size}-{about.st_mtime_ns}.places"
    if not kept.exists():
        found = list[str]()
        if _CPUID in library.read_bytes():
            tell(f"looking for CPUID instructions in {library.name}")
            call = ["objdump", "-d", "--no-show-raw-insn", str(library)]
            with subprocess.Popen(call, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                lines = (line.split("\t") for line in process.stdout)  # "  1b714b5:", "cpuid"
                found = [words[0].strip(" :") for words in lines if words[-1].strip() == "cpuid"]
        kept.write_text("\n".join(found))
    return re.findall(r"[0-9a-f]+", kept.read_text())


def _compiler(folder: Path) -> Path:
    """Return g++ for a machine without AVX-512: the last -march counts."""
    path = folder / "g++"
    path.write_text('#!/bin/sh\nexec g++ "$@" -march=haswell\n')
    path.chmod(0o755)
    return path

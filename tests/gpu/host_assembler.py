"""CUDA C as code of the CPU: g++ compiles it against host_cuda.h, with a function for each kernel that launches it."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import threading
from functools import cache
from pathlib import Path

import pytest

from renorm.core.errors import InvalidTarget

ARCH = "host"
MOST_THREADS = 1024
HERE = Path(__file__).parent
HEADERS = ("host_cuda.h", "host_threads.h")
# what they declare, host_cuda.h does
EMPTY = ("cuda_fp16.h", "cuda_bf16.h", "cuda_runtime.h", "cuda_pipeline_primitives.h")
OPTIONS = [
    "-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-w",
    "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing",  # what CUDA's compiler lets a text do
    "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error",  # a GPU takes vectors only where they are aligned
    "-U_FORTIFY_SOURCE",  # it would not let a thread that fails leave its stack
]  # fmt: skip

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

_KERNEL = re.compile(r'^extern "C" __global__ void\s+(?:__launch_bounds__\((\d+)[^)]*\)\s+)?(\w+)\(', re.MULTILINE)
_WAITS = re.compile(r"\b__sync\w+\(|\b__shfl\w*\(|\brenorm_mma_\w+\(")
_ADDS = re.compile(r"\batomic\w+\(")
_BEFORE = """#undef __shared__
#define __shared__ static __attribute__((section("renorm_{name}")))
#line {line}
"""
# what a launch asks for is all that an H100 has
_ASKED = "extern __shared__ __align__(16) unsigned char renorm_shared[];"
_GRANTED = "__shared__ __align__(16) unsigned char renorm_shared[227 << 10];"
_BEHIND = """
extern "C" __attribute__((weak, visibility("hidden"))) char __start_renorm_{name}[], __stop_renorm_{name}[];
extern "C" __attribute__((visibility("default"))) int {name}__adds = {adds};
extern "C" __attribute__((visibility("default"))) const char* {name}__launch(const host::Request* request) {{
  return host::launch({{"{name}", [](void** a) {{ host::apply({name}, a); }}, host::params({name}), {bound}, {waits},
                       __start_renorm_{name}, __stop_renorm_{name}}}, *request);
}}
"""

_MADE_ONCE = threading.Lock()  # several threads may compile


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """The headers, the first of them read already: that is most of what g++ does for a kernel."""
    options()  # which raises where there is no g++, before anything is made
    folder = tempfile.TemporaryDirectory(prefix="host-cuda-")
    for name in HEADERS:
        shutil.copy(HERE / name, folder.name)
    for name in EMPTY:
        (Path(folder.name) / name).write_text("")
    header = Path(folder.name) / HEADERS[0]
    _compiler("-c", "-x", "c++-header", str(header), "-o", f"{header}.gch")
    return folder


@cache
def options() -> list[str]:
    """What g++ is called with; from version 12 on, variables that nobody wrote are no zeros by chance."""
    if shutil.which("g++") is None:
        raise InvalidTarget(f"target cuda -arch={ARCH} needs g++, which is not here")
    version = subprocess.run(["g++", "-dumpversion"], capture_output=True, text=True, check=True).stdout
    return [*OPTIONS, *(["-ftrivial-auto-var-init=pattern"] if int(version.split(".")[0]) >= 12 else [])]


def _compiler(*args: str, text: str = "") -> None:
    done = subprocess.run(["g++", *options(), *args], input=text, capture_output=True, text=True)
    if done.returncode:
        raise InvalidTarget("g++ does not take the CUDA C", done.stderr.splitlines()[:20])


@cache
def assemble(text: str, arch: str) -> bytes:
    """Return CUDA C as a library of the host. Raises InvalidTarget with g++'s message where it does not compile."""
    with _MADE_ONCE:
        folder = Path(_folder().name)
    with tempfile.NamedTemporaryFile(suffix=".so") as library:
        args = ("-shared", "-pipe", "-I", str(folder), "-include", str(folder / HEADERS[0]))
        _compiler(*args, "-x", "c++", "-", "-o", library.name, text=_with_launchers(text))
        return Path(library.name).read_bytes()


def _with_launchers(text: str) -> str:
    """The text, with shared memory of each kernel in a section of its own, and functions that launch them behind."""
    kernels = [(m, text.find("\n}", m.end())) for m in _KERNEL.finditer(text)]
    starts, ends = [m.start() for m, _ in kernels], [end for _, end in kernels]
    between = [text[a:b] for a, b in zip([0, *ends], [*starts, len(text)])]
    functions = "".join(between)  # of the device: any kernel may call them
    parts, launchers = [between[0]], list[str]()
    for (match, end), behind in zip(kernels, between[1:]):
        own, name = text[match.start() : end].replace(_ASKED, _GRANTED), match[2]
        parts += [_BEFORE.format(name=name, line=text.count("\n", 0, match.start()) + 1), own, behind]
        waits, adds = (bool(p.search(own) or p.search(functions)) for p in (_WAITS, _ADDS))
        bound = match[1] or MOST_THREADS
        launchers.append(_BEHIND.format(name=name, bound=bound, waits=str(waits).lower(), adds=int(adds)))
    return "".join([*parts, *launchers])

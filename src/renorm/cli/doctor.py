"""renorm doctor: what renorm finds on this machine."""

from __future__ import annotations

import importlib.metadata
import platform
import sys

import renorm
from renorm.cli import output
from renorm.cli.options import verb
from renorm.core import target as targets

_PACKAGES = ("numpy", "llvmlite", "onnx", "ml-dtypes", "onnxruntime", "openvino", "torch")


@verb("doctor")
def command(as_json: bool) -> output.Outcome:
    """Prints versions, the processor, and which extras are installed."""
    host = targets.parse("llvm")
    facts: dict[str, object] = {
        "renorm": renorm.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "vector registers": f"{host.vector_registers} of {host.vector_bytes} bytes",
        **{name: _version(name) for name in _PACKAGES},
    }
    supported = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
    if not as_json:
        output.table("this machine", ("", ""), list(facts.items()))
        if not supported:
            output.line("renorm generates code for Linux on x86-64 and aarch64; on this machine nothing will run")
    return output.Outcome(facts | {"supported": supported}, 0 if supported else 3)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"

"""The setting of a measurement: processor, system, versions, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = ("numpy", "llvmlite", "onnx", "onnxruntime", "openvino", "mnn", "ncnn", "pnnx", "torch")


def machine(held: str = "") -> dict[str, Any]:
    """As Linux tells it; what it does not tell is left out. held: the vectors that everything is held to."""
    cpuinfo = _read(Path("/proc/cpuinfo"))
    about = dict(line.split(":", 1) for line in cpuinfo.splitlines() if ":" in line)
    facts = {k.strip(): v.strip() for k, v in about.items()}
    widest = next((name for name in ("avx512f", "avx2", "asimd") if name in f" {facts.get('flags', '')} "), "")
    return {
        "cpu": facts.get("model name", platform.processor()),
        "family, model, stepping": ", ".join(facts.get(k, "?") for k in ("cpu family", "model", "stepping")),
        "vectors": widest,
        **({"held to": held} if held else {}),
        "cores": len(os.sched_getaffinity(0)),
        "caches": _caches(),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
    }


def label(result: dict[str, Any]) -> str:
    """The name of the machine of a file of results; results of one name replace older ones on the page. Virtual
    machines tell of one name for several generations of a maker: family and model tell them apart."""
    machine = result["machine"]
    family, model, _ = machine["family, model, stepping"].split(", ")
    held = f", held to {machine['held to']}" if "held to" in machine else ""
    return f"{machine['cpu']} ({family}, {model}) with {machine['vectors']}{held}"


def commit() -> dict[str, Any]:
    """The commit that is checked out, and whether sources differ from it."""
    try:
        head = _git("rev-parse", "HEAD")
        return {"id": head, "changed": bool(_git("status", "--porcelain", "--", "src"))}
    except (OSError, subprocess.CalledProcessError):
        return {"id": "", "changed": True}


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _caches() -> str:
    found = list[str]()
    for cache in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        if _read(cache / "type") != "Instruction":
            shared = _read(cache / "shared_cpu_list")
            found.append(f"L{_read(cache / 'level')} {_read(cache / 'size')} (cpu {shared})")
    return ", ".join(found)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str:
    call = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(call, check=True, capture_output=True, text=True).stdout.strip()

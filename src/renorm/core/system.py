"""Check the machine that code of renorm runs on: Linux, an architecture, features of its CPU."""

from __future__ import annotations

import platform
import sys

from renorm.core.errors import InvalidTarget
from renorm.core.features import FEATURES, NEEDED
from renorm.core.host import host_flags
from renorm.core.target import Target

SINCE = {
    "x86_64": "CPUs that have them: Intel since Haswell (2013), AMD since Excavator (2015)",
    "aarch64": "all 64-bit CPUs of Arm have it",
}


def obstacles() -> list[str]:
    """Return why code of renorm cannot run here, actual beside expected; an empty list where it can."""
    system, arch = sys.platform, platform.machine()
    if system != "linux":
        return [f"this system is {system}, expected linux"]
    if arch not in NEEDED:
        return [f"this machine is {arch}, expected {' or '.join(NEEDED)}"]
    needed = ", ".join(f.upper() for f in NEEDED[arch])
    if not host_flags():
        return [f"/proc/cpuinfo does not tell what this CPU has, expected {needed}"]
    missing = [f.upper() for f in NEEDED[arch] if FEATURES[arch][f] not in host_flags()]
    return [f"this CPU has no {', '.join(missing)}, expected {needed}", SINCE[arch]] if missing else []


def require(target: Target) -> None:
    """Raise InvalidTarget for a target that is this machine where code of renorm cannot run here."""
    if target.machine_target.is_host and (facts := obstacles()):
        raise InvalidTarget(
            f"target {target}: networks cannot run on this machine",
            facts,
            'compile for one that can run them, target="llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3", and save() '
            "it, or compile there; renorm.optimize and inspect work here",
        )

"""Features of the CPU of this machine, compared with what code was generated for."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from renorm.core import matrix_registers
from renorm.core.errors import InvalidArtifact
from renorm.core.features import FEATURES, MATRIX
from renorm.core.host import host_flags
from renorm.runtime.program import Machine


def missing_features(arch: str, features: Sequence[str]) -> list[str]:
    """Return which of LLVM's `features` this CPU does not have, or the system does not give to this process, or nothing
    tells that it has them."""
    flags, names = host_flags(), FEATURES.get(arch, {})
    missing = [f for f in features if names.get(f) not in flags]
    asked = [f for f in features if f in MATRIX and f not in missing]
    return missing if not asked or matrix_registers.granted() else [*missing, *asked]


def obstacles(machine: Machine, arch: str) -> list[str]:
    """Return why this machine, an `arch`, cannot run code for `machine`, actual beside expected; an empty list when it
    can."""
    if sys.platform != "linux":
        return [f"this system is {sys.platform}, expected linux"]
    if machine.arch != arch:
        return [f"this machine is {arch}, expected {machine.arch}"]
    of = machine.cpu or "the CPU it was compiled for"
    if machine.features and not host_flags():
        return [f"/proc/cpuinfo does not tell what this CPU has, expected {', '.join(machine.features)} of {of}"]
    missing = missing_features(arch, machine.features)
    unknown = [f for f in missing if f not in FEATURES.get(arch, {})]
    refused = [f for f in missing if f in MATRIX and FEATURES[arch][f] in host_flags()]
    lacking = [f for f in missing if f not in unknown and f not in refused]
    facts = [f"this CPU lacks {', '.join(lacking)} of {of}"] if lacking else []
    if refused:
        facts.append(f"the system does not give this process the registers of {', '.join(refused)}")
    return facts + ([f"nothing tells whether this CPU has {', '.join(unknown)} of {of}"] if unknown else [])


def require(machine: Machine, arch: str, what: str) -> None:
    """Raises InvalidArtifact, about `what`, unless this machine, an `arch`, can run code for `machine`."""
    if facts := obstacles(machine, arch):
        do = "compile the model on this machine, or with -mcpu= for the oldest CPU it must run on"
        raise InvalidArtifact(f"{what} holds code for another machine", facts, do)

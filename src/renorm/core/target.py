"""Targets: what code is generated for. A target is data; code generators resolve what it leaves open."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from renorm.core import matrix_registers
from renorm.core.dots import Dot
from renorm.core.errors import InternalError, InvalidTarget, suggest
from renorm.core.features import FEATURES, MATRIX
from renorm.core.host import host_cache_bytes, host_flags

_AVX512 = {"avx512f", "avx512dq", "avx512bw", "avx512vl"}  # what kernels of 64-byte vectors use, to LLVM and to Linux

# Bytes of second-level cache of one core, by LLVM's names, where they are not what `Target.cache_bytes` says of others
_CACHES = {
    **dict.fromkeys(("znver1", "znver2", "znver3"), 512 << 10),
    "icelake-server": 1280 << 10,
    **dict.fromkeys(("sapphirerapids", "emeraldrapids", "graniterapids"), 2 << 20),
}


@dataclass(frozen=True)
class Target:
    """A machine to generate code for.

    kind: "llvm", "cuda", or a registered name. cpu: LLVM's name, "" for the host. triple: "" for the host. arch:
    CUDA's, as "sm_90".
    base: for a registered target, the target that runs what it does not claim. supports: names of ops, and patterns
    (functions written with the op builders), that it runs as units. codegen: what makes code of such a group, as
    passes.partition says; without it the base does.
    spare: vector registers that schedules leave to the code generator; code does not depend on it. has: features that
    code for the CPU may use, by LLVM's names, as targets.find fills them in; None for this machine as it is.
    """

    kind: str = "llvm"
    cpu: str = ""
    triple: str = ""
    features: tuple[str, ...] = ()
    arch: str = "sm_80"
    base: str = ""
    supports: Sequence[Any] = field(default=(), compare=False)
    codegen: Callable[..., Any] | None = field(default=None, compare=False)
    spare: int = 0
    has: frozenset[str] | None = None

    @property
    def machine_target(self) -> Target:
        """The target that generates code: this one, or the base of a registered one."""
        return replace(parse(self.base).machine_target, spare=self.spare, has=self.has) if self.base else self

    @property
    def is_gpu(self) -> bool:
        return self.kind == "cuda"

    @property
    def is_host(self) -> bool:
        """Code for this very machine, though perhaps not for all that it has."""
        return self.kind == "llvm" and not self.triple and not self.cpu

    @property
    def is_named(self) -> bool:
        """It names a CPU, or features: what that means, only LLVM's tables tell."""
        return self.kind == "llvm" and bool(self.triple or self.cpu or self.features)

    @property
    def machine(self) -> str:
        """First part of the triple: "x86_64", "aarch64"."""
        return self.triple.split("-")[0] if self.triple else platform.machine()

    @property
    def vector_bytes(self) -> int:
        """Width of a vector register: 64 with AVX-512, 32 with AVX2, 16 otherwise."""
        if self.machine != "x86_64":
            return 16
        if self.has is None and self.is_named:
            raise InternalError(f"nobody has asked what the CPU of target {self} has", do="take it from targets.find")
        has = host_flags() if self.has is None else self.has
        return 64 if has >= _AVX512 else 32 if "avx2" in has else 16

    @property
    def has_tiles(self) -> bool:
        """Return whether there are instructions that multiply matrices of bfloat16 and of bytes (AMX)."""
        if self.vector_bytes < 64:
            return False
        if self.has is not None:
            return self.has >= MATRIX
        return all(FEATURES["x86_64"][f] in host_flags() for f in MATRIX) and matrix_registers.granted()

    def has_dot(self, dot: Dot) -> bool:
        """Return whether there is an instruction on vectors of this width. `Machine.gains` says whether it pays."""
        name = "" if self.vector_bytes < 32 else dot.features[self.vector_bytes == 32]
        return bool(name) and (name in self.has if self.has is not None else FEATURES["x86_64"][name] in host_flags())

    @property
    def vector_registers(self) -> int:
        """Return how many vector registers there are for schedules to fill."""
        return (32 if self.vector_bytes == 64 or self.machine == "aarch64" else 16) - self.spare

    @property
    def cache_bytes(self) -> int:
        """Bytes of second-level cache of one core: the host's, as Linux tells it, those of a CPU by its name, and
        otherwise what servers with such vectors have at least."""
        own = host_cache_bytes(2) if self.is_host else _CACHES.get(self.cpu, 0)
        return own or (1 << 20 if self.vector_bytes == 64 else 1 << 18)

    def lanes(self, dtype_bytes: int) -> int:
        """Elements of a vector register."""
        return max(1, self.vector_bytes // dtype_bytes)

    def __str__(self) -> str:
        options = [f"-mtriple={self.triple}"] if self.triple else []
        options += [f"-mcpu={self.cpu}"] if self.cpu else []
        options += [f"-mattr={','.join(self.features)}"] if self.features else []
        options += [f"-arch={self.arch}"] if self.is_gpu else []
        return " ".join([self.kind, *options])


_REGISTERED: dict[str, Target] = {}
KINDS = ("llvm", "cuda")


def register_target(target: Target) -> None:
    """Make a target known under its kind, for `target="..."`."""
    _REGISTERED[target.kind] = target


def is_registered(kind: str) -> bool:
    """Return whether `parse` knows a target of that kind, which is neither llvm nor cuda."""
    return kind in _REGISTERED


def parse(text: str | Target, others: Iterable[str] = ()) -> Target:
    """Return the Target that a string names: "llvm -mcpu=haswell", "cuda -arch=sm_90", a registered name. Raises
    InvalidTarget, which names `others` too.
    """
    if isinstance(text, Target):
        return text
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidTarget(f"target {text!r}: {error}", do="close the quote") from error
    kind = words[0] if words else "llvm"
    if kind in _REGISTERED and len(words) == 1:
        return _REGISTERED[kind]
    if kind not in KINDS:
        known = {*KINDS, *_REGISTERED, *others}
        if kind in known:
            raise InvalidTarget(f"target {text!r}: {kind!r} takes no options", [f"cannot read {' '.join(words[1:])!r}"])
        raise InvalidTarget(f"target {text!r}: {kind!r} is not a target", [f"known: {suggest(kind, known)}"])
    chosen: dict[str, Any] = {}
    for word in words[1:]:
        option, _, value = word.partition("=")
        match option:
            case "-mcpu" if kind == "llvm" and value:
                chosen["cpu"] = value
            case "-mtriple" if kind == "llvm" and value:
                chosen["triple"] = value
            case "-mattr" if kind == "llvm" and value:
                chosen["features"] = tuple(value.split(","))
            case "-arch" if kind == "cuda" and value:
                chosen["arch"] = value
            case _:
                raise InvalidTarget(
                    f"target {text!r}: cannot read {word!r}",
                    ["known for llvm: -mcpu= -mtriple= -mattr=; for cuda: -arch="],
                )
    return Target(kind, **chosen)

"""LLVM's side: target machines, the pass list, objects and assembly."""

from __future__ import annotations

import os
import re
import tempfile
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from renorm.core import locks
from renorm.core.errors import InternalError, InvalidArtifact, InvalidTarget
from renorm.core.target import Target
from renorm.runtime import elf

# llvmlite has a lock for each call of LLVM: a child of fork() would wait for it for ever, or find LLVM in mid-call
locks.adopt(llvm.ffi.lib._lock._lock)
_lock = locks.Leaf("the standard error stream")

# A function whose code shows whether a CPU has what kernels rely on, and the sign of each feature by machine
_PROBE = """
define <8 x i16> @probe(<8 x float> %a, <8 x i32> %b, <8 x i32> %c) {
  %d = add <8 x i32> %b, %c
  %e = bitcast <8 x i32> %d to <8 x float>
  %f = call <8 x float> @llvm.fma.v8f32(<8 x float> %a, <8 x float> %e, <8 x float> %a)
  %g = fptrunc <8 x float> %f to <8 x half>
  %h = bitcast <8 x half> %g to <8 x i16>
  ret <8 x i16> %h
}
"""
_PROBES = {"x86_64": {"AVX2": "vpaddd", "FMA": "vfmadd", "F16C": "vcvtps2ph"}, "aarch64": {"NEON": "fmla"}}

# What the emitter leaves to LLVM, in order. Not in it, on purpose: the loop and SLP vectorizers and unrolling
# (schedules decide), loop-idiom and memcpy-opt (they call the C library).
PASSES = (
    "sroa",  # buffers of register scope become values
    "instruction_combine",
    "simplify_cfg",
    "dead_code_elimination",
)


def _resolved(target: Target) -> tuple[str, str, str]:
    """(triple, CPU, features) with what the target leaves open filled in."""
    triple = target.triple or llvm.get_process_triple()
    if target.cpu:
        cpu, features = target.cpu, ""
    elif target.triple:
        cpu, features = "x86-64-v3" if target.machine == "x86_64" else "generic", ""
    else:
        cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    chosen = [f if f[0] in "+-" else f"+{f}" for f in target.features]
    return triple, cpu, ",".join([f for f in (features, *chosen) if f])


def host() -> str:
    """This machine's CPU and what it has, as LLVM names them."""
    return f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"


@cache
def machine(target: Target) -> Any:
    """The TargetMachine of a target. Raises InvalidTarget for what this LLVM or renorm cannot make code for."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple, cpu, features = _resolved(target)
    if triple.split("-")[0] not in _PROBES:
        raise InvalidTarget(f"target {target}: no code generator for {triple}", [f"known: {', '.join(_PROBES)}"])
    with _lock, _Complaints() as complaints:
        made = llvm.Target.from_triple(triple).create_target_machine(
            cpu=cpu, features=features, opt=3, reloc="pic", codemodel="small"
        )
    if complaints.unknown:
        version = ".".join(map(str, llvm.llvm_version_info))
        raise InvalidTarget(
            f"target {target}: LLVM {version} does not know {', '.join(dict.fromkeys(complaints.unknown))}",
            do="name a CPU and features as `llc -mcpu=help` of that version lists them",
        )
    made.set_asm_verbosity(True)  # spills are marked in comments, and loops
    probe = llvm.parse_assembly(_PROBE, llvm.create_context())
    probe.triple, probe.data_layout = made.triple, str(made.target_data)
    text = made.emit_assembly(probe)
    missing = [feature for feature, sign in _PROBES[triple.split("-")[0]].items() if sign not in text]
    if missing:
        raise InvalidTarget(
            f"target {target}: the CPU {cpu} has no {', '.join(missing)}",
            ["needed on x86-64: AVX2, FMA, F16C (CPUs since 2013)"],
            do="choose a CPU that has them, such as -mcpu=x86-64-v3",
        )
    return made


class _Complaints:
    """Catches what LLVM prints to the standard error stream about CPUs and features it does not know: it has no other
    way to tell. Anything else that arrives meanwhile is passed on.
    """

    def __init__(self) -> None:
        self.unknown: list[str] = []

    def __enter__(self) -> _Complaints:
        self._file = tempfile.TemporaryFile()
        try:
            self._kept = os.dup(2)
        except OSError:  # closed, as daemons have it
            self._kept = -1
        os.dup2(self._file.fileno(), 2)
        return self

    def __exit__(self, *_: object) -> None:
        if self._kept < 0:
            os.close(2)
        else:
            os.dup2(self._kept, 2)
            os.close(self._kept)
        self._file.seek(0)
        for line in self._file.read().decode(errors="replace").splitlines(keepends=True):
            found = re.match(r"'(.*)' is not a recognized (processor|feature) for this target", line)
            if found:
                self.unknown.append(f"the {found[2]} {found[1]}")
            elif self._kept >= 0:
                os.write(2, line.encode())
        self._file.close()


def _optimised(text: str, target: Target, name: str) -> Any:
    made = machine(target)
    try:
        module = llvm.parse_assembly(text, llvm.create_context())
        module.name = "renorm"  # equal code gives equal objects
        module.triple = made.triple
        module.data_layout = str(made.target_data)
        module.verify()
    except RuntimeError as error:
        raise InternalError(f"kernel {name}: LLVM rejects the generated IR: {error}", text.splitlines()) from error
    builder = llvm.create_pass_builder(made, llvm.create_pipeline_tuning_options(speed_level=3))
    passes = llvm.create_new_function_pass_manager()
    for step in PASSES:
        getattr(passes, f"add_{step}_pass")()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)
    return module


def emit_object(text: str, target: Target, name: str) -> bytes:
    """An ELF object of the IR, checked to stand alone."""
    code: bytes = machine(target).emit_object(_optimised(text, target, name))
    try:
        undefined = elf.read(code, f"kernel {name}").undefined
    except InvalidArtifact as error:
        raise InternalError(error.headline, [*error.facts, *text.splitlines()]) from error
    if undefined:
        needed = ", ".join(f"the undefined symbol {u}" for u in undefined)
        raise InternalError(f"kernel {name}: its object needs {needed}", text.splitlines())
    return code


def emit_assembly(text: str, target: Target, name: str) -> str:
    return machine(target).emit_assembly(_optimised(text, target, name))

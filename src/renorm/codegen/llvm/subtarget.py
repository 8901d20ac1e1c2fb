"""CPUs in LLVM's tables: whether there is one of a name, and which features its code may use.

LLVM has no call that lists the features of a CPU, but one pass that compares them: a function is inlined only where its
caller has all features that it has itself. So each feature is asked for by a call of a function that has it besides
those of the CPU: where the call is gone, the CPU has it.

Code uses the features of the CPU that a loader can ask its own machine for (core.features), and none beyond: it is
generated for the base of its architecture and these, and tuned for the CPU. What a program requires is therefore
exactly what its code may use.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import IO

from renorm.codegen.llvm.library import llvm
from renorm.core import locks
from renorm.core.errors import InvalidTarget, suggest
from renorm.core.features import FEATURES, NEEDED
from renorm.core.room import require
from renorm.core.system import SINCE
from renorm.core.target import Target
from renorm.runtime import cpu

# llvmlite has a lock for each call of LLVM: a child of fork() would wait for it for ever, or find LLVM in mid-call
locks.adopt(llvm.ffi.lib._lock._lock)
# Bytes that LLVM's tables and its inliner take when they are first used, which is 36 MB here: where there are none, it
# ends the process
ROOM = 44 << 20
_stderr = locks.Leaf("the standard error stream")
_COMPLAINT = re.compile(r"^'(.*)' is not a recognized (processor|feature) for this target.*\n?", re.MULTILINE)

BASES = {"x86_64": "x86-64", "aarch64": "generic"}  # what every CPU of an architecture has, by LLVM's names
_UNNAMED = {"x86_64": "x86-64-v3", "aarch64": "generic"}  # for a triple that comes without a CPU
# CPUs whose timings LLVM 22 has not for all instructions (LD1R of four registers lacks), though it says so: where
# it is built with assertions, as llvmlite's is, it ends the process. The nearest CPUs that it has them for
_TIMED_AS = {"ampere1b": "ampere1a", "oryon-1": "apple-m1"}
_MODES = {"16bit-mode", "32bit-mode", "64bit-mode", "64bit"}  # LLVM ends the process where they are not of 64 bits


@dataclass(frozen=True)
class Subtarget:
    """A CPU and its features, for which code is made. tuned: the CPU whose timings count. features: what it may use,
    of core.features; chosen: what the target adds and takes away beside these, with signs."""

    triple: str
    tuned: str
    features: tuple[str, ...]
    chosen: tuple[str, ...]

    @property
    def arch(self) -> str:
        return self.triple.split("-")[0]

    @property
    def base(self) -> str:
        return BASES[self.arch]

    @property
    def flags(self) -> str:
        """All features with signs, as LLVM takes them."""
        return ",".join([*(f"+{f}" for f in self.features), *self.chosen])


def resolved(target: Target) -> Target:
    """The target with what LLVM knows of its CPU."""
    return replace(target, has=frozenset(subtarget(target).features))


def subtarget(target: Target) -> Subtarget:
    """The CPU and features of a target. Raises InvalidTarget where this LLVM or renorm cannot make code for them."""
    return _subtarget(target.triple, target.cpu, target.features)


@cache
def _subtarget(triple: str, named: str, features: tuple[str, ...]) -> Subtarget:
    target = Target(triple=triple, cpu=named, features=features)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    of_host = "" if triple or named else llvm.get_host_cpu_features().flatten()
    host = llvm.get_host_cpu_name()
    triple = triple or llvm.get_process_triple()
    arch = triple.split("-")[0]
    if arch not in BASES:
        raise InvalidTarget(f"target {target}: no code generator for {triple}", [f"known: {', '.join(BASES)}"])
    tuned = named or (_UNNAMED[arch] if target.triple else host)
    chosen = tuple(f if f[0] in "+-" else f"+{f}" for f in features)
    _check_names(target, triple, tuned, chosen)
    others = tuple(f for f in chosen if f[1:] not in FEATURES[arch])
    if strange := [f for f in others if not _is_taste(triple, f[1:])]:
        raise InvalidTarget(
            f"target {target}: nothing tells at run time whether a CPU has {', '.join(f[1:] for f in strange)}",
            [f"known: {', '.join(FEATURES[arch])}"],
            f"leave out {', '.join(strange)}",
        )
    given = ",".join([f for f in (of_host, *chosen) if f])
    has = _held(triple, tuned, given, tuple(FEATURES[arch]))
    if target.is_host:  # what the system has switched off is not used, whatever the CPU says, unless it is asked for
        own = _held(triple, tuned, of_host, has) if chosen else has
        has = [f for f in has if f not in cpu.missing_features(arch, own)]
    if missing := [f.upper() for f in NEEDED[arch] if f not in has]:
        raise InvalidTarget(
            f"target {target}: the CPU {tuned} has no {', '.join(missing)}",
            [f"needed on {arch}: {', '.join(f.upper() for f in NEEDED[arch])}; {SINCE[arch]}"],
            do=f"choose a CPU that has them, such as -mcpu={_UNNAMED[arch]}",
        )
    return Subtarget(triple, _TIMED_AS.get(tuned, tuned), tuple(sorted(has)), others)


def _is_taste(triple: str, feature: str) -> bool:
    """Return whether LLVM itself makes no difference between a CPU that has it and one that has not: it changes which
    instructions are preferred, not which there are. On aarch64 LLVM makes one for these too."""
    return feature not in _MODES and bool(_held(triple, BASES[triple.split("-")[0]], f"-{feature}", [feature]))


def _held(triple: str, named: str, given: str, asked: Sequence[str]) -> list[str]:
    """Return which of the features `asked` for a CPU has, with the features `given` to it. A feature that this LLVM
    does not know is one that its CPUs do not have."""
    mode = "+64bit," if triple.startswith("x86_64") else ""  # LLVM ends the process over a CPU of 32 bits
    given = f"{mode}{given}".rstrip(",")
    lines = ["define void @caller(ptr %p) #0 {", *(f"  call void @f{i}(ptr %p)" for i in range(len(asked)))]
    lines += ["  ret void", "}", f'attributes #0 = {{ "target-cpu"="{named}" "target-features"="{given}" }}']
    for i, feature in enumerate(asked):
        lines.append(
            f"define internal void @f{i}(ptr %p) #{i + 1} {{\n  store volatile i64 {i}, ptr %p\n  ret void\n}}"
        )
        all_of_it = ",".join([f for f in (given, f"+{feature}") if f])
        lines.append(f'attributes #{i + 1} = {{ "target-cpu"="{named}" "target-features"="{all_of_it}" }}')
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=BASES[triple.split("-")[0]])
    module = llvm.parse_assembly("\n".join(lines), llvm.create_context())
    module.triple, module.data_layout = machine.triple, str(machine.target_data)

    def inline() -> None:
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1))
        builder.getModulePassManager().run(module, builder)

    complaints = _complaints(inline)
    left = {int(number) for number in re.findall(r"call [^@]*@f(\d+)", str(module))}
    return [f for i, f in enumerate(asked) if i not in left and f"+{f}" not in complaints.features]


def _check_names(target: Target, triple: str, named: str, chosen: Sequence[str]) -> None:
    """Refuses a CPU and features that LLVM does not know."""
    found = llvm.Target.from_triple(triple)
    complaints = _complaints(lambda: found.create_target_machine(cpu=named, features=",".join(chosen)))
    if not complaints.cpus and not complaints.features:
        return
    version = ".".join(map(str, llvm.llvm_version_info))
    cpus, features = _names(triple)
    unknown = [(f"the processor {c}", c, cpus) for c in dict.fromkeys(complaints.cpus)]
    unknown += [(f"the feature {f}", f[1:], features) for f in dict.fromkeys(complaints.features)]
    raise InvalidTarget(
        f"target {target}: LLVM {version} does not know {', '.join(what for what, _, _ in unknown)}",
        [f"nearest to {name}: {suggest(name, known)}" for _, name, known in unknown if known],
        f"name a CPU and features as `llc -mtriple={triple} -mcpu=help` of that version lists them",
    )


def _names(triple: str) -> tuple[list[str], list[str]]:
    """All CPUs and all features that LLVM knows. It prints them, once in a process: hence in another one; nothing where
    that does not work, since they only help to find a name."""
    script = f"""
import llvmlite.binding as llvm
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
llvm.Target.from_triple({triple!r}).create_target_machine(features="+help")
"""
    try:
        printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60).stderr
    except (OSError, subprocess.TimeoutExpired):
        return [], []
    cpus, _, features = printed.partition("Available features")
    found = [re.findall(r"^  (\S+) +- ", part, re.MULTILINE) for part in (cpus, features)]
    return found[0], found[1]


def _unnamed_file() -> IO[bytes]:
    """Return a new file in memory, where the system has such files: a disk may be full."""
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("complaints"), "w+b")
    return tempfile.TemporaryFile()


@dataclass(frozen=True)
class _Complaints:
    """CPUs that LLVM does not know, and features, with signs."""

    cpus: tuple[str, ...]
    features: tuple[str, ...]


def _complaints(call: Callable[[], object]) -> _Complaints:
    """Return what LLVM complains about in a call. It prints that to the standard error stream, and has no other way to
    tell; anything else that arrives there meanwhile is passed on."""
    require(ROOM, "no memory for LLVM")
    with _stderr, _unnamed_file() as file:
        try:
            kept = os.dup(2)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            kept = -1  # closed, as daemons have it
        try:
            os.dup2(file.fileno(), 2)
            call()
        finally:  # an interrupt comes after a call: none before the next one
            if kept < 0:
                os.close(2)
            else:
                os.dup2(kept, 2)
            file.seek(0)
            printed = file.read().decode(errors="replace")
            if kept >= 0:
                os.write(2, _COMPLAINT.sub("", printed).encode())
                os.close(kept)
    found = [(m[1], m[2]) for m in _COMPLAINT.finditer(printed)]
    return _Complaints(*(tuple(name for name, kind in found if kind == k) for k in ("processor", "feature")))

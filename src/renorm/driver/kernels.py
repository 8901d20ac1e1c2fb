"""From groups to machine code: what was compiled before comes from the cache, the rest is lowered and compiled.

    group ─key─▶ Lowering ─structure─▶ code        both arrows are entries of the cache

Groups of equal key are lowered once, kernels of equal structure compiled once. A group whose Lowering and code are both
known costs neither te nor loops nor LLVM. Code outlives a change of ops and schedules: its key is what the loops are.

A kernel whose hot loop spills is refused: its group is lowered again for fewer vector registers.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from renorm.codegen import kernels as codes
from renorm.codegen import serialization
from renorm.codegen.abi import CompiledKernel
from renorm.codegen.identity import identity
from renorm.codegen.llvm.requirements import requirements
from renorm.core import records, sources
from renorm.core.target import Target
from renorm.driver.cache import Cache
from renorm.driver.external import external_call
from renorm.driver.groups import KernelCall, Lowering, group_key
from renorm.driver.lowering import lower_group
from renorm.driver.module import ExternalText, KernelText
from renorm.graph.ir import Graph, Group
from renorm.runtime import threads
from renorm.runtime.launches import GPU
from renorm.runtime.program import Machine
from renorm.runtime.report import CodeRecord, KernelRecord

if TYPE_CHECKING:
    from renorm.tir.nodes import Kernel

_SOURCES = sources.digest()  # of all: whatever a group becomes depends on one of them

# Vector registers, in sixteenths of all, that schedules do without when a kernel spills: one after the other until
# none does
SPARE = (1, 2, 4, 6)

Progress = Callable[[str, int, int], None]  # stage, done, of


@dataclass(frozen=True)
class Kernels:
    """calls: one for each group. codes: for each call, the index of its code in `compiled`. texts: by name."""

    calls: tuple[KernelCall, ...]
    codes: tuple[int, ...]
    compiled: tuple[CompiledKernel, ...]
    texts: dict[str, KernelText | ExternalText]

    def records(self, launches: Iterable[KernelRecord], is_far: bool) -> tuple[KernelRecord, ...]:
        """Return the records of launches with what is known of their code. is_far: whether weights are in memory."""
        found = list[KernelRecord]()
        for record, call, index in zip(launches, self.calls, self.codes, strict=True):
            code = self.compiled[index]
            about = code.far if is_far else code.near
            known = {"spills": code.spills, "predicted": about.nanoseconds * 1e-9, "bound": about.bound}
            found.append(replace(record, work=call.work, extents=call.extents, **known))
        return tuple(found)


class Compiler:
    """Makes the kernels of one graph, in two stages: `lower`, then `compile`."""

    def __init__(self, graph: Graph, target: Target, cache: Cache, tell: Progress):
        self._graph, self._target, self._tell = graph, target, tell
        self._machine = target.machine_target
        self._context = _context(self._machine)
        self._cache = cache if _SOURCES else Cache(None, off="the sources cannot be read, or have just changed")
        self._users = graph.user_map()
        self._lowered: dict[str, Kernel] = {}  # by name: what was lowered here
        self._kernels: dict[str, Kernel] = {}  # the same by structure, and what was lowered again
        self._codes: dict[str, CompiledKernel] = {}  # by structure: what the cache has
        self._lowerings: dict[str, Lowering] = {}  # by key
        self._new: dict[str, Lowering] = {}  # by key: what the cache does not have
        self._made: set[str] = set()  # structures that were compiled here
        self._processes = 0  # that compiled them

    def lower(self) -> None:
        """Find what each group reads and writes, and which code it needs."""
        of = len(self._graph.launches)
        self._found: list[tuple[str, KernelCall]] = []
        for i, group in enumerate(self._graph.launches):
            self._tell("schedule", i, of)
            self._found.append(self._group(group))

    def check(self) -> None:
        """Raise InvalidLoops where no code is made of what was lowered here."""
        from renorm.tir.verify import verify  # what comes from the cache has no loops

        for kernel in self._kernels.values():
            verify(kernel, self._machine)

    def compile(self) -> tuple[Kernels, CodeRecord]:
        """Find or make the code. Raises what codegen.kernels.compile_kernel raises."""
        wanted = [s for s, _ in self._found]
        self._make(wanted)
        better = self._without_spills([s for s in dict.fromkeys(wanted) if s in self._kernels])
        wanted = [better.get(s, s) for s in wanted]
        for key, lowering in self._new.items():  # after the code that they name
            code = better.get(lowering.structure, lowering.structure)
            self._cache.put(key, replace(lowering, structure=code).encode())
        order = list(dict.fromkeys(wanted))
        place = {s: i for i, s in enumerate(order)}
        where = str(self._cache.root) if self._cache.root else f"off: {self._cache.off}"
        refused = sum(s != t for s, t in better.items())
        unique = sum(not self._codes[s].external for s in order)
        record = CodeRecord(unique, len(self._made.intersection(order)), self._processes, where, refused)
        texts = {g.name: self._text(g, s) for g, s in zip(self._graph.launches, wanted)}
        codes = tuple(place[s] for s in wanted)
        return Kernels(tuple(c for _, c in self._found), codes, tuple(self._codes[s] for s in order), texts), record

    def _make(self, structures: Iterable[str]) -> None:
        """See to it that their code is in `_codes`."""
        missing = [s for s in dict.fromkeys(structures) if not self._has_code(s)]
        if not missing:
            return
        made, processes = codes.compile_all(
            [self._kernels[s] for s in missing],
            self._machine,
            threads.default(),
            lambda done: self._tell("code", done, len(missing)),
        )
        for s, code in zip(missing, made):
            self._codes[s] = code
            self._cache.put(s, serialization.encode(code))
        self._made.update(missing)
        self._processes = max(self._processes, processes)

    def _without_spills(self, structures: Sequence[str]) -> dict[str, str]:
        """For each kernel that spills the one that spills least of those lowered for fewer registers."""
        groups = {s: g for g, (s, _) in zip(self._graph.launches, self._found)}
        best = {s: s for s in structures if self._codes[s].spills}
        registers = self._machine.vector_registers
        for spare in SPARE:
            spilling = [s for s in best if self._codes[best[s]].spills]
            tried = {s: self._lower(groups[s], spare * registers // 16) for s in spilling}
            found = {s: codes.structure(kernel, self._machine) for s, kernel in tried.items()}
            self._kernels |= {found[s]: kernel for s, kernel in tried.items()}
            self._make(found.values())
            best |= {s: min(best[s], t, key=lambda code: self._codes[code].spills) for s, t in found.items()}
        return best

    def _lower(self, group: Group, spare: int) -> Kernel:
        """Return a group's kernel where schedules leave so many vector registers."""
        return lower_group(self._graph, group, replace(self._target, spare=spare), self._users).kernel

    def _group(self, group: Group) -> tuple[str, KernelCall]:
        if group.external:
            structure = f"external {group.name}"
            self._codes[structure], call = external_call(group, group.external)
            return structure, call
        key = group_key(self._graph, group, self._target, self._users, *self._context)
        known = self._lowering(key) if key else None
        if known:
            return known.structure, known.call(self._graph, group)
        lowered = lower_group(self._graph, group, self._target, self._users)
        code = codes.structure(lowered.kernel, self._machine)
        self._lowered[group.name] = self._kernels[code] = lowered.kernel
        made = Lowering.of(self._graph, group, code, lowered)
        if key:
            self._lowerings[key] = self._new[key] = made
        return code, made.call(self._graph, group)

    def _lowering(self, key: str) -> Lowering | None:
        """Return what is known of groups with this key, provided that their code is known too."""
        if key not in self._lowerings:
            held = self._cache.get(key)
            found = Lowering.decode(held) if held else None
            if found is None or not (found.structure in self._kernels or self._has_code(found.structure)):
                return None
            self._lowerings[key] = found
        return self._lowerings[key]

    def _has_code(self, structure: str) -> bool:
        """Return whether the cache has the code of that structure, which is then in `_codes`."""
        if structure not in self._codes and (held := self._cache.get(structure)):
            self._codes[structure] = serialization.decode(held, "")
        return structure in self._codes

    def _text(self, group: Group, structure: str) -> KernelText | ExternalText:
        if group.external:
            return ExternalText(group.name, group.external.code)
        registers, kernel = self._machine.vector_registers, self._lowered.get(group.name)

        def loops() -> Kernel:
            """Return those of that structure; where it cannot be found, those of now."""
            first = kernel or self._lower(group, 0)
            others = (self._lower(group, spare * registers // 16) for spare in SPARE)
            fitting = (k for k in chain([first], others) if codes.structure(k, self._machine) == structure)
            return next(fitting, first)

        return KernelText(group.name, loops, structure, self._machine)


def walker(target: Target, cache: Cache) -> bytes:
    """Return the native entry for a target, as codegen.llvm.walk makes it; nothing for a GPU, which walks no steps."""
    if target.is_gpu:
        return b""

    def made() -> bytes:
        from renorm.codegen.llvm.walk import compile_walker

        return compile_walker(target)

    return _kept(cache, target, "walker", made)


def machine_for(target: Target, cache: Cache) -> Machine:
    """Return what a machine must have to run the code of a target, as codegen.llvm.requirements says for CPUs."""
    if target.is_gpu:
        return Machine(GPU, target.arch)
    held = _kept(cache, target, "machine", lambda: json.dumps(records.plain(requirements(target))).encode())
    return records.record(Machine, json.loads(held))


def _kept(cache: Cache, target: Target, what: str, make: Callable[[], bytes]) -> bytes:
    """Return what is the same for all networks on a target, out of the cache or into it."""
    text = "\n".join([*_context(target), what, target.machine])
    key = hashlib.sha256(text.encode()).hexdigest()
    usable = cache if _SOURCES else Cache(None)
    held = usable.get(key)
    if held is None:
        held = make()
        usable.put(key, held)
    return held


def _context(target: Target) -> tuple[str, ...]:
    """Return what lowering and code depend on besides the group: the machine as schedules see it, and versions."""
    properties = [k for k, v in vars(Target).items() if isinstance(v, property)]
    seen = [f"{k}={getattr(target, k)}" for k in sorted(properties)]
    return (str(target), *seen, *identity(target), _SOURCES, np.__version__, platform.python_version())

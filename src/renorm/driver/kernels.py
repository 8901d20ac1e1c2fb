"""From groups to machine code: what was compiled before comes from the cache, the rest is lowered and compiled.

    group ─key─▶ Lowering ─structure─▶ code        both arrows are entries of the cache

Groups of equal key are lowered once, kernels of equal structure compiled once. A group whose Lowering and code are both
known costs neither te nor loops nor LLVM. Code outlives a change of ops and schedules: its key is what the loops are.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from renorm.codegen import llvm, stored, structure, workers
from renorm.codegen.abi import CompiledKernel, bytes_of
from renorm.codegen.llvm import machine, walk
from renorm.core import sources
from renorm.core.target import Target
from renorm.driver.cache import Cache
from renorm.driver.groups import Call, Lowering, group_key
from renorm.driver.lowering import lower_group
from renorm.driver.module import KernelText
from renorm.graph.ir import Graph, Group
from renorm.runtime import threads
from renorm.runtime.report import CodeRecord
from renorm.tir.nodes import Kernel

_SOURCES = sources.digest()  # of all: whatever a group becomes depends on one of them

Tell = Callable[[str, int, int], None]  # stage, done, of


@dataclass(frozen=True)
class Kernels:
    """calls: one for each group. codes: for each call, the index of its code in `compiled`. texts: by name."""

    calls: tuple[Call, ...]
    codes: tuple[int, ...]
    compiled: tuple[CompiledKernel, ...]
    texts: dict[str, KernelText]


class Compiler:
    """Makes the kernels of one graph, in two stages: `lower`, then `compile`."""

    def __init__(self, graph: Graph, target: Target, cache: Cache, tell: Tell):
        self._graph, self._target, self._tell = graph, target, tell
        self._machine = target.machine_target
        self._context = _context(self._machine)
        self._cache = (
            cache
            if _SOURCES and structure.SOURCES
            else Cache(None, off="the sources cannot be read, or have just changed")
        )
        self._users = graph.user_map()
        self._lowered: dict[str, Kernel] = {}  # by name: what was lowered here
        self._kernels: dict[str, Kernel] = {}  # the same by structure
        self._codes: dict[str, CompiledKernel] = {}  # by structure: what the cache has
        self._lowerings: dict[str, Lowering] = {}  # by key
        self._new: dict[str, Lowering] = {}  # by key: what the cache does not have

    def lower(self) -> None:
        """Finds what each group reads and writes, and which code it needs."""
        of = len(self._graph.launches)
        self._found: list[tuple[str, Call]] = []
        for i, group in enumerate(self._graph.launches):
            self._tell("schedule", i, of)
            self._found.append(self._group(group))

    def compile(self) -> tuple[Kernels, CodeRecord]:
        """Finds or makes the code. Raises what codegen.llvm.compile_kernel raises."""
        order = list(dict.fromkeys(structure for structure, _ in self._found))
        missing = [s for s in order if not self._has_code(s)]
        made, processes = workers.compile_all(
            [self._kernels[s] for s in missing],
            self._machine,
            threads.default(),
            lambda done: self._tell("code", done, len(missing)),
        )
        for s, code in zip(missing, made):
            self._codes[s] = code
            self._cache.put(s, stored.encode(code))
        for key, lowering in self._new.items():  # after the code that they name
            self._cache.put(key, lowering.encode())
        place = {s: i for i, s in enumerate(order)}
        calls, codes = tuple(x for _, x in self._found), tuple(place[s] for s, _ in self._found)
        where = str(self._cache.root) if self._cache.root else f"off: {self._cache.off}"
        record = CodeRecord(len(order), len(missing), processes if missing else 0, where)
        texts = {g.name: self._text(g, s) for g, (s, _) in zip(self._graph.launches, self._found)}
        return Kernels(calls, codes, tuple(self._codes[s] for s in order), texts), record

    def _group(self, group: Group) -> tuple[str, Call]:
        key = group_key(self._graph, group, self._target, self._users, *self._context)
        known = self._lowering(key) if key else None
        if known:
            return known.structure, known.call(group)
        lowered = lower_group(self._graph, group, self._target, self._users)
        nbytes = tuple(map(bytes_of, lowered.kernel.params))
        call = Call(group.name, lowered.reads, lowered.writes, nbytes, lowered.work)
        code = llvm.structure(lowered.kernel, self._machine)
        self._lowered[group.name] = self._kernels[code] = lowered.kernel
        if key:
            self._lowerings[key] = self._new[key] = Lowering.of(group, code, call)
        return code, call

    def _lowering(self, key: str) -> Lowering | None:
        """What is known of groups with this key, provided that their code is known too."""
        if key not in self._lowerings:
            held = self._cache.get(key)
            found = Lowering.decode(held) if held else None
            if found is None or not (found.structure in self._kernels or self._has_code(found.structure)):
                return None
            self._lowerings[key] = found
        return self._lowerings[key]

    def _has_code(self, structure: str) -> bool:
        """Whether the cache has the code of that structure, which is then in `_codes`."""
        if structure not in self._codes and (held := self._cache.get(structure)):
            self._codes[structure] = stored.decode(held, "")
        return structure in self._codes

    def _text(self, group: Group, structure: str) -> KernelText:
        graph, target, users, kernel = self._graph, self._target, self._users, self._lowered.get(group.name)
        lower = (lambda: kernel) if kernel else (lambda: lower_group(graph, group, target, users).kernel)
        return KernelText(group.name, lower, structure, self._machine)


def walker(target: Target, cache: Cache) -> bytes:
    """The native entry for a target, as codegen.llvm.walk makes it."""
    text = "\n".join([*_context(target), "walker", target.machine])
    key = hashlib.sha256(text.encode()).hexdigest()
    usable = cache if _SOURCES else Cache(None)
    held = usable.get(key)
    if held is None:
        held = walk.compile_walker(target)
        usable.put(key, held)
    return held


def _context(target: Target) -> tuple[str, ...]:
    """What lowering and code depend on besides the group: the machine as schedules see it, and versions."""
    properties = [k for k, v in vars(Target).items() if isinstance(v, property)]
    seen = [f"{k}={getattr(target, k)}" for k in sorted(properties)]
    return (str(target), *seen, *machine.identity(target), _SOURCES, np.__version__, platform.python_version())

"""The differences between two records, for people and for machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.replay.digests import Program
from benchmarks.replay.record import Programs

_DIGESTS = frozenset({"loops", "code", "plan", "constants", "refusals"})  # all that can be said is that they differ
_TEXTS = {"layouts": "layout of", "norms": "norm"}


@dataclass(frozen=True)
class Difference:
    """program: its name. what: "kernel ...", "layout of ...", "norm ...", or a field of Program. said: how it changed,
    as a part of a sentence."""

    program: str
    what: str
    said: str


def differences(old: Programs, new: Programs) -> list[Difference]:
    """Return all differences, in order of programs. A program that only one record has is one difference."""
    found = list[Difference]()
    for name in sorted(old.keys() | new.keys()):
        if name in old and name in new:
            found += [Difference(name, what, said) for what, said in _of_program(old[name], new[name])]
        else:
            found.append(Difference(name, "program", "gone" if name in old else "new"))
    return found


def _of_program(old: Program, new: Program) -> Iterator[tuple[str, str]]:
    before, after = _by_nodes(old), _by_nodes(new)
    for nodes in sorted(before.keys() | after.keys()):
        one, other = before.get(nodes), after.get(nodes)
        if one is None or other is None:
            known = one or other
            assert known is not None
            yield f"kernel {known['name']}", f"{'gone' if one else 'new'}: {nodes}"
        elif one != other:
            yield f"kernel {other['name']}", _fields(one, other)
    for part, label in _TEXTS.items():
        one, other = getattr(old, part), getattr(new, part)
        for name in sorted(one.keys() | other.keys()):
            if one.get(name) != other.get(name):
                yield f"{label} {name}", _change(one.get(name), other.get(name))
    for part in ("refusals", "arena", "weights", "plan", "constants", "error"):
        one, other = getattr(old, part), getattr(new, part)
        if one != other:
            yield part, "changed" if part in _DIGESTS else _change(one, other)


def _by_nodes(program: Program) -> dict[str, dict[str, Any]]:
    """Return kernels by what they run: their names count, so one that comes or goes renames others."""
    return {k.nodes or name: {"name": name, **vars(k)} for name, k in program.kernels.items()}


def _fields(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    changed = [k for k in old if old[k] != new[k]]
    digests = [k for k in changed if k in _DIGESTS]
    told = [f"{' and '.join(digests)} changed"] if digests else []
    return ", ".join([*told, *(f"{k} {_change(old[k], new[k])}" for k in changed if k not in _DIGESTS)])


def _change(old: Any, new: Any) -> str:
    return f"{_shown(old)} -> {_shown(new)}"


def _shown(x: Any) -> str:
    return f"{x:,}" if isinstance(x, int) else str(x or "none")


def lines(found: list[Difference], old: Programs, new: Programs) -> Iterator[str]:
    """Yield the differences, program by program, and a summary."""
    for i, each in enumerate(found):
        if not i or found[i - 1].program != each.program:
            yield each.program
        yield f"  {each.what}: {each.said}"
    pairs = [(k, _by_nodes(new[name]).get(nodes, {})) for name in old.keys() & new.keys()
             for nodes, k in _by_nodes(old[name]).items()]  # fmt: skip
    parts = [part for part in ("loops", "code") if any(k[part] for k, _ in pairs)]
    same = [f"{sum(k[part] == other.get(part) for k, other in pairs)} have the same {part}" for part in parts]
    yield (
        f"{len({d.program for d in found})} of {len(old.keys() | new.keys())} programs differ; of {len(pairs)} kernels "
        + ", ".join(same)
    )

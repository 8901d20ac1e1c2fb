"""Programs whose counts are extents of the steps behind them: what runs before each of these is there.

program    steps [0, n)    c.0 is what step 2 writes
stage      steps [0, 3)    for the extents that inputs tell
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from renorm.core.dims import Dim, symbols_of
from renorm.core.errors import InvalidArtifact
from renorm.core.inputs import given_symbols
from renorm.runtime.program import Program
from renorm.runtime.report import Report


def stages(program: Program) -> tuple[Program, ...]:
    """Return the programs of the steps in front of counts: each ends where some are there, and knows of the extents
    that are told before it begins. What is an output of other ones is empty there. Raises InvalidArtifact where steps
    need others."""
    ends = sorted(set(program.counts))
    return tuple(_stage(program, begin, end) for begin, end in zip([0, *ends], ends))


def _stage(program: Program, begin: int, end: int) -> Program:
    late = {len(program.given) + i for i, ready in enumerate(program.counts) if ready > begin}
    inputs = tuple(replace(s, deciding=()) if i in late else s for i, s in enumerate(program.inputs))
    known = set(given_symbols(inputs))
    typical = {name: value for name, value in program.typical.items() if name in known}

    def is_told(dims: Iterable[Dim]) -> bool:
        return all(symbols_of(d) <= typical.keys() for d in dims)

    steps, told = program.steps[begin:end], [is_told([b.size, *b.ends]) for b in program.buffers]
    used = {s.code for s in steps}
    made = replace(
        program,
        inputs=inputs,
        outputs=tuple(s if is_told(s.shape) else replace(s, shape=(0,)) for s in program.outputs),
        codes=tuple(
            c if i in used else replace(c, phases=(0,) * len(c.phases), scratch=0) for i, c in enumerate(program.codes)
        ),
        steps=steps,
        report=Report(),
        checks=(),
        typical=typical,
        buffers=program.buffers[: told.index(False) if False in told else None],
        conditions=tuple(r for r in program.conditions if is_told((r.condition.left, r.condition.right))),
        counts=(),
    )
    if unknown := {str(s) for d in made.extents() for s in symbols_of(d)} - typical.keys():
        facts = [f"{', '.join(sorted(unknown))}, steps {begin} to {end}"]
        raise InvalidArtifact(f"program {program.name!r} has steps for extents that later ones tell", facts)
    return made.bind({}) if program.typical and not typical else made

#!/usr/bin/env python
"""Print what each op file still lacks; exit status 1 if there is anything."""

from __future__ import annotations

import sys

from renorm.graph import registry
from renorm.graph.op import OpDef


def missing(op: type[OpDef]) -> list[str]:
    """Return what is not there yet, in words."""
    lacking: list[str] = []
    if not (op.__dict__.get("__doc__") or "").strip():
        lacking.append("a docstring that says the formula")
    lacking += [f"{kind}" for kind in ("samples", "rejects") if not getattr(op, kind)]
    for method in ("compute", "schedule", "reference"):
        if getattr(op, method) is getattr(OpDef, method) and not (method == "schedule" and op.scheduled_as):
            lacking.append(method)
    module = sys.modules[op.__module__]
    if not (module.__doc__ or "").strip():
        lacking.append("a docstring of its file")
    used = {name for sample in op.samples for name in sample.attributes}
    if unused := sorted(set(op.attributes) - used):
        lacking.append(f"a sample that sets {', '.join(unused)}")
    return lacking


def main() -> int:
    import renorm.ops  # noqa: F401  registers every op

    found = {op.name: missing(op) for op in registry.all_ops()}
    for name, lacking in found.items():
        if lacking:
            print(f"{name}: lacks {'; '.join(lacking)}")
    incomplete = sum(bool(lacking) for lacking in found.values())
    print(f"{len(found)} ops, {incomplete} incomplete")
    return 1 if incomplete else 0


if __name__ == "__main__":
    sys.exit(main())

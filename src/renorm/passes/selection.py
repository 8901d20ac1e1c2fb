"""Passes and single rules by name, for who wants to run some of them and see what each does.

Names are those of their classes; case, `-` and `_` do not matter. A rule that exists once per op may be named with it,
`FoldInFront(conv)`, or without, which means all of them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence

from renorm.core.errors import InvalidInput, suggest
from renorm.passes.context import Pass
from renorm.passes.rewriting import ApplyRules


def named(passes: Sequence[Pass]) -> dict[str, Pass]:
    """Each pass, or each of its rules where it applies rules, by name, in order."""
    found: dict[str, Pass] = {}
    for one in passes:
        if isinstance(one, ApplyRules):
            found.update({rule.name: ApplyRules((rule,)) for rule in one.rules})
        else:
            found[type(one).__name__] = one
    return found


def algebra(one: Pass) -> str:
    """The first line of the docstring of a pass, or of its only rule."""
    subject = one.rules[0] if isinstance(one, ApplyRules) else one
    return (inspect.getdoc(type(subject)) or "").partition("\n")[0]


def choose(names: Sequence[str], passes: Sequence[Pass]) -> list[tuple[str, Pass]]:
    """The passes of these names, in the order of the names. InvalidInput tells what is nearest to an unknown name."""
    known = named(passes)
    found, unknown = list[tuple[str, Pass]](), list[str]()
    for name in names:
        exact = [k for k in known if _plain(k) == _plain(name)]
        family = exact or [k for k in known if _plain(k.partition("(")[0]) == _plain(name)]
        if not family:
            unknown.append(name)
            continue
        rules = [rule for k in family if isinstance(one := known[k], ApplyRules) for rule in one.rules]
        found.append((family[0] if len(family) == 1 else name, ApplyRules(rules) if rules else known[family[0]]))
    if unknown:
        raise InvalidInput(
            f"no pass is called {', '.join(map(repr, unknown))}",
            [f"nearest to {u!r}: {suggest(u, known)}" for u in unknown],
            "renorm optimize --list-passes names all",
        )
    return found


def _plain(name: str) -> str:
    return re.sub(r"[-_\s]", "", name).lower()

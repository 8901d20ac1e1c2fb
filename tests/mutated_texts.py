"""Texts with a few mistakes in them."""

from __future__ import annotations

import re

from hypothesis import strategies as st

_TOKEN = re.compile(r'"[^"\n]*"|\w[\w.]*|//|->|\s+|.')
_FOREIGN = [
    "(",
    "]",
    "{",
    "}",
    ",",
    "=",
    "%",
    "//",
    "-",
    "-1",
    "2.5",
    "inf",
    "99999999999",
    '"',
    "\n",
    "$",
    "true",
    "0",
    "é",
    "x",
    "// attr [",
]


@st.composite
def mutated(draw: st.DrawFn, texts: list[str]) -> str:
    """One of the texts, with one to three tokens lost, doubled, or replaced by others, or cut off somewhere."""
    tokens = _TOKEN.findall(draw(st.sampled_from(texts)))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(tokens) - 1))
        other = draw(st.sampled_from(tokens) | st.sampled_from(_FOREIGN) | st.characters())
        tokens[place : place + draw(st.integers(0, 2))] = [other] * draw(st.integers(0, 2))
        tokens = tokens or [""]
    return "".join(tokens[: draw(st.integers(1, len(tokens)) | st.just(len(tokens)))])

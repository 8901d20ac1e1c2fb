"""Recipes whose checksum is right and whose content is not: an InvalidModel each."""

from __future__ import annotations

import struct

import pytest

from renorm.errors import InvalidModel
from renorm.frontends import recipe
from renorm.frontends.recipe import Recipe
from renorm.frontends.residual import packed


def forged(head: bytes) -> bytes:
    content = b"".join(struct.pack("<Q", len(b)) + b for b in (head, b""))
    body = b"".join(struct.pack("<Q", len(b)) + b for b in (packed(content), b""))
    return recipe._MAGIC + recipe._checksum(body) + body


@pytest.mark.parametrize(
    "head",
    [
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000 + b"0" + b"}" * 100_000,
        b"[]",
        b"0",
        b'{"constants": [], "regions": [], "order": []}',
        b'{"constants": {"a": 1}, "regions": [], "order": []}',
        b'{"constants": {"a": [["f", 1, 0, 0, 1e400], 0, 0]}, "regions": [], "order": []}',
        b'{"constants": {}, "regions": [[1, 2]], "order": []}',
        b'{"constants": {}, "regions": [], "order": [[1]]}',
    ],
)
def test_a_forged_head_is_a_damaged_recipe(head: bytes) -> None:
    with pytest.raises(InvalidModel, match="its recipe is damaged"):
        Recipe.unpack(forged(head), "m")

"""Damaged JSON: values of other types, other names, numbers that are no such, values deep within each other."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from typing import Any

from tests.frontends.mutations import EXTREMES, TEXTS, any_bytes

_NUMBERS = (*EXTREMES, 1.5, -0.5, 1e308, float("nan"), float("inf"), 10**30)
_ODD = (None, True, False, [], {}, "", [None], {"class_name": "Dense", "config": {}}, [[[[]]]], {"": ""}, *TEXTS)


def json_text(content: bytes, chance: random.Random) -> bytes:
    """A text of JSON with one to four values changed; some of them text that is none."""
    if chance.random() < 0.05:
        return any_bytes(content, chance)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return any_bytes(content, chance)
    with suppress(RecursionError):  # of what is deep already
        for _ in range(chance.choice((1, 1, 2, 4))):
            places = [*json_places(value)]
            if places:
                _changed(places, chance)
        return json.dumps(value).encode()
    return any_bytes(content, chance)


def json_places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Give each object or list with a key of it; texts that hold JSON are left as they are."""
    waiting = [value]
    while waiting:
        held = waiting.pop()
        keys = held if isinstance(held, dict) else range(len(held)) if isinstance(held, list) else ()
        for key in keys:
            yield held, key
            waiting.append(held[key])


def _changed(places: list[tuple[Any, Any]], chance: random.Random) -> None:
    held, key = chance.choice(places)
    value = held[key]
    match chance.randrange(9):
        case 0:
            del held[key]
        case 1:
            held[key] = chance.choice(_ODD)
        case 2 | 3:
            other, at = chance.choice(places)  # the same key somewhere else says something of the same kind
            same = [(h, k) for h, k in places if k == key and isinstance(h, dict)]
            other, at = chance.choice(same) if same and chance.random() < 0.7 else (other, at)
            held[key] = deepcopy(other[at])
        case 4:
            for _ in range(chance.choice((1, 30, 500))):
                held[key] = chance.choice(([held[key]], {"a": held[key]})) if chance.random() < 0.9 else [held[key]]
        case 5 if isinstance(held, list):
            held[key:key] = [deepcopy(value) for _ in range(chance.choice((1, 3, 40)))]
        case 6 if isinstance(held, dict):
            del held[key]
            held[chance.choice((*(k for _, k in places if isinstance(k, str)), *TEXTS))] = value
        case _:
            if isinstance(value, str) and chance.random() < 0.7:
                texts = [h[k] for h, k in places if isinstance(h[k], str)]
                held[key] = chance.choice((*texts, *TEXTS))
            elif isinstance(value, (bool, int, float, str)):
                held[key] = chance.choice((*_NUMBERS, chance.randrange(9)))
            elif isinstance(value, list):
                chance.shuffle(value)
            else:
                held[key] = chance.choice(_NUMBERS)

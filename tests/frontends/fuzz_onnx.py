"""Damaged ONNX files: fields that are missing, doubled, of other kinds or lengths; nodes wired otherwise, operators and
attributes of other nodes, shapes that are huge or negative, elements of another size or in other files, rings,
functions that call each other, graphs deep within each other."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy

from tests.frontends.fuzz_protobuf import (
    FIXED32,
    LENGTH,
    VARINT,
    Part,
    Parts,
    held_by,
    is_of,
    parsed,
    places_of,
    text,
    varint,
    written,
)
from tests.frontends.mutations import EXTREMES, FLOATS, TEXTS, any_bytes

from renorm.frontends.onnx import messages, wire
from renorm.frontends.onnx.messages import AttributeProto, GraphProto, NodeProto, TensorProto
from renorm.graph import registry

_MOST = 3_000  # parts of a file to which others are added


def _names(parts: Parts, chance: random.Random) -> None:
    """Another name of the model in the place of one, or none that is one: nodes are wired otherwise, in rings too."""
    texts = [p for p in places_of(parts) if is_of(p, wire.TEXT) and isinstance(p[0][p[1]].value, bytes)]
    if not texts:
        return
    held, i, message = chance.choice(texts)
    same = (
        [ps[k].value for ps, k, m in texts if m is message]
        if chance.random() < 0.8
        else [t.encode() for t in TEXTS] + [b"\xff"]
    )
    held[i].value = chance.choice(same)


def _wires(parts: Parts, chance: random.Random) -> None:
    """Another operand of a node, one more, or one less."""
    nodes = held_by(parts, NodeProto)
    if nodes:
        node = chance.choice(nodes)
        made = [p.value for n in nodes for p in n if p.number in (1, 2) and isinstance(p.value, bytes)]
        node.insert(
            chance.randrange(len(node) + 1), Part(chance.choice((1, 1, 2)), LENGTH, chance.choice([b"", *made]))
        )
        own = [i for i, p in enumerate(node) if p.number == 1]
        if own and chance.random() < 0.7:
            del node[chance.choice(own)]


def _numbers(parts: Parts, chance: random.Random) -> None:
    """Numbers that are huge, negative or of no meaning: extents, types, versions, attributes."""
    numbers = [p for p in places_of(parts) if p[0][p[1]].kind == VARINT]
    if numbers:
        held, i, _ = chance.choice(numbers)
        held[i].value = chance.choice((*EXTREMES, chance.randrange(40), 2**70 - 1))


def _elements(parts: Parts, chance: random.Random) -> None:
    """Bytes and packed numbers that are other ones, more or fewer."""
    contents = [p for p in places_of(parts) if p[0][p[1]].kind == LENGTH and isinstance(p[0][p[1]].value, bytes)]
    contents = [p for p in contents if not is_of(p, wire.TEXT)]
    if not contents:
        return
    held, i, _ = chance.choice(contents)
    content = held[i].value
    if is_of((held, i, _), wire.INT64, wire.INT32, wire.UINT64):
        content = b"".join(varint(chance.choice((*EXTREMES, *range(9)))) for _ in range(chance.randrange(7)))
    else:
        made = (b"", content + content[:3], content[: chance.randrange(len(content) + 1)], any_bytes(content, chance),
                struct.pack("<f", min(max(chance.choice(FLOATS), -3e38), 3e38)), bytes(64), b"\xff" * 40)  # fmt: skip
        content = chance.choice(made)
    held[i].value = content


def _left_out(parts: Parts, chance: random.Random) -> None:
    held, i, _ = chance.choice([*places_of(parts)])
    del held[i]


def _doubled(parts: Parts, chance: random.Random) -> None:
    held, i, _ = chance.choice([*places_of(parts)])
    held[i:i] = [deepcopy(held[i]) for _ in range(chance.choice((1, 1, 2, 30)))]


def _grafted(parts: Parts, chance: random.Random) -> None:
    """A part of another message in the place of one of its kind, or in a message that has no such part."""
    places = [*places_of(parts)]
    held, i, message = chance.choice(places)
    others = [p for p in places if p[2] is message and p[0] is not held] if chance.random() < 0.9 else places
    if others:
        other, k, _ = chance.choice(others)
        held[i : i + chance.randrange(2)] = [deepcopy(other[k])]


def _shuffled(parts: Parts, chance: random.Random) -> None:
    chance.shuffle(chance.choice([*places_of(parts)])[0])


def _kinds(parts: Parts, chance: random.Random) -> None:
    """A field of another number, of another kind, or of another length than it states."""
    held, i, _ = chance.choice([*places_of(parts)])
    match chance.randrange(3):
        case 0:
            held[i].number = chance.choice((0, 1, 2, 3, 5, 7, 11, chance.randrange(40), 2**29 - 1, 2**29))
        case 1 if not isinstance(held[i].value, list):
            kind = chance.choice((0, 1, 2, 3, 4, 5, 6, 7))
            number = kind == VARINT
            value = held[i].value
            held[i].value = (value if isinstance(value, int) else len(value)) if number else b"\x02\x01\x00\x00"
            held[i].kind = kind
        case _:
            held[i].lie = chance.choice((1, -1, 2, 100, 2**31, 2**63, -1000))


def _operators(parts: Parts, chance: random.Random) -> None:
    """Another operator on the operands of one, or another version of all."""
    nodes = held_by(parts, NodeProto)
    if not nodes or chance.random() < 0.2:
        domain, version = chance.choice(("", "ai.onnx.ml", "com.microsoft")), chance.choice((1, 6, 9, 12, 17, 22, 27))
        parts.append(Part(8, LENGTH, [text(1, domain), Part(2, VARINT, version)], messages.OperatorSetIdProto))
        return
    node = chance.choice(nodes)
    domain, _, op_type = chance.choice(_OPERATORS).rpartition("::")
    node[:] = [p for p in node if p.number not in (4, 7)] + [text(4, op_type), text(7, domain)]


_OPERATORS = sorted({*registry._ONNX, "Constant", "If", "Loop", "Scan", "Identity", "Gelu", "SequenceAt"})


def _attributes(parts: Parts, chance: random.Random) -> None:
    """An attribute of a node at another one; an attribute of another type."""
    nodes = held_by(parts, NodeProto)
    if not nodes:
        return
    held = [p for n in nodes for p in n if p.message is AttributeProto]
    node, name = chance.choice(nodes), chance.choice(_ATTRIBUTES)
    if held and chance.random() < 0.6:
        made = deepcopy(chance.choice(held))
    else:
        integers = [Part(8, VARINT, chance.choice((*EXTREMES, *range(9)))) for _ in range(chance.randrange(6))]
        value: Parts = chance.choice((
            integers, [Part(3, VARINT, chance.choice(EXTREMES))], [text(4, chance.choice(("SAME_UPPER", "x" * 99)))],
            [Part(2, FIXED32, struct.pack("<f", float(chance.choice((0, -1, 1e-38, float("nan"))))))],
            [Part(5, LENGTH, [Part(1, VARINT, 2), Part(2, VARINT, chance.randrange(30))], TensorProto)], [],
        ))  # fmt: skip
        made = Part(5, LENGTH, [text(1, name), *value, Part(20, VARINT, chance.randrange(15))], AttributeProto)
    if chance.random() < 0.5 and isinstance(made.value, list):
        made.value = [p for p in made.value if p.number != 1] + [text(1, name)]
    same = [i for i, p in enumerate(node) if p.message is AttributeProto]
    node[chance.choice(same) if same and chance.random() < 0.5 else len(node) :] = [made]


_ATTRIBUTES = (
    "axis", "axes", "perm", "pads", "strides", "dilations", "kernel_shape", "group", "auto_pad", "epsilon", "to",
    "body", "mode", "value", "keepdims", "then_branch", "else_branch", "num_scan_inputs", "hidden_size", "direction",
    "block_size", "blocksize", "num_outputs", "split", "shape", "dtype", "num_heads", "scales",
    "activations", "layout", "equation",
)  # fmt: skip


def _outside(parts: Parts, chance: random.Random) -> None:
    """Elements in other files, at places that are none."""
    tensors = held_by(parts, TensorProto)
    if tensors:
        tensor = chance.choice(tensors)
        where = chance.choice(
            ("held.data", "../held.data", "/etc/passwd", "", ".", "held.onnx", "x" * 300, "a\0b", "\udcff")
        )
        stated = {"location": where, "offset": chance.choice(("0", "8", "-8", "99999999999999999999", "x", "1e3", ""))}
        stated["length"] = chance.choice(("0", "8", "64", "-1", "9223372036854775808", "0x10", "٣"))
        entries = {k: v for k, v in stated.items() if chance.random() < 0.8}
        tensor[:] = [p for p in tensor if p.number not in (9, 13, 14)] + [Part(14, VARINT, chance.choice((1, 1, 1, 2)))]
        for key, value in entries.items():
            held = [text(1, key), Part(2, LENGTH, value.encode("utf-8", "surrogateescape"))]
            tensor.append(Part(13, LENGTH, held, messages.StringStringEntryProto))


def _deep(parts: Parts, chance: random.Random) -> None:
    """The graph as a branch of an If of a graph, several or very many times."""
    graphs = held_by(parts, GraphProto)
    if not graphs or sum(1 for _ in places_of(parts)) > _MOST // 8:
        return
    graph, condition = chance.choice(graphs), chance.choice([p.value for p in [*_operands(parts)]] or [b"c"])
    for _ in range(chance.choice((1, 2, 20, 40, 110))):
        inner, outputs = [deepcopy(p) for p in graph if p.number != 11], [p for p in graph if p.number == 12]
        kind = chance.choice((b"If", b"If", b"Loop", b"Scan"))
        names = [text(1, n) for n in (("then_branch", "else_branch") if kind == b"If" else ("body",))]
        branches = [Part(5, LENGTH, [n, Part(6, LENGTH, inner, GraphProto), Part(20, VARINT, 5)], AttributeProto)
                    for n in names[: chance.choice((1, 2))]]  # fmt: skip
        results = [Part(2, LENGTH, p.value[0].value) for p in outputs if isinstance(p.value, list) and p.value]
        results = [p for p in results if isinstance(p.value, bytes)]
        node: Parts = [Part(1, LENGTH, condition), *results, Part(4, LENGTH, kind), *branches]
        graph[:] = [Part(1, LENGTH, node, NodeProto), *(p for p in graph if p.number in (2, 11)), *outputs]
        if len(branches) > 1:  # twice as much each time
            break


def _operands(parts: Parts) -> Iterator[Part]:
    """Give the operands of nodes."""
    found = (ps[i] for ps, i, m in places_of(parts) if m is NodeProto and ps[i].number == 1)
    return (p for p in found if isinstance(p.value, bytes))


def _functions(parts: Parts, chance: random.Random) -> None:
    """Functions that call the next one once or several times, or each other in a ring."""
    count, calls, is_ring = chance.choice((1, 2, 12, 40)), chance.choice((1, 2, 8)), chance.random() < 0.3
    for i in range(count):
        at = (i + 1) % count if is_ring else i + 1
        op = ("Neg", "") if at == count else (f"f{at}", "my")
        node: Parts = [Part(1, LENGTH, b"a"), Part(2, LENGTH, b"b"), text(4, op[0]), text(7, op[1])]
        nodes = [Part(7, LENGTH, deepcopy(node), NodeProto) for _ in range(calls)]
        body = [text(1, f"f{i}"), text(4, "a"), text(5, "b"), *nodes, text(10, "my")]
        parts.append(Part(25, LENGTH, body, messages.FunctionProto))
    parts.append(Part(8, LENGTH, [text(1, "my"), Part(2, VARINT, 1)], messages.OperatorSetIdProto))
    nodes = held_by(parts, NodeProto)
    node = chance.choice(nodes) if nodes else []
    node[:] = [p for p in node if p.number not in (4, 7)] + [text(4, "f0"), text(7, "my")]


_CHANGES: Sequence[Callable[[Parts, random.Random], None]] = (
    _names, _names, _wires, _wires, _numbers, _numbers, _numbers, _elements, _elements, _left_out, _doubled, _grafted,
    _grafted, _shuffled, _kinds, _operators, _attributes, _attributes, _outside, _deep, _functions,
)  # fmt: skip


def mutated(content: bytes, chance: random.Random) -> bytes:
    """The file with one to four changes of what it says; some of them of any bytes."""
    try:
        parts = parsed(content)
    except (IndexError, ValueError, struct.error, RecursionError):
        return any_bytes(content, chance)
    for _ in range(chance.choice((1, 1, 2, 4))):
        if 0 < sum(1 for _ in places_of(parts)) < _MOST:
            chance.choice(_CHANGES)(parts, chance)
    made = written(parts)
    return any_bytes(made, chance) if chance.random() < 0.05 else made


def smaller(content: bytes) -> Iterator[bytes]:
    """Files without one of the parts of a file, large ones first."""
    try:
        parts = parsed(content)
    except (IndexError, ValueError, struct.error, RecursionError):
        return
    places = [*places_of(parts)]
    for held, i, _ in places:
        left = held[i]
        del held[i]
        yield written(parts)
        held.insert(i, left)

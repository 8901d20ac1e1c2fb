"""Forged artifacts: digests are mended, as an attacker would, and what they vouch for is not what renorm wrote."""

from __future__ import annotations

import json
import random
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
from tests.stress.attack import attack

import renorm
from renorm import ops
from renorm.driver.module import OpenModule
from renorm.errors import InvalidArtifact
from renorm.graph.ir import Graph
from renorm.runtime import artifact

FORGERIES = 200  # of one attempt

Json = Any


@attack(limit_s=120, in_gate=1)
def manifest(seed: int) -> None:
    """A manifest of anything, under the digests that it asks for: it loads, or InvalidArtifact says why."""

    def forged(rng: random.Random, file: bytes) -> bytes:
        said = json.loads(file[256 : 256 + struct.unpack_from("<Q", file, 24)[0]])
        for _ in range(rng.choice((1, 1, 1, 2, 8))):
            _change(rng, said)
        text = json.dumps(said).encode()
        return _sealed(file, _garbled(rng, text) if rng.random() < 0.2 else text)

    _attempt(seed, forged)


@attack(limit_s=120, in_gate=1)
def objects(seed: int) -> None:
    """Objects with any byte changed, in their tables above all, are placed in memory or refused; they are not run."""

    def forged(rng: random.Random, file: bytes) -> bytes:
        head, size = struct.unpack_from("<QQ", file, 16)
        begin, data = -(-(256 + size) // 64) * 64, bytearray(file)
        starts = [i for i in range(begin, head, 64) if data.startswith(b"\x7fELF", i)]
        for _ in range(rng.choice((1, 2, 8))):
            at = rng.choice(starts)
            tables = at + struct.unpack_from("<Q", data, at + 40)[0]
            place = rng.choice((at + rng.randrange(64), tables + rng.randrange(640), rng.randrange(begin, head)))
            width = rng.choice((1, 2, 4, 8))
            if place + width <= head:
                data[place : place + width] = rng.choice(_WORDS)[:width] if rng.random() < 0.7 else rng.randbytes(width)
        return _sealed(bytes(data), bytes(data[256 : 256 + size]))

    _attempt(seed, forged)


@attack(limit_s=120, in_gate=1)
def headers(seed: int) -> None:
    """Sizes, digests, signatures and lengths of anything: the header is refused, or is as good as the old one."""

    def forged(rng: random.Random, file: bytes) -> bytes:
        data = bytearray(file[: rng.choice((len(file), len(file), rng.randrange(len(file))))])
        for _ in range(rng.choice((1, 2))):
            at = rng.choice((8, 12, 16, 24, 32, 40, rng.randrange(256)))
            data[at : at + 8] = rng.choice(_WORDS)
        data[224:256] = sha256(data[:224]).digest()
        return bytes(data)

    _attempt(seed, forged)


_WORDS = [
    struct.pack("<Q", n) for n in (0, 1, 2, 63, 64, 4096, 1 << 31, (1 << 32) - 1, 1 << 47, 1 << 63, (1 << 64) - 1)
]
_VALUES: list[Callable[[random.Random], Json]] = [
    lambda rng: rng.choice((-1, 0, 1, 64, 1 << 31, 1 << 47, 1 << 62, (1 << 63) - 1, 1 << 63, -(1 << 63), 10**30)),
    lambda rng: rng.choice((float("nan"), float("inf"), -0.0, 1e308, 1.5)),
    lambda rng: rng.choice(("", "\ud800", "float32", "float31", "x" * 5000, "os:system", "../..", "\x1b[2J", "tandem")),
    lambda rng: rng.choice((None, True, False, [], {}, [[]], {"": 1}, [0] * 3000)),
    lambda rng: [rng.randrange(-2, 5) for _ in range(rng.randrange(70))],
]
_LEAVING = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect")


_TRAINING = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2, 4, 3, 3] x) => (float[2, 4, 3, 3] y, float[4] after_m, float[4] after_v)
<float[4] s = {1, 2, 3, 4}, float[4] b = {1, 2, 3, 4}, float[4] m = {1, 2, 3, 4}, float[4] v = {1, 2, 3, 4}>
{ y, after_m, after_v = BatchNormalization <training_mode = 1> (x, s, b, m, v) }"""


@cache
def _files() -> tuple[bytes, ...]:
    """A plain network, one with code of a target, one with state, and one of open extents."""
    rng = np.random.default_rng(0)

    def array(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    g = Graph("forged")
    y = ops.conv(g.input("x", "float32", (2, 4, 8, 8)), array(8, 4, 3, 3), pads=(1,) * 4)
    y = ops.relu(ops.batch_norm(y, array(8), array(8), array(8), abs(array(8)) + 0.5))
    g.outputs = [ops.softmax(y)]
    modules = [renorm.compile(g, target=target, threads=1) for target in ("llvm", "tandem")]
    modules += [renorm.compile(onnx.parser.parse_model(_TRAINING), train_state=True, threads=1)]
    assert modules[-1].state
    rows = Graph("open")
    x = rows.input("x", "float32", ("n", 8))
    h = ops.relu(ops.gemm(x, array(8, 16), array(16)))
    rows.outputs = [ops.softmax(ops.add(ops.gemm(h, array(16, 16), array(16)), h))]
    modules += [renorm.compile(rows, threads=1)]
    assert isinstance(modules[-1], OpenModule)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.renorm"
        return tuple(path.read_bytes() for m in modules if m.save(path))


_called = list[str]()


@cache
def _watch() -> None:
    """From now on every call that leaves the process is noted. A hook stays for ever: there is one."""
    sys.addaudithook(lambda event, _: _called.append(event) if event in _LEAVING else None)


def _attempt(seed: int, forge: Callable[[random.Random, bytes], bytes]) -> None:
    rng, files = random.Random(seed), _files()
    _watch()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "forged.renorm"
        for _ in range(FORGERIES):
            path.write_bytes(forge(rng, rng.choice(files)))
            with suppress(InvalidArtifact):
                str(renorm.load(path, threads=1, verify=rng.random() < 0.5))
            with suppress(InvalidArtifact):
                for held in artifact.programs(path)[2]:
                    json.dumps([held.report.to_json(), str(held.report)])
    assert not _called, _called


def _sealed(file: bytes, manifest: bytes) -> bytes:
    """The file with this manifest, and digests that fit."""
    head, size, weights = struct.unpack_from("<QQQ", file, 16)
    code = bytes(-(256 + len(manifest)) % 64) + file[-(-(256 + size) // 64) * 64 : head]
    code += bytes(-(256 + len(manifest) + len(code)) % 4096)
    stated = file[:16] + struct.pack("<QQQ8x", 256 + len(manifest) + len(code), len(manifest), weights)
    header = stated + b"".join(sha256(part).digest() for part in (manifest, code, file[head:])) + bytes(80)
    return header + sha256(header).digest() + manifest + code + file[head:]


def _change(rng: random.Random, said: Json) -> None:
    """Changes one place of a tree of lists and objects; the deep ones are as likely as the shallow ones."""
    places = list(_places(said))
    if not places:
        return
    at, key = rng.choice(places)
    other, other_key = rng.choice(places)
    match rng.randrange(6):
        case 0:
            del at[key]
        case 1:
            at[key] = json.loads(json.dumps(other[other_key]))
        case 2 if isinstance(at, list):
            at.insert(key, json.loads(json.dumps(at[key])))
        case 3 if isinstance(at[key], int):
            at[key] += rng.choice((-64, -1, 1, 64, 1 << 20, 1 << 40))
        case 4 if isinstance(at, dict):
            at[rng.choice(("more", "", "name"))] = rng.choice(_VALUES)(rng)
        case _:
            at[key] = rng.choice(_VALUES)(rng)


def _places(node: Json) -> Iterator[tuple[Json, Any]]:
    keys = node.keys() if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    for key in keys:
        yield node, key
        yield from _places(node[key])


def _garbled(rng: random.Random, text: bytes) -> bytes:
    """Text that is no manifest, or no JSON."""
    at = rng.randrange(len(text))
    put = rng.choice((b"[" * 200_000, b"{" * 9, b"\xff", b"1" * 6000, b'"', b"", b"NaN", b"\\ud800", b"e999999"))
    return text[:at] + put + text[at + rng.randrange(9) :]

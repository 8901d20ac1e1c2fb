"""Cases: chains of steps drawn at random, built as networks, and made smaller where they fail."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

from tests.passes.folding.network import Inapplicable, Network
from tests.passes.folding.parts import BRANCHES
from tests.passes.folding.steps import FORMS, SCALES, STEPS
from tests.passes.folding.verdict import Bound, bound

Said = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """What a network is built from. seed: of its numbers; dynamic, special: see Network."""

    seed: int
    shape: tuple[int, ...]
    steps: tuple[Said, ...]
    dtype: str = "float32"
    opset: int = 17
    dynamic: str = ""
    special: bool = False

    def __str__(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def parse(text: str) -> Case:
        said = json.loads(text)
        steps = tuple((kind, given) for kind, given in said.pop("steps"))
        return Case(shape=tuple(said.pop("shape")), steps=steps, **said)

    def build(self) -> tuple[Network, Bound]:
        """The network with its meaning, and what may remain of its norms."""
        net = Network(self.dtype, self.opset, self.seed, self.dynamic, self.special)
        v, links = net.input("x", self.shape), []
        for kind, said in self.steps:
            v, made = STEPS[kind](net, v, **said)
            links += made
        if v in net.inputs or v in net.constants:
            raise Inapplicable("nothing is computed")
        net.also(v)
        return net, bound(links)


# --- drawing ----------------------------------------------------------------------------------------------------------


def numbered(seed: int) -> Case:
    """Case number `seed`."""
    return drawn(Random(seed))


def drawn(rng: Random) -> Case:
    """A case that can be built."""
    while True:
        case = attempt(rng)
        try:
            case.build()
        except Inapplicable:
            continue
        return case


def attempt(rng: Random) -> Case:
    rank = rng.choice((1, 2, 2, 2, 3))
    is_flat = rng.random() < 0.2
    largest = {1: 12, 2: 8, 3: 5}[rank]
    shape = (rng.randint(1, 3), rng.choice((1, 2, 3, 4, 6)), *(rng.randint(3, largest) for _ in range(rank)))
    steps: list[Said] = []
    if is_flat:
        shape = shape[:2] if rng.random() < 0.6 else shape[:3]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        steps += block(rng, is_flat, len(shape))
    if not any(kind == "norm" for kind, _ in steps):
        steps.append(norm(rng, is_flat))
    if rng.random() < 0.15:
        steps.insert(rng.randrange(len(steps)), (rng.choice(("output", "reader", "training", "instance")), {}))
    if rng.random() < 0.4:
        steps.append(("activation", {"which": "Relu"}))
    dtype = rng.choice(("float32",) * 8 + ("float16", "float64"))
    opset = rng.choice((9, 11, 13, 14, 15, 17, 17, 18, 19, 21))
    return Case(rng.randrange(2**31), shape, tuple(steps), dtype, opset, rng.choice(("", "", "", "", "batch", "all")))


def block(rng: Random, is_flat: bool, rank: int) -> Iterator[Said]:
    """A linear op with norms on either side, and things between."""
    if rng.random() < 0.35:
        yield from norms(rng, is_flat)
        yield from between(rng)
    if is_flat:
        yield from product(rng, rank)
    elif rng.random() < 0.15:
        yield from ((("pool", {"which": "GlobalAveragePool", "padded": False}),) if rng.random() < 0.5 else ())
        yield ("flatten", {})
        yield ("gemm", gemm(rng))
    else:
        yield (rng.choice(("convolve", "transposed")), windowed(rng))
    if rng.random() < 0.65:
        yield from between(rng)
        yield from norms(rng, is_flat)


def norms(rng: Random, is_flat: bool) -> list[Said]:
    return [norm(rng, is_flat) for _ in range(rng.choice((1, 1, 1, 1, 2, 3)))]


def norm(rng: Random, is_flat: bool) -> Said:
    return "norm", {
        "form": rng.choice(("batch_norm",) * 4 + tuple(FORMS)),
        "spread": rng.choice(("full", "trailing", "trailing", "scalar")),
        "scale": rng.choice(("any",) * 5 + SCALES),
        "shifts": rng.random() < 0.85,
        "axis": -1 if is_flat and rng.random() < 0.5 else 1,
        "epsilon": rng.choice((1e-5, 1e-3, 1e-3, 1e-12)),
        "shares": rng.random() < 0.1,
    }


def product(rng: Random, rank: int) -> Iterator[Said]:
    if rank == 2 and rng.random() < 0.6:
        yield ("gemm", gemm(rng))
    else:
        left = rank == 3 and rng.random() < 0.4
        yield ("matmul", {"left": left, "m": rng.randint(1, 5), "how": how(rng)})


def gemm(rng: Random) -> dict[str, Any]:
    return {
        "m": rng.randint(1, 5),
        "alpha": rng.choice((1.0, 1.0, 0.5, -2.0)),
        "beta": rng.choice((1.0, 1.0, 0.5, 0.0)),
        "transA": rng.random() < 0.1,
        "transB": rng.random() < 0.5,
        "c": rng.choice(("", "row", "row", "matrix", "column", "scalar", "full")),
        "how": how(rng),
    }


def windowed(rng: Random) -> dict[str, Any]:
    return {
        "m": rng.randint(1, 4),
        "groups": rng.choice(("one", "one", "each", "some")),
        "kernel": [rng.randint(1, 3) for _ in range(3)],
        "strides": [rng.choice((1, 1, 2, 3)) for _ in range(3)],
        "dilations": [rng.choice((1, 1, 2, 3)) for _ in range(3)],
        "pads": [rng.randint(0, 2) for _ in range(6)] if rng.random() < 0.6 else [0] * 6,
        "auto_pad": rng.choice(("",) * 9 + ("SAME_UPPER", "SAME_LOWER")),
        "extra": [rng.randint(0, 2) for _ in range(3)],
        "bias": rng.random() < 0.5,
        "how": how(rng),
    }


def how(rng: Random) -> str:
    return rng.choice(("constant",) * 12 + ("shared", "shared", "input"))


def between(rng: Random) -> list[Said]:
    return [_between(rng) for _ in range(rng.choice((0, 0, 0, 1, 1, 2)))]


def _between(rng: Random) -> Said:
    flag = rng.random() < 0.5
    other = rng.choice(("conv", "conv", "constant", "activation"))
    pads = [rng.randint(0, 2) for _ in range(6)]
    return rng.choice(
        [
            ("activation", {"which": rng.choice(("Relu", "Relu", "LeakyRelu", "Sigmoid"))}),
            ("identity", {}),
            ("output", {}),
            (rng.choice(("reader", "twice")), {}),
            ("crop", {"channels": flag, "start": rng.randint(0, 1), "stride": rng.choice((1, 1, 2))}),
            ("crop", {"channels": not flag, "start": rng.randint(0, 1), "stride": rng.choice((1, 1, 2))}),
            ("pad", {"mode": rng.choice(("edge", "reflect")), "pads": pads, "value": 0.0}),
            ("pad", {"mode": "constant", "pads": pads, "value": rng.choice((0.0, 0.0, 0.5))}),
            ("swap", {}),
            ("merge", {}),
            ("pool", {"which": rng.choice(("GlobalAveragePool", "ReduceMean", "MaxPool")), "padded": flag}),
            ("pool", {"which": rng.choice(("AveragePool", "counted")), "padded": flag}),
            ("join", {"other": other, "axis": rng.choice((1, 1, 2)), "first": flag}),
            ("plus", {"other": other, "op": rng.choice(("Add", "Add", "Sub", "Sum"))}),
            ("upsample", {}),
            parted(rng),
            joined(rng),
            joined(rng),
        ]
    )


def parted(rng: Random) -> Said:
    said = {"index": rng.randint(0, 1), "by": rng.choice(WAYS), "other": rng.choice(("Relu", "output", "conv", "conv"))}
    return "part", {**said, "uneven": rng.random() < 0.5}


def joined(rng: Random) -> Said:
    branches = [rng.choice(BRANCHES) for _ in range(rng.choice((2, 2, 3)))]
    join = rng.choice(("Concat", "Concat", "Add", "Sub"))
    said = {"by": rng.choice(WAYS), "branches": branches, "uneven": rng.random() < 0.5, "join": join}
    return "apart", {**said, "turned": rng.random() < 0.5}


WAYS = ("split", "slices")

# --- making smaller ---------------------------------------------------------------------------------------------------

PLAIN: dict[str, Any] = {
    "groups": "one", "strides": [1] * 3, "dilations": [1] * 3, "pads": [0] * 6, "auto_pad": "", "extra": [0] * 3,
    "bias": False, "how": "constant", "kernel": [1] * 3, "m": 1, "alpha": 1.0, "beta": 1.0, "transA": False,
    "transB": False, "c": "", "spread": "full", "scale": "any", "shifts": False, "axis": 1, "epsilon": 1e-3,
    "form": "mul", "value": 0.0, "other": "conv", "op": "Add", "index": 0, "padded": False, "stride": 1, "start": 0,
    "shares": False, "by": "split", "uneven": False, "join": "Concat", "turned": False,
}  # fmt: skip


def smaller(case: Case) -> Iterator[Case]:
    """Cases that say less."""
    for i in range(len(case.steps)):
        yield replace(case, steps=case.steps[:i] + case.steps[i + 1 :])
    for name, plain in (("dynamic", ""), ("dtype", "float32"), ("opset", 17)):
        if getattr(case, name) != plain:
            yield replace(case, **{name: plain})
    for a, extent in enumerate(case.shape):
        if extent > 1:
            yield replace(case, shape=case.shape[:a] + (extent - 1,) + case.shape[a + 1 :])
    for i, (kind, said) in enumerate(case.steps):
        for name, value in said.items():
            if name in PLAIN and value != PLAIN[name]:
                plain = (kind, {**said, name: PLAIN[name]})
                yield replace(case, steps=case.steps[:i] + (plain,) + case.steps[i + 1 :])
        for j, way in enumerate(said.get("branches", ())):
            rest = [*said["branches"][:j], *["straight"] * (way != "straight"), *said["branches"][j + 1 :]]
            yield replace(case, steps=case.steps[:i] + ((kind, {**said, "branches": rest}),) + case.steps[i + 1 :])


def smallest(case: Case, fails: Callable[[Case], bool]) -> Case:
    """A case that still fails, while none that says one thing less does."""
    while True:
        for candidate in smaller(case):
            try:
                found = fails(candidate)
            except Inapplicable:
                continue
            if found:
                case = candidate
                break
        else:
            return case

"""Models that ask for very much in few bytes, drawn at random: what becomes of them in a process with little memory."""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from tests.stress.attack import attack

import renorm
from renorm.core.dims import static
from renorm.errors import InternalError, RenormError

MEMORY = 3 << 30  # bytes of addresses beyond those that the process has already
SECONDS = 40  # of computing

Rng = np.random.Generator
HUGE = [0, 1, 2, 3, 7, 64, 1000, 2**16, 10**6, 2**24 + 1, 2**31 - 1, 2**31, 2**32, 2**40, 2**53 + 1, 2**62, 2**63 - 1]


class Drawn:
    """A model on its way. x: the value that the next node reads."""

    def __init__(self, rng: Rng):
        self.rng, self.nodes, self.constants, self.count = rng, list[Any](), list[Any](), 0
        self.x = "x"

    def huge(self, low: int = 0) -> int:
        """A number that is often far too large."""
        return max(low, int(self.rng.choice(np.array(HUGE, object))) + int(self.rng.integers(-1, 2)))

    def constant(self, array: Any) -> str:
        self.count += 1
        self.constants.append(numpy_helper.from_array(np.asarray(array), f"c{self.count}"))
        return f"c{self.count}"

    def node(self, op: str, *inputs: str, domain: str = "", **attributes: Any) -> None:
        self.count += 1
        made = f"v{self.count}"
        self.nodes.append(helper.make_node(op, inputs, [made], domain=domain, **attributes))
        self.x = made

    def integers(self, n: int, low: int = 0) -> list[int]:
        return [min(self.huge(low), 2**63 - 1) for _ in range(n)]


def _moves(d: Drawn) -> None:
    kind = d.rng.choice(["Tile", "Expand", "Pad", "Resize", "Reshape", "Slice", "Concat", "Gather", "Transpose"])
    rank = int(d.rng.integers(1, 5))
    match kind:
        case "Tile" | "Expand" | "Reshape":
            d.node(kind, d.x, d.constant(np.array(d.integers(rank, -1), np.int64)))
        case "Pad":
            mode = str(d.rng.choice(["constant", "edge", "reflect"]))
            d.node(kind, d.x, d.constant(np.array(d.integers(2 * rank, -2), np.int64)), mode=mode)
        case "Resize":
            mode = str(d.rng.choice(["nearest", "linear", "cubic"]))
            scales = d.rng.choice([1, 2, 1e3, 1e9, 1e30, np.nan, -1], rank).astype(np.float32)
            d.node(kind, d.x, "", d.constant(scales), mode=mode)
        case "Slice":
            d.node(kind, d.x, *(d.constant(np.array(d.integers(1, -(2**40)), np.int64)) for _ in range(2)))
        case "Concat":
            d.node(kind, *[d.x] * int(d.rng.choice([1, 2, 50, 400])), axis=int(d.rng.integers(-2, 3)))
        case "Gather":
            d.node(kind, d.x, d.constant(np.array(d.integers(3, -3), np.int64)), axis=0)
        case _:
            d.node(kind, d.x)


def _computes(d: Drawn) -> None:
    kind = d.rng.choice(["LRN", "MaxPool", "AveragePool", "Conv", "CumSum", "ReduceSum", "LpPool", "Softmax", "MatMul"])
    rank = int(d.rng.integers(1, 4))
    sizes = {"kernel_shape": d.integers(rank, 1), "strides": d.integers(rank, 1), "pads": d.integers(2 * rank)}
    kept: dict[str, Any] = {k: v for k, v in sizes.items() if k == "kernel_shape" or d.rng.random() < 0.5}
    match kind:
        case "LRN":
            d.node(kind, d.x, size=min(d.huge(1), 2**63 - 1))
        case "MaxPool" | "AveragePool" | "LpPool":
            d.node(kind, d.x, **kept)
        case "Conv":
            w = d.constant(d.rng.normal(size=[4, 4, *[3] * rank]).astype(np.float32))
            d.node(kind, d.x, w, dilations=d.integers(rank, 1), pads=d.integers(2 * rank))
        case "CumSum":
            d.node(kind, d.x, d.constant(np.int64(0)))
        case "MatMul":
            d.node(kind, d.x, d.x)
        case _:
            d.node(kind, d.x)


def _makes(d: Drawn) -> None:
    """A tensor out of numbers, beside what there is."""
    before = d.x
    match d.rng.choice(["ConstantOfShape", "Range", "OneHot", "EyeLike", "chain"]):
        case "ConstantOfShape":
            d.node("ConstantOfShape", d.constant(np.array(d.integers(int(d.rng.integers(0, 4))), np.int64)))
        case "Range":
            d.node("Range", *(d.constant(np.int64(n)) for n in d.integers(3, -(2**62))))
            d.node("Cast", d.x, to=1)
        case "OneHot":
            ids = d.constant(np.array([1, 2], np.int64))
            d.node("OneHot", ids, d.constant(np.int64(d.integers(1)[0])), d.constant(np.array([0, 1], np.float32)))
        case "EyeLike":
            d.node("EyeLike", d.x)
        case _:  # constants that double
            d.x = d.constant(np.array([1, 2], np.float32))
            for _ in range(int(d.rng.integers(1, 60))):
                d.node("Concat", d.x, d.x, axis=0)
    d.node(str(d.rng.choice(["Add", "Mul", "Max"])), d.x, before)


def _repeats(d: Drawn) -> None:
    """Very many nodes in a row."""
    ops = d.rng.choice(["Relu", "Sigmoid", "Neg", "HardSwish", "Mish", "Softplus", "Identity", "Add"], 3)
    for i in range(int(d.rng.choice([3, 30, 300]))):
        op = str(ops[i % 3])
        d.node(op, *[d.x] * (2 if op == "Add" else 1))


def _branches(d: Drawn) -> None:
    condition = d.constant(np.array([bool(d.rng.random() < 0.5)]))
    result, other = helper.make_tensor_value_info("r", 1, None), helper.make_node("Neg", [d.x], ["r"])
    inner = other
    for _ in range(int(d.rng.choice([1, 5, 20, 28]))):  # protobuf's own limit is 33
        sides: dict[str, Any] = {
            f"{side}_branch": helper.make_graph([n], side, [], [result])
            for side, n in (("then", inner), ("else", other))
        }
        inner = helper.make_node("If", [condition], ["r"], **sides)
    inner.output[0] = f"b{d.count}"
    d.nodes.append(inner)
    d.x = f"b{d.count}"


def _functions(d: Drawn) -> list[Any]:
    """Functions that call each other, now and then in a circle, and one call."""
    n, made = int(d.rng.choice([2, 10, 30, 300])), list[Any]()
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    for i in range(n):
        called = [f"f{int(d.rng.integers(max(0, i - 2), i + (d.rng.random() < 0.01)))}" if i else "" for _ in range(3)]
        body = [
            helper.make_node(c or "Neg", [f"a{k}"], [f"a{k + 1}"], domain="own" if c else "")
            for k, c in enumerate(called[: int(d.rng.integers(1, 4))])
        ]
        made.append(helper.make_function("own", f"f{i}", ["a0"], [f"a{len(body)}"], body, opsets))
    d.node(f"f{n - 1}", d.x, domain="own")
    return made


def _model(rng: Rng) -> bytes:
    d, functions = Drawn(rng), list[Any]()
    steps: list[Callable[[Drawn], None]] = [_moves, _moves, _computes, _computes, _makes, _repeats, _branches]
    for _ in range(int(rng.integers(1, 5))):
        if rng.random() < 0.1 and not functions:
            functions = _functions(d)
        else:
            steps[int(rng.integers(len(steps)))](d)
    rank = int(rng.integers(0, 5))
    shape = [int(n) if rng.random() < 0.8 else d.integers(1)[0] for n in rng.integers(1, 9, rank)]
    x, y = helper.make_tensor_value_info("x", 1, shape), helper.make_tensor_value_info(d.x, 1, None)
    graph = helper.make_graph(d.nodes, "hostile", [x], [y], d.constants)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=functions).SerializeToString()


def _refused_or_right(use: Callable[[], None]) -> None:
    """Asserts that `use` ends in a process of its own, in time, within memory, and with no errors but renorm's."""
    sys.stderr.flush()
    child = os.fork()
    if not child:
        try:
            held = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, held + MEMORY))
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))
            use()
        except RenormError as error:
            if isinstance(error, InternalError):
                traceback.print_exc()
                os._exit(1)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    since = time.monotonic()
    _, status, used = os.wait4(child, 0)
    ended = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    seconds = time.monotonic() - since
    assert ended == 0, f"it ended with {ended} after {seconds:.0f} s, {used.ru_maxrss >> 10} MB"


@attack(limit_s=300, in_gate=6)
def small_models_that_ask_for_much(seed: int) -> None:
    """A model of few bytes is refused or compiled in seconds, within 3 GB, and all errors are renorm's."""
    rng = np.random.default_rng(seed)
    file = _model(rng)
    level, verify = int(rng.integers(0, 4)), bool(rng.random() < 0.2)

    def use() -> None:
        m = renorm.compile(
            file, opt_level=level, verify=verify, threads=1, limits=renorm.Limits(bytes=1 << 28, operations=1 << 34)
        )
        m.run(*(np.ones(static(v.shape), v.dtype) for v in m.inputs))

    _refused_or_right(use)


@attack(limit_s=120, in_gate=2)
def files_that_are_none(seed: int) -> None:
    """Pipes, devices, directories and holes in the place of a model, or of its data, are refused at once."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        data = onnx.helper.make_tensor("w", 1, [1000], np.ones(1000, np.float32).tobytes(), raw=True)
        x = helper.make_tensor_value_info("x", 1, [1000])
        y = helper.make_tensor_value_info("y", 1, [1000])
        graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [data])
        path = Path(folder, f"m{rng.choice(['.onnx', '.tflite', '.circle'])}")
        onnx.save(
            helper.make_model(graph, ir_version=9),
            folder + "/m.onnx",
            save_as_external_data=True,
            location="w",
            size_threshold=0,
        )
        victim = Path(folder, "w") if rng.random() < 0.5 and path.suffix == ".onnx" else path
        victim.unlink(missing_ok=True)
        match int(rng.integers(6)):
            case 0:
                os.mkfifo(victim)
            case 1:
                victim.symlink_to(str(rng.choice(["/dev/zero", "/dev/full", "/dev/null", "/dev/random"])))
            case 2:
                victim.mkdir()
            case 3:
                victim.symlink_to(victim)
            case 4:
                victim.touch()
                os.truncate(victim, int(rng.choice([0, 5, 1 << 33, 1 << 40])))
            case _:
                os.link(__file__, victim) if os.stat(__file__).st_dev == os.stat(folder).st_dev else victim.touch()
        _refused_or_right(lambda: renorm.read(path) and None)

"""What one rank of several does wrong, and what all of them must then say: in threads, and in processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from tests.training.splits import EPSILON, Batch, drawn

from renorm import training
from renorm.errors import RenormError
from renorm.training.communicators import Communicator

WRONG = 1  # the rank


class Fault(NamedTuple):
    """do: what rank WRONG does instead of `program`; said: what is in the errors of the others. own: the wrong rank
    raises an error of its own."""

    do: Callable[[Communicator, Batch], Any]
    said: tuple[str, ...]
    own: bool = False


def batch(rank: int) -> Batch:
    return drawn(21, (6, 3, 5), 2.0).part(2 * rank, 2 * rank + 2)


def forward(comm: Communicator, b: Batch, name: str, **changed: Any) -> training.BatchNorm:
    given: dict[str, Any] = {
        "running_mean": b.running_mean,
        "running_var": b.running_var,
        "momentum": 0.3,
        "epsilon": EPSILON,
    }
    given |= {"x": b.x, "scale": b.scale, "bias": b.bias} | changed
    return training.batch_norm(given.pop("x"), comm=comm.named(name), **given)


def backward(comm: Communicator, b: Batch, name: str, r: training.BatchNorm, **changed: Any) -> Any:
    given = {"dy": b.dy, "x": b.x} | changed
    saved = r.saved_mean, r.saved_invstd
    return training.batch_norm_backward(given.pop("dy"), given.pop("x"), b.scale, *saved, comm=comm.named(name))


def program(comm: Communicator, b: Batch, **changed: Any) -> None:
    """Forward and backward of two layers, alike but for their names."""
    with comm.guard("training"):
        results = [forward(comm, b, name, **changed) for name in ("bn1", "bn2")]
        for name, r in zip(("bn2", "bn1"), results[::-1]):
            backward(comm, b, name, r)


def other_order(comm: Communicator, b: Batch) -> None:
    for name in ("bn2", "bn1"):
        forward(comm, b, name)


def evaluates(comm: Communicator, b: Batch) -> None:
    training.batch_norm_inference(b.x, b.scale, b.bias, b.running_mean, b.running_var, epsilon=EPSILON)
    forward(comm, b, "bn2")


def other_order_backward(comm: Communicator, b: Batch) -> None:
    results = [forward(comm, b, name) for name in ("bn1", "bn2")]
    for name, r in zip(("bn1", "bn2"), results):
        backward(comm, b, name, r)


def raises_between(comm: Communicator, b: Batch) -> None:
    with comm.guard("training"):
        forward(comm, b, "bn1")
        raise KeyError("user code")


def wrong_gradient(comm: Communicator, b: Batch) -> None:
    results = [forward(comm, b, name) for name in ("bn1", "bn2")]
    backward(comm, b, "bn2", results[1], dy=b.dy[:, :2].copy())


def with_(**changed: Any) -> Callable[[Communicator, Batch], None]:
    return lambda comm, b: program(comm, b, **changed)


def four_channels(comm: Communicator, b: Batch) -> None:
    other = drawn(22, (2, 4, 5), 1.0)
    forward(comm, other, "bn1")


def in_float64(comm: Communicator, b: Batch) -> None:
    program(comm, b, x=b.x.astype(np.float64))


def in_float16(comm: Communicator, b: Batch) -> None:
    program(comm, b, x=b.x.astype(np.float16))


FAILED = f"rank {WRONG} failed"
ALIKE = "batch_norm forward as torch (epsilon 1e-05, momentum 0.3), 3 channels of float32"
FAULTS = {
    "layers in another order": Fault(other_order, (f"'bn1: {ALIKE}'", f"'bn2: {ALIKE}'")),
    "a layer is skipped": Fault(lambda comm, b: forward(comm, b, "bn2"), (f"'bn1: {ALIKE}'", f"'bn2: {ALIKE}'")),
    "evaluation": Fault(evaluates, (f"'bn1: {ALIKE}'", f"'bn2: {ALIKE}'")),
    "another order backward": Fault(other_order_backward, ("'bn2: batch_norm backward", "'bn1: batch_norm backward")),
    "momentum": Fault(with_(momentum=0.31), ("momentum 0.3)", "momentum 0.31)")),
    "epsilon": Fault(with_(epsilon=2e-5), ("epsilon 1e-05", "epsilon 2e-05")),
    "convention": Fault(with_(convention="onnx"), ("as torch", "as onnx")),
    "no running statistics": Fault(
        with_(running_mean=None, running_var=None), (f"'bn1: {ALIKE}'", "(epsilon 1e-05), 3 channels")
    ),
    "channels": Fault(four_channels, ("3 channels", "4 channels")),
    "float64": Fault(in_float64, ("channels of float32", "channels of float64")),
    "float16": Fault(in_float16, ("channels of float32", "channels of float16")),
    "axis": Fault(with_(axis=2), (FAILED, "scale has shape [3]", "(at 'bn1: batch_norm forward')"), True),
    "an operand": Fault(with_(scale=np.ones(7, np.float32)), (FAILED, "scale has shape [7]"), True),
    "no tensor": Fault(with_(x="text"), (FAILED, "InvalidInput: x is"), True),
    "a gradient": Fault(wrong_gradient, (FAILED, "dy is float32[2, 2, 5]"), True),
    "code between layers": Fault(raises_between, (FAILED, "KeyError: 'user code' (at 'training')"), True),
}  # fmt: skip


def outcome(comm: Communicator, fault: Fault) -> str:
    """What this rank raised; the ranks meet again afterwards."""
    b = batch(comm.rank)
    before = b.running_mean.copy(), b.running_var.copy()
    try:
        (fault.do if comm.rank == WRONG else program)(comm, b)
        said = ""
    except (RenormError, KeyError) as error:
        said = f"{type(error).__name__}: {error}"
    comm.gather("after", np.zeros(1))
    assert np.array_equal(before, (b.running_mean, b.running_var))
    return said


def check(fault: Fault, said: list[str]) -> None:
    for rank, text in enumerate(said):
        if rank == WRONG and fault.own:
            assert not text.startswith("SynchronizationError")
            continue
        assert text.startswith("SynchronizationError: ")
        assert all(words in text for words in fault.said), text
        assert fault.own or text == said[0]

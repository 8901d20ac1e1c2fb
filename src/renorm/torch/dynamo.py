"""torch.compile(model, backend="renorm"): what Dynamo captures, as AOTAutograd makes ATen calls of it.

Without gradients each graph is cut in parts that renorm reads, as few and as large as they can be, and calls between
them, which stay PyTorch's. Parameters and buffers are constants of a part, seen where they lie, which folds and packs
them; where one was written to since, its part is compiled again, and where that happens again, it becomes an input.
With gradients all calls stay PyTorch's. The logger "renorm.torch" says what became of each graph.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from renorm.core.errors import RenormError
from renorm.driver.compile import compile
from renorm.frontends.torch.extents import Extents
from renorm.frontends.torch.reader import Reader, overload, stated
from renorm.torch.arrays import tensor_of

LOG = logging.getLogger("renorm.torch")
CHANGES = 1  # of a constant, until it becomes an input


def backend(graph: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Return what runs a graph of Dynamo's. options: those of renorm.compile, as torch.compile(options=) hands them."""
    chosen = dict(options.get("options") or {})
    kept = [x if isinstance(x, Tensor) and _is_kept(x) else None for x in example_inputs]

    def inference(calls: fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        is_all = len(kept) == sum(n.op == "placeholder" for n in calls.graph.nodes)
        return _parts(calls, kept if is_all else [None] * len(given), chosen)

    def as_it_is(calls: fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        LOG.info("a graph with gradients: %d calls stay PyTorch's", len(_calls(calls)))
        return _boxed(calls.forward)

    made = aot_autograd(fw_compiler=as_it_is, inference_compiler=inference, decompositions={})
    return made(graph, example_inputs)


def _is_kept(x: Tensor) -> bool:
    """Return whether a tensor is a parameter or a buffer, which every call is given again."""
    return isinstance(x, torch.nn.Parameter) or getattr(x, "_dynamo_static_input_type", None) is not None


def _calls(calls: fx.GraphModule) -> list[fx.Node]:
    return [n for n in calls.graph.nodes if n.op == "call_function"]


class _Supported(OperatorSupportBase):
    """Calls that give tensors, and that a reader takes."""

    def __init__(self, reader: Reader):
        self._reader = reader

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: fx.Node) -> bool:
        read = [node, *node.all_input_nodes] if overload(node) == "getitem" else [node]
        if node.op != "call_function" or any(n in self._reader.refused or n not in self._reader.made for n in read):
            return False
        held = node.meta.get("val")
        parts = held if isinstance(held, (list, tuple)) else [held]
        return any(isinstance(x, Tensor) and x.device.type == "cpu" for x in parts)


def _ranges(calls: fx.GraphModule) -> Mapping[Any, Any]:
    """Return between which numbers the extents of a graph's symbols lie."""
    for node in calls.graph.nodes:
        held = node.meta.get("val")
        for x in held.shape if isinstance(held, Tensor) else [held]:
            if isinstance(x, torch.SymInt):
                return x.node.shape_env.var_to_range
    return {}


def _parts(calls: fx.GraphModule, kept: Sequence[Tensor | None], options: Mapping[str, Any]) -> Callable[..., Any]:
    """Return what runs the calls of a graph. kept: parameters and buffers among its inputs."""
    extents = Extents(_ranges(calls))
    reader = Reader("graph", calls.graph, extents)
    inputs = [n for n in calls.graph.nodes if n.op == "placeholder"]
    for node in inputs:
        held = node.meta.get("val")
        reader.made[node] = extents.of(held) if isinstance(held, torch.SymInt) else None
        if isinstance(held, Tensor):
            reader.input(node)
    reader.probe()
    for node, why in reader.refused.items():
        LOG.info("%s stays PyTorch's: %s", stated(node), why)
    constants = {n.name: x for n, x in zip(inputs, kept) if x is not None}
    cut = CapabilityBasedPartitioner(calls, _Supported(reader), allows_single_node_partition=True).partition_and_fuse()
    parts = [n for n in cut.graph.nodes if n.op == "call_module"]
    for part in parts:
        names = [a.name if isinstance(a, fx.Node) else "" for a in part.args]
        own = getattr(cut, str(part.target))
        setattr(cut, str(part.target), _Part(own, [constants.get(n) for n in names], extents, options))
    LOG.info("%d of %d calls in %d parts", len(_calls(calls)) - len(_calls(cut)), len(_calls(calls)), len(parts))
    cut.recompile()
    return _boxed(cut.forward)


def _boxed(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return what takes a list, which it empties: AOTAutograd lets go of inputs so."""

    def call(given: list[Any]) -> Any:
        arguments = [*given]
        given.clear()
        return run(*arguments)

    vars(call)["_boxed_call"] = True  # as AOTAutograd asks it
    return call


class _Part(torch.nn.Module):
    """Calls that renorm compiles, when they are first run. kept: inputs that are constants, as long as nobody writes to
    them."""

    def __init__(
        self, calls: fx.GraphModule, kept: Sequence[Tensor | None], extents: Extents, options: Mapping[str, Any]
    ):
        super().__init__()
        self._calls, self._extents, self._options = calls, extents, options
        self._kept: list[Tensor | None] = [*kept]
        self._changes = [0] * len(kept)
        self._run: Callable[..., Any] | None = None
        self._seen: list[tuple[int, int] | None] = []

    def forward(self, *given: Any) -> Any:
        if self._run is None or self._versions(given) != self._seen:
            self._compile(given)
        assert self._run is not None
        return self._run(*given)

    def _versions(self, given: Sequence[Any]) -> list[tuple[int, int] | None]:
        return [None if k is None else _version(x) for x, k in zip(given, self._kept)]

    def _compile(self, given: Sequence[Any]) -> None:
        for i, (was, now) in enumerate(zip(self._seen, self._versions(given))):
            self._changes[i] += was != now
            if self._changes[i] > CHANGES:
                self._kept[i] = None
        if self._seen:
            often = sum(n > CHANGES for n in self._changes)
            LOG.info("parameters were written to: compiled anew, with %d of them as inputs from now on", often)
        self._kept = [None if k is None else x for k, x in zip(self._kept, given)]
        try:
            self._run = self._compiled()
        except RenormError as error:
            LOG.warning("%d calls stay PyTorch's: %s", len(_calls(self._calls)), error)
            self._kept, self._run = [None] * len(given), self._calls.forward
        self._seen = self._versions(given)

    def _compiled(self) -> Callable[..., Any]:
        reader = Reader("part", self._calls.graph, self._extents)
        nodes = [n for n in self._calls.graph.nodes if n.op == "placeholder"]
        live = list[int]()
        for i, (node, constant) in enumerate(zip(nodes, self._kept)):
            held = node.meta.get("val")
            if constant is not None:
                reader.constant(node, node.name, constant)
            elif isinstance(held, Tensor):
                live.append(i)
                reader.input(node)
            else:
                reader.made[node] = self._extents.of(held) if isinstance(held, (int, torch.SymInt)) else held
        (results,) = (n.args[0] for n in self._calls.graph.nodes if n.op == "output")
        is_one = isinstance(results, fx.Node)
        outputs = [results] if is_one else list(results)
        graph = reader.read(outputs)
        module = compile(graph, threads=torch.get_num_threads(), **self._options)
        wanted = [n.meta["val"] for n in outputs]

        def run(*given: Any) -> Any:
            made = module.run(*(_plain(given[i]) for i in live))
            found = [_laid_out(tensor_of(y), w) for y, w in zip(made, wanted)]
            return found[0] if is_one else tuple(found)

        return run


def _version(x: Tensor) -> tuple[int, int]:
    """Return what changes when somebody writes to a tensor. Those of inference_mode do not count."""
    return x.data_ptr(), 0 if x.is_inference() else x._version


def _plain(x: Tensor) -> Tensor:
    return x.detach().contiguous()


def _laid_out(y: Tensor, like: Any) -> Tensor:
    """Return a result in the order of axes that the graph says its memory has."""
    if y.dim() in (4, 5) and not like.is_contiguous() and all(isinstance(n, int) for n in like.shape):
        strides = [int(s) for s in like.stride()]
        return torch.empty_strided(tuple(y.shape), strides, dtype=y.dtype).copy_(y)
    return y

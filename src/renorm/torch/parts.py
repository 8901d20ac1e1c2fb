"""Parts of a graph of ATen calls: cut out, and what runs them.

A part with constants is compiled when it first runs: parameters and buffers of an inference graph, seen where they lie,
which renorm folds and packs, for each module that calls it; where one was written to since, the part is compiled again,
and where that happens again, it becomes an input.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.fx.passes.utils.fuser_utils import fuse_by_partitions

from renorm import targets
from renorm.core.dims import Sym, static, symbols_of
from renorm.core.errors import InvalidInput, RenormError, UnsupportedOp
from renorm.core.lru import Latest
from renorm.driver.module import SPECIALIZATIONS, SpecializingModule
from renorm.frontends.torch.extents import Extents
from renorm.frontends.torch.pairs import is_complex
from renorm.frontends.torch.reader import Reader, overload, stated
from renorm.runtime.module import Module
from renorm.torch import caching_allocator
from renorm.torch.arrays import CHANNELS_LAST, Order, dense_strides, tensor_of
from renorm.torch.calls import RECOMPUTED, axes_in_memory, is_view, results_of
from renorm.torch.compilations import AnyModule, Compilation, compilation
from renorm.torch.constants import LOG, ConstantSet, ConstantSets
from renorm.torch.gpus import gpu_of, is_on_host
from renorm.torch.kernels import run_at, run_on, team
from renorm.torch.pixels import of_pixels
from renorm.torch.regions import regions
from renorm.torch.slices_of_images import FOR_NORMS
from renorm.training.kernels import Gpu

LONG = 32  # elements: of fewer, products are a faster Fourier transform than PyTorch's
Layout = Callable[[Sequence[int]], Sequence[int]]  # strides of a shape


def calls_of(graph: fx.GraphModule) -> list[fx.Node]:
    return [n for n in graph.graph.nodes if n.op == "call_function"]


def _shared_results(calls: fx.GraphModule) -> set[fx.Node]:
    """Return the calls by which results lie in memory of an input, or of another result: who compiled the graph goes by
    their strides and offsets to make them again."""
    chains = defaultdict[fx.Node, list[list[fx.Node]]](list)
    for node in dict.fromkeys(calls.graph.output_node().all_input_nodes):
        chain = list[fx.Node]()
        while is_view(node):
            chain.append(node)
            node = node.all_input_nodes[0]
        chains[node].append(chain)
    shared = (found for root, found in chains.items() if root.op == "placeholder" or len(found) > 1)
    return {n for found in shared for chain in found for n in chain}


def _is_long_transform(node: fx.Node) -> bool:
    """Return whether a call transforms axes for which PyTorch has the faster algorithm."""
    if not overload(node).startswith("_fft_"):
        return False
    axes: Any = node.args[1]
    tensors = (*results_of(node.all_input_nodes[0]), *results_of(node))
    return not all(isinstance(n := x.shape[a], int) and n <= LONG for x in tensors for a in axes)


class _Supported(OperatorSupportBase):
    """Calls that give tensors, that a reader takes, and that are wanted. gpu: that holds all of them; None: the CPU.
    left: calls that are not."""

    def __init__(self, reader: Reader, wanted: Callable[[fx.Node], bool], gpu: Gpu | None, left: Set[fx.Node]):
        self._reader, self._wanted, self._gpu, self._left = reader, wanted, gpu, left

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: fx.Node) -> bool:
        whole = node.all_input_nodes[:1] if overload(node) == "getitem" else []
        read = [node, *whole]
        if node.op != "call_function" or any(n in self._reader.refused or n not in self._reader.made for n in read):
            return False
        if node in self._left:
            return False
        if not self._wanted(whole[0] if whole else node):
            return False
        made, *given = ([x for x in results_of(n) if isinstance(x, Tensor)] for n in (node, *node.all_input_nodes))
        return bool(made) and all(self._is_there(x) for tensors in (made, *given) for x in tensors)

    def _is_there(self, x: Tensor) -> bool:
        return is_on_host(x) if self._gpu is None else gpu_of(x) == self._gpu


def _gpu(calls: fx.GraphModule) -> Gpu | None:
    """Return the GPU that holds the first result that one holds."""
    results = (x for n in calls_of(calls) for x in results_of(n) if isinstance(x, Tensor))
    return next((gpu for x in results if (gpu := gpu_of(x)) is not None), None)


def _options(options: Mapping[str, Any], gpu: Gpu | None) -> dict[str, Any] | None:
    """Return what parts are compiled with where a GPU holds what they read, or the CPU; None for a target of the
    caller's that does not run there."""
    own, there = f"cuda -arch={gpu.arch}" if gpu else "llvm", {"device": gpu.index} if gpu else {}
    found: dict[str, Any] = {"target": own, **options, **there}
    machine = targets.find(found["target"]).machine_target
    return found if machine.is_gpu == (gpu is not None) and (gpu is None or machine.arch == gpu.arch) else None


def _attributes(calls: fx.GraphModule) -> list[fx.Node]:
    """Return the nodes of constants and bodies of a graph, one for each call that reads one: a part holds both."""
    for node in [n for n in calls.graph.nodes if n.op == "get_attr"]:
        for user in [*node.users][1:]:
            with calls.graph.inserting_before(user):
                user.replace_input_with(node, calls.graph.node_copy(node))
    return [n for n in calls.graph.nodes if n.op == "get_attr"]


def _ranges(calls: fx.GraphModule) -> Mapping[Any, Any]:
    """Return between which numbers the extents of a graph's symbols lie."""
    for node in calls.graph.nodes:
        held = node.meta.get("val")
        for x in held.shape if isinstance(held, Tensor) else [held]:
            if isinstance(x, torch.SymInt):
                return x.node.shape_env.var_to_range
    return {}


def cut(
    calls: fx.GraphModule,
    kept: Sequence[Tensor | None],
    options: Mapping[str, Any],
    wanted: Callable[[fx.Node], bool] = lambda node: True,
    is_worth: Callable[[Sequence[fx.Node]], bool] | None = None,
    is_single: Callable[[fx.Node], bool] = lambda node: False,
) -> tuple[fx.GraphModule, list[Part]]:
    """Return the graph with parts of it as modules that renorm runs, and these.

    kept: parameters and buffers among the inputs. wanted: which calls may be in a part. is_worth: whether a region is a
    part; by default parts are the largest that can be cut out, whether or not their calls depend on each other.
    is_single: of which calls a region has one at most."""
    extents = Extents(_ranges(calls), may_count=False)  # results are as long as inputs tell
    reader = Reader("graph", calls.graph, extents)
    inputs = [n for n in calls.graph.nodes if n.op == "placeholder"]
    for node in inputs:
        held = node.meta.get("val")
        if isinstance(held, torch.SymInt):
            with suppress(UnsupportedOp):  # data decide it: who reads it stays PyTorch's
                reader.made[node] = extents.of(held)
        elif isinstance(held, Tensor):
            reader.input(node)
        else:
            reader.made[node] = None
    for node in _attributes(calls):
        reader.attribute(node, getattr(calls, str(node.target)))
    reader.probe(wanted)
    for node, why in reader.refused.items():
        LOG.log(logging.INFO if wanted(node) else logging.DEBUG, "%s stays PyTorch's: %s", stated(node), why)
    constants = {n.name for n, x in zip(inputs, kept) if x is not None}
    gpu = _gpu(calls)
    if (found := _options(options, gpu)) is None:
        place = f"a GPU of {gpu.arch}" if gpu else "the CPU, or where renorm runs nothing"
        LOG.warning("%d calls stay PyTorch's: target %r, tensors on %s", len(calls_of(calls)), options["target"], place)
        return calls, []
    left = _shared_results(calls).union(filter(_is_long_transform, calls_of(calls)))
    options, supported = found, _Supported(reader, wanted, gpu, left)
    if is_worth is None:
        partitioner = CapabilityBasedPartitioner(calls, supported, allows_single_node_partition=True)
        members = [[*p.nodes] for p in partitioner.propose_partitions()]
    else:
        found = regions(calls, lambda n: supported.is_node_supported({}, n), is_single, lambda n: FOR_NORMS in n.meta)
        members = [r for r in found if is_worth(r)]
    attributes = ([a for n in nodes for a in n.all_input_nodes if a.op == "get_attr"] for nodes in members)
    made = fuse_by_partitions(calls, [dict.fromkeys([*own, *nodes]) for own, nodes in zip(attributes, members)])
    (end,) = (n for n in made.graph.nodes if n.op == "output")
    for node in [*made.graph.nodes]:
        if overload(node) == "copy_.default":
            end.prepend(node)  # inputs that are updated, after all that reads them
        if overload(node) == "view.default":  # PyTorch's kernels may give another order of axes than it states
            node.target = torch.ops.aten.reshape.default
    parts = [n for n in made.graph.nodes if n.op == "call_module"]
    for part in parts:
        names = [a.name if isinstance(a, fx.Node) else "" for a in part.args]
        own = getattr(made, str(part.target))
        runs_alone = len(parts) == 1 and all(map(is_view, calls_of(made)))
        which = [i for i, name in enumerate(names) if name in constants]
        setattr(made, str(part.target), Part(own, which, extents, options, gpu, runs_alone))
    made.recompile()
    return made, [getattr(made, str(part.target)) for part in parts]


class Part(torch.nn.Module):
    """Calls that renorm compiles. which: of its inputs that are constants, as long as nobody writes to them. gpu: that
    runs it. runs_alone: no call of PyTorch's stands beside it. fewer_bytes: how many its kernels move less than
    PyTorch's calls would, one by one; of fixed extents."""

    def __init__(
        self,
        calls: fx.GraphModule,
        which: Sequence[int],
        extents: Extents,
        options: Mapping[str, Any],
        gpu: Gpu | None,
        runs_alone: bool,
    ):
        super().__init__()
        self._calls, self._extents, self._options, self._runs_alone = calls, extents, options, runs_alone
        self._gpu = gpu
        self._constants = ConstantSets(which)
        self.fewer_bytes = 0
        self._read: _Read | None = None
        if not which:  # nothing has to be seen of the arguments
            try:
                self._read = self._reading({})
            except RenormError as error:
                self._leave(error)

    @property
    def calls(self) -> list[fx.Node]:
        return calls_of(self._calls)

    def wait(self) -> None:
        """Wait until it is compiled, where no argument has to be seen for that."""
        if not self._constants.which and not len(self._constants):
            self._compiled([])

    def forward(self, *given: Any) -> Any:
        own = self._constants.find(given) or self._compiled(given)
        own.calls += 1
        try:
            return own.run(*given)
        except InvalidInput as error:  # what extents are was not understood
            return self._leave(error).run(*given)

    def _compiled(self, given: Sequence[Any]) -> ConstantSet:
        """Return the set of constants among what is given, compiled."""
        changes = self._constants.begin(given)
        try:
            run = self._run({i: given[i] for i in self._constants.which})
        except RenormError as error:  # it turns out to be impossible
            return self._leave(error)
        return self._constants.add(given, run, changes)

    def _leave(self, why: RenormError) -> ConstantSet:
        """Have PyTorch's calls run from now on; return what does."""
        LOG.warning("%d calls stay PyTorch's: %s", len(self.calls), why)
        self._constants = ConstantSets([])
        return self._constants.add([], self._calls.forward, [])

    def _run(self, constants: Mapping[int, Tensor]) -> Callable[..., Any]:
        """Compile the calls; return what runs them."""
        read, self._read = self._read or self._reading(constants), None
        self._compilation = read.compilation  # which equal parts ask for
        module = read.compilation.module()
        moved = [k.work.bytes for k in module.report.kernels] if isinstance(module, Module) else [None]
        numbers = [n for n in moved if isinstance(n, int)]
        if len(numbers) == len(moved):
            self.fewer_bytes = _bytes_of(self.calls) - sum(numbers)
        run = _by_shape(module, read, self._gpu, self._calls.forward) if self._gpu else None
        run = run or _in_place(module, read, self._gpu) or _in_arrays(module, read, self._gpu)
        return (lambda *given: run(given)[0]) if read.is_one else (lambda *given: tuple(run(given)))

    def _reading(self, constants: Mapping[int, Tensor]) -> _Read:
        """Read the calls. constants: which of the inputs they are."""
        calls = None if constants else of_pixels(self._calls.graph)
        is_of_pixels, calls = calls is not None, calls or self._calls.graph
        nodes = [n for n in calls.nodes if n.op == "placeholder"]
        inputs = [n.meta.get("val") for i, n in enumerate(nodes) if i not in constants]
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        reader = Reader("part", calls, self._extents.of_inputs(x.shape for x in tensors))
        live = list[int]()
        for i, node in enumerate(nodes):
            held = node.meta.get("val")
            if i in constants:
                reader.constant(node, node.name, constants[i])
            elif isinstance(held, Tensor):
                live.append(i)
                reader.input(node)
            else:
                reader.made[node] = reader.extents.of(held) if isinstance(held, (int, torch.SymInt)) else held
        for node in (n for n in calls.nodes if n.op == "get_attr"):
            reader.attribute(node, getattr(self._calls, str(node.target)))
        decided = {s for v in reader.graph.inputs for d in v.shape if isinstance(d, Sym) for s in symbols_of(d)}
        told = [d for n in nodes if isinstance(d := reader.made.get(n), Sym) and not symbols_of(d) <= decided]
        outputs, is_one = _results(calls)
        wanted = [n.meta["val"] for n in _results(self._calls.graph)[0]]
        graph = reader.read(outputs)
        if told := told or sorted(reader.extents.unknown((v.shape for v in graph.values()), decided)):
            raise UnsupportedOp(f"they are told {', '.join(map(str, told))}, which no tensor that they read has")
        threads = None if self._gpu else torch.get_num_threads() if self._runs_alone else team()
        made = compilation(graph, self._options, threads, bool(constants))
        return _Read(made, live, wanted, [*map(_layout, wanted)], is_one, is_of_pixels)


def _results(calls: fx.Graph) -> tuple[list[fx.Node], bool]:
    """Return the results of a graph, and whether it gives one, and no tuple."""
    results: Any = calls.output_node().args[0]
    return ([results], True) if isinstance(results, fx.Node) else (list(results), False)


def _bytes_of(calls: Sequence[fx.Node]) -> int:
    """Return how many bytes calls read and write that run one by one, each tensor once; none of open extents, and none
    where a call makes no new memory, or PyTorch would not make it."""

    def of(x: Any) -> int:
        numbers = [n for n in x.shape if isinstance(n, int)] if isinstance(x, Tensor) else []
        return prod(numbers) * x.element_size() if isinstance(x, Tensor) and len(numbers) == x.dim() else 0

    def moves(node: fx.Node) -> bool:
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or RECOMPUTED in node.meta:
            return False
        return not any(r.alias_info for r in target._schema.returns)

    read = sum(of(x) for n in calls if moves(n) for given in n.all_input_nodes for x in results_of(given))
    return read + sum(of(x) for n in calls if moves(n) for x in results_of(n))


@dataclass(frozen=True)
class _Read:
    """A part as it was read. live: which of its inputs are no constants. wanted: what PyTorch says of its results.
    layouts: of these in memory. is_of_pixels: its images are read and given as rows of pixels."""

    compilation: Compilation
    live: Sequence[int]
    wanted: Sequence[Any]
    layouts: Sequence[Layout]
    is_one: bool
    is_of_pixels: bool


def _in_place(module: AnyModule, read: _Read, gpu: Gpu | None) -> Callable[[Sequence[Tensor]], list[Tensor]] | None:
    """Return what runs a module of fixed extents on the memory of tensors; None for one whose extents are open."""
    if not isinstance(module, Module) or module.program.counts:  # whose steps wait for what data say
        return None
    shapes = [spec.shape for spec in (*module.inputs, *module.outputs)]
    if not all(isinstance(n, int) and n > 0 for shape in shapes for n in shape):
        return None
    orders = CHANNELS_LAST if read.is_of_pixels else {}
    made = list[tuple[Any, ...]]()
    for spec, w in zip(module.outputs, read.wanted):  # pixels are rows of the module's; open extents are known by now
        shape = w.shape if all(isinstance(n, int) for n in w.shape) else static(spec.shape)[: w.dim()]
        made.append((shape, Order(-1 if w.dim() in orders else 1).strides(shape), w.dtype, w.device))
    stated = [layout(shape) for (shape, *_), layout in zip(made, read.layouts)]
    other = [not _is_alike(shape, strides, s) for (shape, strides, *_), s in zip(made, stated)]
    takes = [(i, getattr(torch, spec.dtype)) for i, spec in zip(read.live, module.inputs)]

    def run(given: Sequence[Tensor]) -> list[Tensor]:
        # statistics of norms that PyTorch computed may have another dtype than it states
        operands = [_dense(_parts(given[i]).to(dtype), orders) for i, dtype in takes]
        results = [caching_allocator.empty(*how) for how in made]
        run_at(module, [x.data_ptr() for x in (*operands, *results)], gpu)
        return [_copied(y, s) if o else y for y, s, o in zip(results, stated, other)]

    return run


def _by_shape(
    module: AnyModule, read: _Read, gpu: Gpu, otherwise: Callable[..., Any]
) -> Callable[[Sequence[Tensor]], list[Tensor]] | None:
    """Return what runs a module that is compiled for each combination of shapes; None for other modules. otherwise:
    what runs those that it cannot be compiled for."""
    if type(module) is not SpecializingModule:
        return None
    kept = Latest[Any, Callable[[Sequence[Tensor]], list[Tensor]]]("what runs a part at a shape", SPECIALIZATIONS)
    names = [spec.name for spec in module.inputs]

    def theirs(given: Sequence[Tensor]) -> list[Tensor]:
        found = otherwise(*given)
        return [found] if read.is_one else list(found)

    def made(shapes: Sequence[Any]) -> Callable[[Sequence[Tensor]], list[Tensor]]:
        try:
            fixed = module.specialized(**dict(zip(names, shapes)))
            return _in_place(fixed, read, gpu) or _in_arrays(fixed, read, gpu)
        except RenormError as error:
            LOG.warning("at shapes %s calls stay PyTorch's: %s", shapes, error)
            return theirs

    def run(given: Sequence[Tensor]) -> list[Tensor]:
        shapes = tuple(tuple(_parts(given[i]).shape) for i in read.live)
        if (found := kept.get(shapes)) is None:
            found = made(shapes)  # two threads may both do so: what compiles holds a lock of the same rank
            kept.made(shapes, lambda: found)
        return found(given)

    return run


def _parts(x: Tensor) -> Tensor:
    """Return the parts of complex numbers on a last axis, as a module reads and gives them; others as they are."""
    return torch.view_as_real(x.resolve_conj()) if is_complex(x) else x


def _whole(x: Tensor) -> Tensor:
    """Return complex numbers of their parts; strides of no elements say nothing."""
    return torch.view_as_complex(x if x.numel() else x.new_empty(x.shape))


def _dense(x: Tensor, orders: Mapping[int, torch.memory_format]) -> Tensor:
    """Return an operand that memory holds in the order of its rank, C's by default: itself, or a copy."""
    return x.contiguous(memory_format=orders.get(x.dim(), torch.contiguous_format))


def _in_arrays(module: AnyModule, read: _Read, gpu: Gpu | None) -> Callable[[Sequence[Any]], list[Tensor]]:
    """Return what runs a module of any extents."""

    def run(given: Sequence[Any]) -> list[Tensor]:
        operands = [_parts(given[i].detach()).contiguous() for i in read.live]
        made = map(tensor_of, module.run(*operands)) if gpu is None else run_on(gpu, module, operands)
        made = (_whole(y) if is_complex(w) else y for y, w in zip(made, read.wanted))
        return [*map(_laid_out, made, read.layouts)]

    return run


def _laid_out(y: Tensor, layout: Layout) -> Tensor:
    """Return a result as memory is to hold it: itself, or a copy."""
    strides = layout(y.shape)
    return y if _is_alike(y.shape, y.stride(), strides) else _copied(y, strides)


def _copied(y: Tensor, strides: Sequence[int]) -> Tensor:
    """Return a copy with other strides."""
    return torch.empty_strided(tuple(y.shape), strides, dtype=y.dtype, device=y.device).copy_(y)


def _is_alike(shape: Sequence[int], one: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether strides are those of the same memory; that of an axis of one element says nothing."""
    return all(a == b or n == 1 for a, b, n in zip(one, other, shape))


def _layout(held: Tensor) -> Layout:
    """Return what gives strides of a shape as the graph states them for a result: numbers as they are, where elements
    share no memory; otherwise those of the same order of axes, without gaps."""
    stated, axes = held.stride(), axes_in_memory(held)
    are_numbers = all(isinstance(n, int) and n > 0 for n in stated)
    return lambda shape: stated if are_numbers else dense_strides(shape, axes)

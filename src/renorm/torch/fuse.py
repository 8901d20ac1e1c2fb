"""relu(norm(x) + residual) -> norm(x, residual, relu), also without one of the two, in the forward of a module.

The graph of a forward (following.py) is searched for batch norms; what it is after the rewrites runs as Python, on the
module itself. Nothing else of the module changes. Whether a kernel may take both is asked anew in each call: where
somebody has put a hook on the norm or its ReLU, or operands do not fit, they run one after the other.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from renorm.core.dataclass import dataclass
from renorm.torch.following import Unfollowable, follow, is_hooked, is_inlined
from renorm.torch.modules import _BatchNorm
from renorm.torch.reach import is_watched

ADD, RELU = "addition", "ReLU"
_VARIANTS, _MOST = "renorm_variants", 4  # forwards of a module that read different attributes

_LISTS = nn.ModuleList, nn.ModuleDict
_RELU: set[Any] = {F.relu, F.relu_, torch.relu, torch.relu_, "relu", "relu_"}
_SUM: set[Any] = {operator.add, torch.add, "add"}
_SUM_IN_PLACE: set[Any] = {operator.iadd, "add_"}


@dataclass(frozen=True)
class Chain:
    """One call of a fused kernel. nodes: the norm and what follows it, in order; residual: what is added."""

    nodes: list[fx.Node]
    residual: fx.Node | None
    relu: fx.Node | None

    @property
    def fused(self) -> tuple[str, ...]:
        return (ADD,) * (self.residual is not None) + (RELU,) * (self.relu is not None)


class _Refused(Exception):
    """Says why nothing is fused with a norm."""


def fuse_norms(model: nn.Module) -> dict[nn.Module, tuple[str, ...] | str]:
    """Fuses in every module of `model`, in place. For each batch norm that is called by one of them and was not fused
    before: what it computes too, or why nothing."""
    found, seen = dict[nn.Module, tuple[str, ...] | str](), set[nn.Module]()
    for m in list(model.modules()):
        norms = list(_norms(m))
        if not norms or m in seen or isinstance(m, _LISTS):
            continue
        try:
            variant = _Variant(m)
        except Unfollowable as error:
            why = f"{type(m).__name__}.forward stays as it is: {error}"
            found |= {norm: why for norm in norms if norm not in found}
            continue
        seen.update(variant.followed.inlined)
        if _own(type(m)) is type(m):
            found |= {norm: f for norm, f in variant.norms.items() if not isinstance(found.get(norm), tuple)}
        if variant.is_fused:
            m.__dict__[_VARIANTS] = _Variants([variant])
            m.__class__ = _fused(_own(type(m)))
    return found


def unfuse(module: nn.Module) -> None:
    """Gives a module its own forward back."""
    module.__class__ = _own(type(module))
    module.__dict__.pop(_VARIANTS, None)


def _norms(m: nn.Module) -> Iterator[nn.Module]:
    """Batch norms that the forward of m calls, as far as its children tell."""
    for child in m.children():
        if isinstance(child, _BatchNorm):
            yield child
        elif is_inlined(child) or isinstance(child, _LISTS):
            yield from _norms(child)


class _Variant:
    """A forward with its rewrites, and when it may be called. norms: as `fuse_norms` gives it."""

    def __init__(self, module: nn.Module):
        self.followed = follow(module)
        self.norms = dict[nn.Module, tuple[str, ...] | str]()
        graph = self.followed.graph
        nodes, modules = list(graph.nodes), dict(module.named_modules(remove_duplicate=False))
        called = {n: modules[str(n.target)] for n in nodes if n.op == "call_module"}
        for node in reversed(nodes):  # of two norms that are added, the later takes the other's result
            norm = called.get(node)
            if not isinstance(norm, _BatchNorm):
                continue
            try:
                chain = _chain(node, nodes, called)
            except _Refused as refusal:
                self.norms.setdefault(norm, str(refusal))
                continue
            self.norms[norm] = chain.fused
            _rewrite(graph, chain)
        self.is_fused = any(isinstance(f, tuple) for f in self.norms.values())
        code = graph.python_code("self")
        namespace = dict(code.globals)
        exec(compile(code.src, f"<{type(module).__name__}.forward, fused>", "exec"), namespace)
        self.forward: Callable[..., Any] = namespace["forward"]

    def takes(self, module: nn.Module, args: tuple[Any, ...]) -> bool:
        return len(args) == self.followed.tensors and self.followed.holds(module)


class _Variants(list[_Variant | None]):
    """None: one that could not be made. A copy of a module makes its own."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _Variants, ()


def _of(module: nn.Module) -> _Variants:
    return module.__dict__.setdefault(_VARIANTS, _Variants())


def _variant(module: nn.Module, args: tuple[Any, ...]) -> _Variant | None:
    """That computes the forward of `module` on these; None if its own must."""
    if is_watched() or not all(isinstance(a, Tensor) for a in args):
        return None
    variants = _of(module)
    for v in variants:
        if v is not None and v.takes(module, args):
            return v
    if len(variants) == _MOST:
        return None
    try:
        made = _Variant(module)
    except Unfollowable:
        made = None
    variants.append(made)
    return made if made is not None and made.takes(module, args) else None


@cache
def _fused(cls: type[nn.Module]) -> type[nn.Module]:
    """cls with forwards that are fused."""

    @wraps(cls.forward)
    def forward(self: nn.Module, *args: Any, **named: Any) -> Any:
        found = None if named else _variant(self, args)
        return cls.forward(self, *args, **named) if found is None else found.forward(self, *args)

    def reduced(self: nn.Module, protocol: Any) -> Any:
        return _anew, (cls,), self.__getstate__()

    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls,), names | {"forward": forward, "__reduce_ex__": reduced, "renorm_own": cls})


def _own(cls: type[nn.Module]) -> type[nn.Module]:
    return cls.__dict__.get("renorm_own", cls)


def _anew(cls: type[nn.Module]) -> nn.Module:
    made = _fused(cls)
    return made.__new__(made)


def _chain(norm: fx.Node, nodes: list[fx.Node], called: dict[fx.Node, nn.Module]) -> Chain:
    """relu(norm(x) + residual), without one of the two if it is not there. Raises _Refused."""
    if len(norm.args) != 1 or norm.kwargs:
        raise _Refused("it is called with more than one operand")
    if getattr(called[norm], "relu", False):
        raise _Refused("it has a ReLU of its own")
    reader = _reader(norm)
    if reader.target is normalized:
        raise _Refused("its result is an operand of another norm")
    if _is_relu(reader, called):
        return Chain([norm, reader], None, reader)
    residual = _added(norm, reader, nodes, called)
    last = next(iter(reader.users), None) if len(reader.users) == 1 else None
    relu = last if last is not None and _is_relu(last, called) else None
    return Chain([norm, reader, *[n for n in (relu,) if n]], residual, relu)


def _reader(norm: fx.Node) -> fx.Node:
    if len(norm.users) != 1:
        raise _Refused(f"its result has {len(norm.users)} readers")
    (reader,) = norm.users
    if reader.op == "output":
        raise _Refused("its result leaves the forward")
    return reader


def _is_relu(node: fx.Node, called: dict[fx.Node, nn.Module]) -> bool:
    if node.op == "call_module":
        return type(called[node]) is nn.ReLU
    return node.op in ("call_function", "call_method") and node.target in _RELU


def _added(norm: fx.Node, add: fx.Node, nodes: list[fx.Node], called: dict[fx.Node, nn.Module]) -> fx.Node:
    """The other operand of an addition."""
    in_place = add.target in _SUM_IN_PLACE
    if add.op not in ("call_function", "call_method") or not (in_place or add.target in _SUM):
        what = type(called[add]).__name__ if add in called else getattr(add.target, "__name__", add.target)
        raise _Refused(f"it is followed by {what}")
    if len(add.args) != 2 or add.kwargs:
        raise _Refused("it is added with a factor")
    other = add.all_input_nodes[0 if add.args[0] is not norm else -1]
    if other is norm:
        raise _Refused("it is added to no other tensor")
    if in_place and not (norm is add.args[0] or (len(other.users) == 1 and isinstance(called.get(other), _BatchNorm))):
        raise _Refused("it is added in place to what others may see")
    between = nodes[nodes.index(norm) + 1 : nodes.index(add)]
    if between:
        raise _Refused(f"{len(between)} operations stand between it and the addition ({between[0].name}, ...)")
    return other


def _rewrite(graph: fx.Graph, chain: Chain) -> None:
    norm, *_, last = chain.nodes
    with graph.inserting_before(norm):
        relu = chain.relu if chain.relu is not None and chain.relu.op == "call_module" else None
        operands = (
            graph.get_attr(str(norm.target)),
            norm.args[0],
            chain.residual,
            chain.relu is not None,
            graph.get_attr(str(relu.target)) if relu else None,
        )
        fused = graph.call_function(normalized, operands)
    last.replace_all_uses_with(fused)
    for node in reversed(chain.nodes):
        graph.erase_node(node)


def normalized(norm: nn.Module, x: Tensor, residual: Tensor | None, rectifies: bool, relu: nn.Module | None) -> Tensor:
    """relu(norm(x) + residual). relu: the module, if it is one."""
    seen = is_hooked(norm) or (relu is not None and is_hooked(relu))
    if isinstance(norm, _BatchNorm) and not norm.relu and not seen:
        return norm.normalized(x, residual, rectifies)
    y = norm(x)
    y = y if residual is None else y + residual
    return y if not rectifies else F.relu(y) if relu is None else relu(y)

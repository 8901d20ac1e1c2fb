"""The forward of a module as a graph of torch.fx: what it does with its children, and while what that holds.

torch.fx runs a forward once on stand-ins for tensors and writes down what is done with them. What Python decides
meanwhile is decided for good. So it is recorded what the forward read of its module, and the graph holds while that is
the same; a forward that does what no graph says (other modes of autograd, random numbers, attributes that it sets) is
refused.
"""

from __future__ import annotations

import inspect
import operator
import random
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch._C._autograd import _top_saved_tensors_default_hooks
from torch.nn.modules.module import _has_any_global_hook

from renorm.core.dataclass import dataclass
from renorm.core.locks import Lock, Rank

# while it follows, torch.fx replaces functions of nn.Module
_lock = Lock("a forward that is followed", Rank.FOLLOWING, fork_waits=True)
_OWN = nn.Module().__dict__.keys() - {"training"}
_PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device, torch.memory_format, type)


class Unfollowable(Exception):
    """The forward of a module has no graph; says why."""


@dataclass(frozen=True)
class Followed:
    """The graph of a forward; its modules, but Sequential and Identity, are one node each. tensors: that the forward
    takes; read: attributes of its module, by name; children: of the modules that the graph looks into; inlined: modules
    that it does not call, so that nobody may wait for their calls."""

    graph: fx.Graph
    tensors: int
    read: dict[str, Any]
    children: list[tuple[nn.Module, dict[str, nn.Module | None]]]
    inlined: list[nn.Module]

    def holds(self, module: nn.Module) -> bool:
        """Whether the forward would do the same again."""
        given = module.__dict__
        return (
            all(name in given and given[name] == value for name, value in self.read.items())
            and all(m._modules == children for m, children in self.children)
            and not any(map(is_hooked, self.inlined))
        )


def is_hooked(m: nn.Module) -> bool:
    """Whether somebody wants to see when it is called, or what with."""
    own = m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks
    return bool(own or _has_any_global_hook())


def is_inlined(m: nn.Module) -> bool:
    """Whether what it does is seen in the graph of who calls it."""
    plain = isinstance(m, nn.Sequential) and inspect.unwrap(type(m).forward) is nn.Sequential.forward
    return (plain or type(m) is nn.Identity) and not is_hooked(m)


def follow(module: nn.Module) -> Followed:
    """Runs the forward of `module` on stand-ins for the tensors that it must be given. Raises Unfollowable."""
    with _lock, torch.random.fork_rng(devices=()), torch.enable_grad():
        before, cls = _random(), type(module)
        tracer = _Tracer(module)
        try:
            module.__class__ = _recording(cls, tracer)
            graph = tracer.trace(module)
        except Unfollowable:
            raise
        except Exception as error:  # whatever a forward does with what is no tensor
            raise Unfollowable(f"torch.fx cannot follow it ({type(error).__name__}: {error})".split("\n")[0]) from error
        finally:
            object.__setattr__(module, "__class__", cls)
        if _random() != before:
            random.setstate(before[0])
            raise Unfollowable("it draws random numbers of its own")
    opened = [m for o in (module, *tracer.inlined) for m in _with_lists(o)]
    return Followed(graph, tracer.tensors, tracer.read, [(m, dict(m._modules)) for m in opened], tracer.inlined)


class _Proxy(fx.Proxy):
    """A stand-in that knows x += y from x = x + y, which torch.fx takes for the same."""


def _in_place(name: str) -> Callable[[fx.Proxy, Any], Any]:
    function = getattr(operator, name)

    def method(self: fx.Proxy, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return method


for _name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor"):
    setattr(_Proxy, f"__{_name}__", _in_place(_name))


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True  # else what is done with a buffer is done once, now

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module, self.read, self.inlined, self.tensors = module, dict[str, Any](), list[nn.Module](), 0
        self._thread, self._modes = get_ident(), _modes()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if not is_inlined(m):
            return True
        self.inlined.append(m)
        return False

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return super().call_module(m, forward, args, kwargs) if self.is_here() else forward(*args, **kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, fx.Proxy]) -> Any:
        return super().getattr(attr, attr_val, parameter_proxy_cache) if self.is_here() else attr_val

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if _modes() != self._modes:
            raise Unfollowable(
                "part of it runs in another mode (no_grad, autocast, checkpoint) or an autograd.Function"
            )
        return super().create_node(*args, **kwargs)

    def create_args_for_root(self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None) -> Any:
        """Stand-ins for what has no default."""
        _, *parameters = inspect.signature(root_fn).parameters.values()
        needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        if any(p.kind is p.KEYWORD_ONLY for p in needed):
            raise Unfollowable("it has operands that are given by name")
        self.tensors = len(needed)
        return root_fn, [self.root, *(self.create_proxy("placeholder", p.name, (), {}) for p in needed)]

    def is_here(self) -> bool:
        """Other threads may run modules meanwhile."""
        return get_ident() == self._thread


def _recording(cls: type[nn.Module], tracer: _Tracer) -> type[nn.Module]:
    """A class whose objects tell which of their attributes are read."""

    class Recording(cls):
        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            if name not in _OWN and name in object.__getattribute__(self, "__dict__") and tracer.is_here():
                tracer.read[name] = _constant(name, value)
            return value

        def __setattr__(self, name: str, value: Any) -> None:
            if tracer.is_here():
                what = "makes tensors of its own" if name.startswith("_tensor_constant") else f"sets self.{name}"
                raise Unfollowable(f"it {what}")
            super().__setattr__(name, value)

    return Recording


def _with_lists(m: nn.Module) -> Iterator[nn.Module]:
    """And the lists of modules in it, which have no forward."""
    yield m
    for child in m.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            yield from _with_lists(child)


def _constant(name: str, value: Any) -> Any:
    """Return what stands for the value of an attribute: equal to it while it is the same."""
    if isinstance(value, _PLAIN) or inspect.isroutine(value):
        return value
    if isinstance(value, (list, tuple, set, frozenset)):
        return type(value)(_constant(name, v) for v in value) if type(value) in (list, tuple, set, frozenset) else value
    if type(value) is dict:
        return {k: _constant(name, v) for k, v in value.items()}
    raise Unfollowable(f"it reads self.{name}, a {type(value).__name__}, which may change unseen")


def _modes() -> tuple[Any, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
        _top_saved_tensors_default_hooks(True),
    )


def _random() -> tuple[Any, ...]:
    _, keys, *place = np.random.get_state()  # noqa: NPY002 (that of others)
    return random.getstate(), bytes(torch.get_rng_state().tolist()), np.asarray(keys).tobytes(), place

"""Models of Keras to Graph, one call of a layer after the other.

Nodes are called by the path of the layer that makes them, `block1/conv`, further ones of a layer by path and op,
`block1/conv.relu`. Whatever cannot be read is collected, so that one error names all of it, with class and name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm import ops
from renorm.core import dtypes
from renorm.core.dims import Dim, Sym
from renorm.core.errors import InvalidModel, OperandError, RenormError, UnsupportedOp, UserCodeError, raised_at
from renorm.core.limits import DEFAULT, Limits
from renorm.frontends.diagnosis import diagnose
from renorm.frontends.keras.call import Call, Tensor, dtype_of
from renorm.frontends.keras.config import Config, Described, Reference, leaves, replaced
from renorm.frontends.keras.layers import OPERATIONS, TABLE
from renorm.frontends.keras.layers.masks import merged
from renorm.frontends.keras.layers.table import Entry, registered
from renorm.frontends.keras.network import Applied, Network, network
from renorm.frontends.keras.source import WITHOUT_GRAPH, loaded
from renorm.frontends.keras.weights import Array, Weights
from renorm.frontends.orders import First
from renorm.frontends.problems import Problem, together
from renorm.graph.ir import Graph, Node, Value

# Packages of Keras itself, and of layers that keep its conventions; HDF5 files name none
_OWN = ("keras", "tf_keras", "tensorflow", "renorm")
_CALLED_SO = ("transpose", "reshape", "cast", "expand")  # ops that seldom are what a layer is for


def read(source: Any, *, is_mapped: bool = False, limits: Limits = DEFAULT) -> Graph:
    """Return the graph of a .keras file, of an HDF5 file of a whole model, or of a keras.Model. Raises UnsupportedOp
    that names every layer which renorm cannot express; LimitExceeded."""
    with loaded(source, limits) as found:
        graph = Reader(found.label, limits).read(found.model, found.weights)
    if not is_mapped:
        for constant in graph.constants.values():
            constant.data = np.array(constant.data)
    diagnose(graph)
    return graph


@dataclass(frozen=True)
class LayerCall:
    """Tell a user's function of a layer. name: its path. config: what Keras wrote of it. weights: its variables, arrays
    in their order."""

    name: str
    config: Config
    weights: Sequence[Array]


class Reader:
    """Reads a model into `graph`."""

    def __init__(self, label: str, limits: Limits):
        self.label, self.limits, self.graph = label, limits, Graph(label)
        self.problems = list[Problem]()
        self._names, self._named = Counter[str](), set[Node]()
        self._shared = dict[Any, Weights]()
        self._constants = dict[Any, tuple[Array, Value]]()

    def read(self, model: Described, weights: Weights) -> Graph:
        if not model.is_network:
            raise UnsupportedOp(
                f"{self.label}: {model.kind} is a class of its own, whose config has no graph of layers",
                do=WITHOUT_GRAPH,
            )
        self.graph.name = model.name
        whole = network(model)
        self._share(whole, weights, 0)
        outputs = self._run(whole, weights, "", self._inputs(whole), 0)
        for tensor, ref in zip(outputs, whole.outputs):
            if tensor is not None:
                self.graph.outputs.append(self._output(tensor, ref.layer))
        if self.problems:
            self.problems.sort(
                key=lambda p: not isinstance(p.error, UnsupportedOp)
            )  # what renorm does not define first
            raise together(self.problems, self.label)
        self.graph.discard_constants()
        return self.graph

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _inputs(self, whole: Network) -> list[Tensor | None]:
        made = list[Tensor | None]()
        for ref in whole.inputs:
            layer = whole.layers.get(ref.layer)
            name = ref.layer or "input"
            try:
                if layer is None:  # of a sequential model without one
                    layer = Described("InputLayer", "", "", self._first_shape(whole), inbound=())
                made.append(self._input(name, layer))
            except RenormError as error:
                self.problems.append(Problem(error, name, "an input"))
                made.append(None)
        return made

    def _first_shape(self, whole: Network) -> Config:
        """Return the config of the input that a sequential model does not describe as a layer."""
        config, at = whole.model.config, whole
        if isinstance(config.get("build_input_shape"), (list, tuple)):
            return {"batch_shape": config["build_input_shape"]}
        for _ in range(self.limits.nesting):
            first = at.calls[0].layer if at.calls else None
            if first is None:
                break
            if "batch_input_shape" in first.config or "batch_shape" in first.config:
                return first.config
            if not first.is_network:
                break
            at = network(first)
            if len(at.inputs) == 1 and (layer := at.layers.get(at.inputs[0].layer)) is not None:
                return layer.config
        raise InvalidModel(
            f"{whole.model.name} does not say which shape its input has", do="build the model before it is saved"
        )

    def _input(self, name: str, layer: Described) -> Tensor:
        config = layer.config
        if config.get("sparse") or config.get("ragged"):
            raise UnsupportedOp("it is sparse or ragged", do="give the model dense inputs")
        given = config.get("batch_shape", config.get("batch_input_shape"))
        if not isinstance(given, (list, tuple)) or not all(d is None or _is_extent(d) for d in given):
            raise InvalidModel(f"its shape is {given!r}")
        shape: list[Dim] = [
            d if isinstance(d, int) else Sym("batch") if axis == 0 else Sym(f"?{name}.{axis}")
            for axis, d in enumerate(given)
        ]
        tensor = Tensor(self.graph, name)
        tensor.make(self.graph.input(name, dtype_of(config.get("dtype")), shape))
        return tensor

    def _output(self, tensor: Tensor, name: str) -> Value:
        value = tensor.stored()
        if value.producer is None or value in self.graph.outputs:
            value = ops.identity(value)
        if value.name != name:
            self.graph.rename(value, name, exact=False)
        return value

    # --- models -------------------------------------------------------------------------------------------------------

    def _share(self, whole: Network, weights: Weights, depth: int) -> None:
        """Note where layers that are described several times have their weights: where Keras comes to them first."""
        self.limits.check(self.label, [("nesting", depth, whole.model.name)])
        for layer in whole.layers.values():
            own = whole.weights(layer, weights)
            if layer.shared is not None:
                self._shared.setdefault(layer.shared, own)
            if layer.is_network:
                self._share(network(layer), own, depth + 1)

    def _run(
        self, whole: Network, weights: Weights, path: str, given: Sequence[Tensor | None], depth: int
    ) -> list[Tensor | None]:
        """Return the results of a model; None for what cannot be read, which is noted."""
        self.limits.check(self.label, [("nesting", depth, path), ("nodes", len(whole.calls), path)])
        if len(given) != len(whole.inputs):
            raise InvalidModel(f"{whole.model.name} has {len(whole.inputs)} inputs, and is called with {len(given)}")
        made: dict[tuple[str, int], list[Tensor | None]] = {
            (ref.layer, ref.call): [x] for ref, x in zip(whole.inputs, given)
        }
        for call in whole.calls:
            at = f"{path}/{call.layer.name}".removeprefix("/")
            made[call.layer.name, call.number] = self._called(call, whole.weights(call.layer, weights), at, made, depth)
        return [self._result(made, ref) for ref in whole.outputs]

    def _result(self, made: Mapping[tuple[str, int], Sequence[Tensor | None]], ref: Reference) -> Tensor | None:
        held = made.get((ref.layer, ref.call))
        if held is None:
            raise InvalidModel(f"{self.label}: layer {ref.layer!r} is read, and not called")
        if held and ref.result >= len(held):
            raise InvalidModel(f"{self.label}: layer {ref.layer!r} has {len(held)} results, {ref.result} is read")
        return held[ref.result] if held else None

    def _called(
        self,
        call: Applied,
        weights: Weights,
        path: str,
        made: Mapping[tuple[str, int], Sequence[Tensor | None]],
        depth: int,
    ) -> list[Tensor | None]:
        """Return the results of a call; none where it cannot be read."""
        layer = call.layer
        try:
            given = {ref: self._result(made, ref) for ref in call.references()}
            if None in given.values():  # what it reads has its problem; what it is may be another one
                if not layer.is_network and registered(path, layer) is None:
                    _entry(layer)
                return []
            args, kwargs = (replaced(part, lambda x: given[x] if isinstance(x, Reference) else x)
                            for part in (list(call.args), dict(call.kwargs)))  # fmt: skip
            kwargs.pop("training", None)
            if layer.is_network:
                inner = self._run(network(layer), self._own(layer, weights), path, [*leaves([args])], depth + 1)
                return [] if None in inner else inner
            return [*self._applied(layer, weights, path, args, kwargs, depth)]
        except RenormError as error:
            kind = layer.registered if layer.registered and layer.registered != layer.kind else layer.kind
            self.problems.append(Problem(error, path, kind, kind))
            return []

    def _own(self, layer: Described, weights: Weights) -> Weights:
        return self._shared.get(layer.shared, weights) if layer.shared is not None else weights

    # --- layers -------------------------------------------------------------------------------------------------------

    def _applied(
        self, layer: Described, weights: Weights, path: str, args: Sequence[Any], kwargs: Mapping[str, Any], depth: int
    ) -> list[Tensor]:
        """Return the results of a layer. Raises what is wrong with it."""

        def inner(part: Described, own: Weights, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
            at = f"{path}/{part.name}"
            if not part.is_network:
                return self._applied(part, own, at, args, kwargs, depth + 1)
            found = self._run(network(part), own, at, [*leaves(list(args))], depth + 1)
            held = [x for x in found if x is not None]
            if len(held) != len(found):
                raise UnsupportedOp("the model in it cannot be read")
            return held

        self.limits.check(self.label, [("nesting", depth, path)])
        before, own = len(self.graph.nodes), self._own(layer, weights)
        function = registered(path, layer)
        if function is not None:
            values = [x.stored() for x in leaves([list(args), dict(kwargs)]) if isinstance(x, Tensor)]
            found, keeps_mask = self._by_user(function, LayerCall(path, layer.config, own.all()), values), False
        else:
            entry = _entry(layer)
            keeps_mask = entry.keeps_mask
            call = Call(self.graph, layer, own, path, inner, self._constants)
            if layer.has_weights:
                args, kwargs = (replaced(part, lambda x: _autocast(call, x)) for part in (list(args), dict(kwargs)))
            args, kwargs = _masked(call, args, dict(kwargs))
            try:
                found = entry.read(call, *args, **kwargs)
            except OperandError as error:
                raise InvalidModel(error.headline, error.facts) from error
            except RenormError:
                raise
            except (ValueError, IndexError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
                raise InvalidModel(
                    f"its config, weights and arguments do not fit: {error}", [raised_at(error)]
                ) from error
        self._name(path, self.graph.nodes[before:])
        mask = merged(self.graph, [x for x in leaves(list(args)) if isinstance(x, Tensor)]) if keeps_mask else None
        return self._results(found, path, mask, self.graph.nodes[before:])

    def _by_user(self, function: Any, call: LayerCall, values: Sequence[Value]) -> Any:
        try:
            found = function(call, *values)
        except RenormError:
            raise
        except Exception as error:
            raise UserCodeError(f"{type(error).__name__}: {error}", [raised_at(error)]) from error
        if not all(isinstance(v, Value) for v in leaves(found)):
            raise UserCodeError(f"the function for it returns {type(found).__name__}, expected values of the graph")
        return found

    def _results(self, found: Any, path: str, mask: Value | None, made: Sequence[Node]) -> list[Tensor]:
        results = list[Tensor]()
        for held in leaves(found):
            if isinstance(held, Tensor):
                results.append(held)
                continue
            if held is None:
                continue
            value = held.value if isinstance(held, First) else held
            if not isinstance(value, Value):
                raise InvalidModel(f"its result would be {type(value).__name__}, and no tensor")
            if value.producer in made and value.name != path:
                self.graph.rename(value, path, exact=False)
            tensor = Tensor(self.graph, value.name)
            tensor.make(held)
            tensor.mask = mask
            results.append(tensor)
        return results

    def _name(self, path: str, made: Sequence[Node]) -> None:
        """Name the nodes of a layer, but for those that layers in it have named."""
        own = [n for n in made if n not in self._named]
        if not own:
            return
        whole = [n for n in own if n.op.is_product or n.op.is_normalization]
        telling = [n for n in own if n.op.name not in _CALLED_SO]
        principal = (whole or telling[-1:] or own[-1:])[0]
        for n in own:  # a layer may be called as an op in it
            self.graph.rename_node(n, "", exact=False)
        for n in own:
            wanted = path if n is principal else f"{path}.{n.op.name}"
            self._names[wanted] += 1
            wanted += f"_{self._names[wanted]}" if self._names[wanted] > 1 else ""
            self.graph.rename_node(n, wanted, exact=False)
            n.origin = (n.name,)
            self._named.add(n)


def _is_extent(d: Any) -> bool:
    return isinstance(d, int) and not isinstance(d, bool) and d >= 0


def _entry(layer: Described) -> Entry:
    """Return how a layer is read. Raises UnsupportedOp."""
    is_own = not layer.module or layer.module.partition(".")[0] in _OWN
    found = (TABLE if layer.has_weights else OPERATIONS).get(layer.kind.removeprefix("renorm>")) if is_own else None
    if found is not None:
        return found
    name = layer.name if layer.kind == "Lambda" else layer.registered or layer.kind
    what = (
        "the code of a Lambda is not run"
        if layer.kind == "Lambda"
        else f"renorm does not read {layer.kind}"
        if is_own
        else f"{layer.kind} of {layer.module} is none of Keras' own, and what a file names is not imported"
    )
    raise UnsupportedOp(what, do=f"say what it computes: renorm.register_keras_layer({name!r}, function)")


def _autocast(call: Call, x: Any) -> Any:
    """Return an argument in the dtype of the layer, where both are floating point."""
    if not isinstance(x, Tensor) or not dtypes.is_float(x.value.dtype) or not dtypes.is_float(call.dtype):
        return x
    return call.converted(x, call.dtype)


def _masked(call: Call, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return arguments without `mask`, whose masks are those of the tensors before it."""
    stated = kwargs.pop("mask", None)
    if stated is None or not args:
        return args, kwargs
    masks = iter(stated if isinstance(stated, (list, tuple)) else [stated])

    def marked(x: Any) -> Any:
        mask = next(masks, None) if isinstance(x, Tensor) else None
        if not isinstance(x, Tensor) or mask is None:
            return x
        made = call.tensor(call.each(x, lambda v: v), call.cast(call.held(mask).stored(), "bool"))
        made.is_told = True
        return made

    return [replaced(args[0], marked), *args[1:]], kwargs

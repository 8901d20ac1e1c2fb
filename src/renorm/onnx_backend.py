"""renorm as a backend of ONNX's own interface (`onnx.backend.base`), for tools that take one:

import renorm.onnx_backend as backend

rep = backend.prepare(model)             # an onnx.ModelProto; what renorm.compile takes beside it, by name
outputs = rep.run([x])                   # in order, or by name: outputs["probabilities"]

A sequence of tensors is a list of arrays, an optional that holds nothing is None. A model that takes such is compiled
for each new number of arrays, and their shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper
from onnx.backend.base import Backend, BackendRep, Device, DeviceType, namedtupledict
from onnx.shape_inference import infer_shapes

from renorm import frontends
from renorm.core.errors import InvalidInput, RenormError, UntoldOperand
from renorm.core.lru import Latest
from renorm.core.stated import Undecided
from renorm.driver.compile import compile
from renorm.driver.undecided import DecidingModule
from renorm.frontends.onnx.sequence_inputs import COUNTS, TYPES
from renorm.frontends.onnx.sequences import OPS
from renorm.frontends.outline import Hosted
from renorm.runtime.gpu.device import arch_here

KEPT = 8  # modules of a model that takes sequences; the one not used for the longest time goes first


class RenormRep(BackendRep):
    """A compiled model. compiled: what renorm.compile gives where inputs that are no tensors have these shapes and
    elements."""

    def __init__(self, model: ModelProto, compiled: Callable[[Mapping[str, Any], Mapping[str, Any]], Any]):
        self._inputs, self._outputs = ([v.name for v in held] for held in (model.graph.input, model.graph.output))
        self._several = {v.name for v in model.graph.input if v.type.WhichOneof("value") in TYPES}
        self._gives_several = any(v.type.WhichOneof("value") in TYPES for v in model.graph.output)
        self._compiled = compiled
        self._modules = Latest[object, Any](f"{model.graph.name} for sequences", KEPT)
        if not self._several:
            self._modules.made((), lambda: compiled({}, {}))

    @property
    def module(self) -> Any:
        """What renorm.compile gave; of a model that takes sequences the latest, None before the first run."""
        return self._modules.last()

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the outputs, which are to be had by position and by name. inputs: arrays in the model's order or by
        name, or the only one; None for an input that an initializer gives. kwargs: as Module.run takes them. Raises
        InvalidInput."""
        if not isinstance(inputs, (Mapping, list, tuple)):
            inputs = [inputs]
        if not isinstance(inputs, Mapping):
            if len(inputs) > len(self._inputs):
                raise InvalidInput(f"{len(inputs)} inputs, expected at most {len(self._inputs)}", self._inputs)
            inputs = dict(zip(self._inputs, inputs))
        given = {n: np.asarray(x) for n, x in inputs.items() if x is not None and not isinstance(x, (list, tuple))}
        elements = {n: x for n, x in inputs.items() if n in self._several and n not in given}
        module = self._module_for(elements)
        given |= {f"{n}.{k}": np.asarray(a) for n, x in elements.items() for k, a in enumerate(x or ())}
        module, given = _decided(module, given) if self._gives_several else (module, given)
        results = iter(module.run(**given, **kwargs))
        counts = module.graph.metadata.get(COUNTS, {}) if self._gives_several else {}
        made = list[Any]()
        for name in self._outputs:
            if name not in counts:
                made.append(next(results))
            else:
                count = counts[name]
                made.append(None if count is None else [next(results) for _ in range(count)])
        return namedtupledict("Outputs", self._outputs)(*made)

    def _module_for(self, elements: Mapping[str, Any]) -> Any:
        """Return the module where inputs are these lists of arrays, or None."""
        shapes = {f"{n}.{k}": np.shape(a) for n, x in elements.items() for k, a in enumerate(x or ())}
        fixed = {n: x for n, x in elements.items() if not x}
        key = *shapes.items(), *((n, x is None) for n, x in fixed.items())
        return self._modules.made(key, lambda: self._compiled(shapes, fixed))


def _decided(module: Any, given: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """Return the module of one graph that runs these arrays, and those that it takes."""
    while isinstance(module, DecidingModule):
        with suppress(Undecided):  # what is known now shows that more inputs decide
            known = {n: given[n] for n in module.deciding if n in given}
            return module.decided(**known), {n: a for n, a in given.items() if n not in known}
    return module, given


class RenormBackend(Backend):
    """`prepare` compiles, for the device "CPU", or "CUDA:1"."""

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Return whether renorm reads the model, and has the device."""
        try:
            frontends.read(model, **kwargs)
        except (Undecided, Hosted):
            pass  # elements of inputs decide, which a call has, or data do
        except RenormError as error:
            takes_several = any(v.type.WhichOneof("value") in TYPES for v in model.graph.input)
            if not (takes_several and isinstance(error, UntoldOperand)):  # a call has as many arrays as there are
                return False
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> RenormRep:
        """Return the compiled model. kwargs: as renorm.compile takes them. Raises what that raises."""
        asked = Device(device)
        if asked.type == DeviceType.CUDA:
            kwargs = {"target": "cuda", "device": asked.device_id, **kwargs}
        shapes, inputs = (dict[str, Any](kwargs.pop(name, None) or {}) for name in ("shapes", "inputs"))

        def compiled(parts: Mapping[str, Any], fixed: Mapping[str, Any]) -> Any:
            others = _open_shapes(model) if parts else {}  # which stay open where nothing else is said
            return compile(model, shapes={**others, **shapes, **parts}, inputs={**inputs, **fixed}, **kwargs)

        return RenormRep(model, compiled)

    @classmethod
    def run_model(cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Compile and run a model once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls, node: NodeProto, inputs: Any, device: str = "CPU", outputs_info: Sequence[Any] | None = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Run one node. inputs: arrays in its order. kwargs: opset_version, and what renorm.compile takes."""
        arrays = [x if isinstance(x, list) else np.asarray(x) for x in inputs]
        given = dict(zip([name for name in node.input if name], arrays, strict=True))
        infos = [
            helper.make_tensor_sequence_value_info(name, _element_type(x), None)
            if isinstance(x, list)
            else helper.make_tensor_value_info(name, _element_type([x]), x.shape)
            for name, x in given.items()
        ]
        # what a node gives is inferred: an output of a model needs a name alone
        outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
        versions = (
            [helper.make_opsetid(node.domain, kwargs.pop("opset_version"))] if "opset_version" in kwargs else None
        )
        model = helper.make_model(helper.make_graph([node], "node", infos, outputs), opset_imports=versions)
        if node.op_type in OPS or any(isinstance(x, list) for x in arrays):
            model = infer_shapes(model)  # which outputs are sequences
        return cls.run_model(model, given, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether there is such a device: the CPU, or the first GPU."""
        return Device(device).type == DeviceType.CPU or bool(arch_here())


def _open_shapes(model: ModelProto) -> dict[str, list[int | str]]:
    """Return shapes that state no more of the tensors that a model takes than it does."""
    constants = {t.name for t in model.graph.initializer}
    tensors = {v.name: v.type.tensor_type for v in model.graph.input if v.type.WhichOneof("value") == "tensor_type"}
    return {
        n: [d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else "?" for d in t.shape.dim]
        for n, t in tensors.items()
        if t.HasField("shape") and n not in constants
    }


def _element_type(arrays: list[Any]) -> int:
    """Return ONNX's element type of arrays, float where there are none."""
    return helper.np_dtype_to_tensor_dtype(np.asarray(arrays[0]).dtype if arrays else np.dtype(np.float32))


is_compatible = RenormBackend.is_compatible
prepare = RenormBackend.prepare
run_model = RenormBackend.run_model
run_node = RenormBackend.run_node
supports_device = RenormBackend.supports_device

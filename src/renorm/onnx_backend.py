"""renorm as a backend of ONNX's own interface (`onnx.backend.base`), for tools that take one:

import renorm.onnx_backend as backend

rep = backend.prepare(model)             # an onnx.ModelProto; what renorm.compile takes beside it, by name
outputs = rep.run([x])                   # in order, or by name: outputs["probabilities"]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper
from onnx.backend.base import Backend, BackendRep, Device, DeviceType, namedtupledict

from renorm import frontends
from renorm.core.errors import InvalidInput, RenormError
from renorm.core.stated import Undecided
from renorm.driver.compile import compile
from renorm.runtime.gpu.device import arch_here


class RenormRep(BackendRep):
    """A compiled model. module: what renorm.compile gave."""

    def __init__(self, model: ModelProto, module: Any):
        self.module = module
        self._inputs = [v.name for v in model.graph.input]
        self._outputs = [v.name for v in model.graph.output]

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
        given = {name: np.asarray(x) for name, x in inputs.items() if x is not None}
        results = self.module.run(**given, **kwargs)
        return namedtupledict("Outputs", self._outputs)(*results)


class RenormBackend(Backend):
    """`prepare` compiles, for the device "CPU", or "CUDA:1"."""

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Return whether renorm reads the model, and has the device."""
        try:
            frontends.read(model, **kwargs)
        except Undecided:
            pass  # elements of inputs decide: a call has them
        except RenormError:
            return False
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> RenormRep:
        """Return the compiled model. kwargs: as renorm.compile takes them. Raises what that raises."""
        asked = Device(device)
        if asked.type == DeviceType.CUDA:
            kwargs = {"target": "cuda", "device": asked.device_id, **kwargs}
        return RenormRep(model, compile(model, **kwargs))

    @classmethod
    def run_model(cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Compile and run a model once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls, node: NodeProto, inputs: Any, device: str = "CPU", outputs_info: Sequence[Any] | None = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Run one node. inputs: arrays in its order. kwargs: opset_version, and what renorm.compile takes."""
        arrays = [np.asarray(x) for x in inputs]
        given = dict(zip([name for name in node.input if name], arrays, strict=True))
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in given.items()
        ]
        # what a node gives is inferred: an output of a model needs a name alone
        outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
        versions = (
            [helper.make_opsetid(node.domain, kwargs.pop("opset_version"))] if "opset_version" in kwargs else None
        )
        model = helper.make_model(helper.make_graph([node], "node", infos, outputs), opset_imports=versions)
        return cls.run_model(model, given, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether there is such a device: the CPU, or the first GPU."""
        return Device(device).type == DeviceType.CPU or bool(arch_here())


is_compatible = RenormBackend.is_compatible
prepare = RenormBackend.prepare
run_model = RenormBackend.run_model
run_node = RenormBackend.run_node
supports_device = RenormBackend.supports_device

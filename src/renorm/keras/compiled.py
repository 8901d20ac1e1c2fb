"""Compiled modules as layers of Keras, on the backend torch."""

from __future__ import annotations

from typing import Any

import keras

from renorm.core.dims import substitute
from renorm.core.errors import InvalidInput
from renorm.keras.backend import require_torch
from renorm.runtime.module import Module
from renorm.torch.compiled import extents_told


class CompiledLayer(keras.layers.Layer):
    """A compiled module as a layer: the same inputs, results as a tensor, or as a list of several. It has no weights
    and no gradient, and is in no file: save the module itself, m.save(). Raises InvalidInput where Keras does not run
    on torch."""

    def __init__(self, module: Module, **options: Any):
        require_torch("m.as_keras()")
        super().__init__(trainable=False, **options)
        self._run, self._module = module.as_torch(), module

    def call(self, *inputs: Any) -> Any:
        made = self._run(*_flat(inputs))
        return list(made) if isinstance(made, tuple) else made

    def compute_output_spec(self, *inputs: Any) -> Any:
        """Return results without elements: extents are None where those that they depend on are."""
        given = _flat(inputs)
        if len(given) != len(self._module.inputs):
            raise InvalidInput(f"{self.name}: {len(given)} inputs are given, the module has {len(self._module.inputs)}")
        extents = extents_told(self._module, [x.shape for x in given])
        made = [
            keras.KerasTensor([_known(substitute(n, extents)) for n in spec.shape], dtype=spec.dtype)
            for spec in self._module.outputs
        ]
        return made[0] if len(made) == 1 else made

    def get_config(self) -> dict[str, Any]:
        raise InvalidInput(
            f"{self.name}: a compiled module is in no file of Keras",
            ["its code is made for one machine"],
            "save the module itself, m.save(), and make the layer anew of renorm.load",
        )


def _flat(inputs: Any) -> list[Any]:
    return [x for group in inputs for x in (group if isinstance(group, (list, tuple)) else [group])]


def _known(extent: Any) -> int | None:
    return extent if isinstance(extent, int) else None


def as_layer(module: Module) -> CompiledLayer:
    """Return a compiled module, or one that was loaded, as a layer of Keras."""
    return CompiledLayer(module)

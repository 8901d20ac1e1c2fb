"""keras.layers.BatchNormalization, computed by renorm's kernels on the backend torch."""

from __future__ import annotations

from typing import Any

import keras
import torch

from renorm.core.errors import InvalidInput
from renorm.keras.backend import require_torch
from renorm.torch.arrays import array_of
from renorm.torch.batch import normalize_batch
from renorm.torch.batch_kernels import Settings
from renorm.torch.eligibility import is_ours_in_batches
from renorm.torch.process_groups import world
from renorm.training import Communicator
from renorm.training.communicators import guarded


@keras.saving.register_keras_serializable(package="renorm")
class BatchNormalization(keras.layers.BatchNormalization):
    """Constructor, weights, configuration, and rules of `training` and `trainable` are those of Keras' layer.

    synchronized: statistics are those of the batches of all ranks, merged exactly; gradients of gamma and beta are
    those of this rank, for an optimizer that adds them up. The ranks are those of `comm`, a communicator of
    renorm.training; where that is None, those of torch.distributed, once it is initialized. All have the layer's name,
    if it was given one. What a rank refuses in training is an error on all of them.

    A batch of which the mask leaves nothing changes no moving statistics (Keras' layer multiplies them by momentum).

    What renorm does not compute goes to Keras: batch renormalization (renorm=True), masks where axis is not the last,
    other devices than the CPU, other dtypes than float16, bfloat16, float32 and float64. Raises InvalidInput where
    Keras does not run on torch.
    """

    def __init__(self, *args: Any, synchronized: bool = False, **kwargs: Any):
        require_torch("renorm.keras.BatchNormalization")
        super().__init__(*args, **kwargs)
        self.synchronized = synchronized
        self.comm: Communicator | None = None
        self._has_given_name = kwargs.get("name") is not None  # Keras counts what has no name: not alike on all ranks

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        self._rank = len(input_shape)
        if self.synchronized:  # Keras would refuse a shape before `call`, and leave the other ranks waiting
            self.input_spec = None

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        inputs = keras.ops.convert_to_tensor(inputs)  # stateless_call hands on arrays
        uses_batch = bool(training and self.trainable)
        gamma, beta = (None if w is None else w.value for w in (self.gamma, self.beta))
        moving: list[Any] = [self.moving_mean, self.moving_variance]
        mean, var = (w.value.detach().clone() for w in moving)
        comm = self._comm() if uses_batch else None
        with guarded(comm, "BatchNormalization forward"):
            self._check(inputs, mask)
            is_ours = self._is_ours(inputs, uses_batch, mask, gamma, beta, mean, var)
            is_ours = is_ours and (inputs.is_cpu or (comm is None and mask is None))  # these lie in memory of the host
            if comm is not None and not is_ours:
                raise InvalidInput(
                    f"layer {self.name!r}: synchronized=True takes no {_shown(inputs)} with renorm={self.renorm}, "
                    f"axis {self.axis}{'' if mask is None else ' and a mask'}"
                )
        if not is_ours:
            return self._by_keras(inputs, training, mask)
        settings = Settings(
            self.epsilon,
            uses_batch,
            self.momentum,
            "keras",
            comm=comm,
            mask=None if mask is None or not uses_batch else array_of(torch.as_tensor(mask).bool()),
            name=self.name,
        )
        y = normalize_batch(inputs.movedim(self.axis, 1), mean, var, gamma, beta, settings)
        if uses_batch:
            moving[0].assign(mean)
            moving[1].assign(var)
        return keras.ops.cast(y.movedim(1, self.axis), self.compute_dtype)

    def _check(self, x: Any, mask: Any) -> None:
        moving: Any = self.moving_mean
        channels = moving.shape[0]
        if x.dim() != self._rank or x.shape[self.axis] != channels:
            raise ValueError(
                f"layer {self.name!r} takes x of rank {self._rank} with {channels} channels on axis {self.axis}, "
                f"not {_shown(x)}"
            )
        if mask is not None and len(mask.shape) != x.dim() - 1:
            raise ValueError(f"mask has shape {list(mask.shape)}: expected one axis less than {list(x.shape)}")

    def _is_ours(self, x: Any, uses_batch: bool, mask: Any, *tensors: Any) -> bool:
        is_last = self.axis in (-1, x.dim() - 1)
        return is_ours_in_batches(x, *tensors) and not (
            uses_batch and (self.renorm or (mask is not None and not is_last))
        )

    def _by_keras(self, inputs: Any, training: bool | None, mask: Any) -> Any:
        """Keras itself refuses to synchronize; where this is called there are no other ranks."""
        kept, self.synchronized = self.synchronized, False
        try:
            return super().call(inputs, training=training, mask=mask)
        finally:
            self.synchronized = kept

    def _comm(self) -> Communicator | None:
        comm = (self.comm or world()) if self.synchronized else None
        return comm.named(self.name) if comm is not None and self._has_given_name else comm


def _shown(x: Any) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)} on {x.device}"

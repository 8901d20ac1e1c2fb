"""Batch normalization for Keras 3 on PyTorch: the layer of Keras, computed by renorm's kernels.

KERAS_BACKEND=torch
from renorm.keras import BatchNormalization       # in place of keras.layers.BatchNormalization
"""

from renorm.keras.batch_normalization import BatchNormalization

__all__ = ["BatchNormalization"]

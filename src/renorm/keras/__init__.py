"""Batch normalization for Keras 3 on PyTorch: the layer of Keras, computed by renorm's kernels.

os.environ["KERAS_BACKEND"] = "torch"            # before keras is imported
from renorm.keras import BatchNormalization      # in place of keras.layers.BatchNormalization
"""

from renorm.keras.batch_normalization import BatchNormalization

__all__ = ["BatchNormalization"]

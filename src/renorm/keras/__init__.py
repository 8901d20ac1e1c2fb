"""Keras 3 on PyTorch: its batch normalization, computed by renorm's kernels, and compiled modules as layers.

os.environ["KERAS_BACKEND"] = "torch"            # before keras is imported
from renorm.keras import BatchNormalization      # in place of keras.layers.BatchNormalization
layer = renorm.compile("model.keras").as_keras() # in any model
"""

from renorm.keras.batch_normalization import BatchNormalization
from renorm.keras.compiled import CompiledLayer

__all__ = ["BatchNormalization", "CompiledLayer"]

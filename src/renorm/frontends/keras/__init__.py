"""Models of Keras: .keras files, HDF5 files of whole models, models in memory; norms, convolutions and attention whole.

source      where a model comes from; weights: those of its layers
config      what Keras writes of objects; network: the graph of a model's config
reader      a model, one call of a layer after the other
layers      what each layer means
"""

from renorm.frontends.keras.layers.table import register_keras_layer
from renorm.frontends.keras.reader import read

__all__ = ["read", "register_keras_layer"]

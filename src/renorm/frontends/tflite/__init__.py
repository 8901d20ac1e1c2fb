"""TensorFlow Lite and Circle files."""

from renorm.frontends.tflite.model import KEY
from renorm.frontends.tflite.reader import read
from renorm.frontends.tflite.schema import IDENTIFIERS as FORMATS
from renorm.frontends.tflite.writer import vocabulary, write

__all__ = ["FORMATS", "KEY", "read", "vocabulary", "write"]

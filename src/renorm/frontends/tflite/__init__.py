"""TensorFlow Lite and Circle files."""

from renorm.frontends.tflite.reader import read
from renorm.frontends.tflite.writer import write

__all__ = ["read", "write"]

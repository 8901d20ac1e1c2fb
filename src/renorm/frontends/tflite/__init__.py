"""TensorFlow Lite and Circle files."""

from renorm.frontends.tflite.reader import read

__all__ = ["read"]

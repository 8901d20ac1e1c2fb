"""Scalar expressions: nodes, rewriting, simplification, interval bounds, text. Knows neither tensors nor loops."""

from renorm.expr import text as text  # makes str(expression) print

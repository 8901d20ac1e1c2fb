"""The graph of a network: IR, the form of ops, text, verifier, rewrites, interpreter. Knows nothing of loops."""

from renorm.graph import text as _text  # str(graph) prints as soon as anything of this package is loaded

__all__: list[str] = []
assert _text

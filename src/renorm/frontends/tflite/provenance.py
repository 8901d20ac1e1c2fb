"""A graph's memory of the TensorFlow Lite or Circle file it was read from, so that it can be written back."""

from __future__ import annotations

from dataclasses import dataclass, field

from renorm.frontends.tflite.flatbuffer import Table

KEY = "tflite"  # in Graph.metadata: a Provenance


@dataclass(frozen=True)
class Provenance:
    """identifier: of the file's format. model: its root table, of which all but the operators stays. label: how errors
    call it. names: of its tensors, by number. forms: of which tensor a value is, by name, and whether it has channels
    first while the file has them last."""

    identifier: bytes
    model: Table
    label: str
    names: tuple[str, ...] = field(default=())
    forms: dict[str, tuple[str, bool]] = field(default_factory=dict[str, tuple[str, bool]])

    @property
    def is_quantized(self) -> bool:
        """Return whether operators make tensors of integers that stand for real numbers, which runtimes round to
        them."""
        main = self.model.items("subgraphs")[0]
        made = {int(i) for o in main.items("operators") for i in o.items("outputs")}
        tables = main.items("tensors")
        return any(q is not None and q.items("scale") for q in (tables[i]["quantization"] for i in made))

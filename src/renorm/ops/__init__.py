"""All ops, one file each (or one elementwise family). A new file here is a new op: nothing else needs an edit. What
several ops share is in `shared/`, their schedules are in `schedules/`.

`renorm.ops.conv(x, w, b, strides=(2, 2))` applies an op to values of a graph, or to pattern variables. The functions
are derived from the classes; ops that a user registers appear here too. A file may share its name with its op:
`renorm.ops.clip` is then the function, and `from renorm.ops.clip import Clip` the class.
"""

from typing import Any

from renorm.ops.shared import builders

builders.register_package(__name__, __path__)
globals().update(builders.all_builders())


def __getattr__(name: str) -> Any:
    return builders.find(name)


def __dir__() -> list[str]:
    return [*builders.all_builders()]

"""Nothing."""

from __future__ import annotations

from typing import Any

from renorm.expr.nodes import Expr
from renorm.graph.op import Reject, Sample
from renorm.graph.types import boolean, f16, f32, i64
from renorm.ops.shared.family import LINEAR, Elementwise, method


class Identity(Elementwise):
    """y = x."""

    signature = "x: T[*S] -> y: T[*S]"
    onnx = {"Identity": 1}
    infer = method(lambda x: None)
    commutes = LINEAR
    known_element = staticmethod(lambda x: x)

    def element(self, x: Expr) -> Expr:
        return x

    def numpy(self, x: Any) -> Any:
        return x

    samples = [Sample(f32[2, 3]), Sample(i64[()]), Sample(boolean[3]), Sample(f16[0, 3])]
    rejects = [Reject(f32[3], f32[3], because="takes 1 operands, not 2")]

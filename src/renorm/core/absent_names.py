"""Names of TVM 0.6 to 0.8 that renorm does not have: what programs of that time meet, and what to do instead.

The one table of them: errors say it, and docs/schedules.md is written from it.
"""

from __future__ import annotations

from renorm.core.errors import AbsentName

_NETWORKS = "renorm.read and renorm.compile take whole networks"
_CALLS = "kernels call nothing: pass its results as arguments"
_LOOPS = "loops come from te.lower alone; str(renorm.lower(...)) shows them"
_GIVEN = "te.extern takes loops that are written down with the builder that it gives"
_HINT = "leave it out: results do not depend on it"
_BUFFER = "te.placeholder(strides=) says where elements of an argument lie"

# name as a program writes it -> what to do
ABSENT = {
    "te.scan": "call a function that is built for one round once per round",
    "te.hybrid": _GIVEN,
    "te.gradient": "renorm.training has the gradients of norms",
    "te.tag_scope": "te.compute(..., tag=) gives a tag",
    "te.decl_tensor_intrin": "vectorize: the code generator finds the instructions",
    "te.decl_buffer": _BUFFER,
    "te.trace": _CALLS,
    "te.schedule.InferBound": "renorm.lower prints the loops with their bounds",
    "s[T].pragma": "unroll and parallel are primitives; leave other hints out",
    "s[T].env_threads": "bind axes of the stage",
    "s[T].set_store_predicate": "conditions on threads are added where they are needed",
    "s[T].rolling_buffer": "compute_at keeps just what is needed",
    "s[T].transform_layout": "write the layout into the shape and the indices of te.compute",
    "s.create_group": "compute_at each stage",
    "topi.nn.conv2d": "topi.nn.conv2d_nchw",
    "topi.nn.conv2d_nhwc": "topi.nn.conv2d_nchw, between two topi.transpose",
    "topi.nn.depthwise_conv2d_nchw": "write it by te.compute, as docs/schedules.md shows",
    "topi.nn.pool": "write it by te.compute, as docs/schedules.md shows",
    "topi.nn.batch_matmul": "topi.matmul takes any number of leading axes",
    "topi.nn.dilate": "write it by te.compute and te.if_then_else",
    "topi.tensordot": "topi.matmul, between topi.reshape",
    "topi.generic": "te.create_schedule, and primitives",
    "topi.x86": "te.create_schedule, and primitives",
    "topi.cuda": "te.create_schedule, and primitives",
    "topi.testing": "NumPy",
    "tir.ir_builder": _GIVEN,
    "tir.call_packed": _CALLS,
    "tir.call_extern": _CALLS,
    "tir.call_intrin": "te has the functions that code can be made of",
    "tir.decl_buffer": _BUFFER,
    "tir.transform": _LOOPS,
    "tir.PrimFunc": _LOOPS,
    "renorm.relay": _NETWORKS,
    "renorm.nnvm": _NETWORKS,
    "renorm.autotvm": "schedules of networks are chosen by renorm.compile; of kernels, by hand",
    "renorm.auto_scheduler": "schedules of networks are chosen by renorm.compile; of kernels, by hand",
    "renorm.rpc": "compile for the other machine, save, and renorm.load there",
    "renorm.contrib": _CALLS,
    "renorm.micro": "renorm.compile(target=) and save",
    "renorm.register_func": _CALLS,
    "renorm.get_global_func": _CALLS,
    "renorm.call_pure_intrin": "te has the functions that code can be made of",
    "renorm.IRModule": _LOOPS,
    "renorm.transform": _LOOPS,
    "renorm.ir_pass": _LOOPS,
    "renorm.ir_builder": _GIVEN,
    "renorm.schedule": "renorm.lower prints the loops with their bounds",
    "renorm.build_config": _HINT,
    "renorm.scan": "call a function that is built for one round once per round",
    "renorm.extern": _GIVEN,
    "renorm.hybrid": _GIVEN,
    "renorm.decl_buffer": _BUFFER,
    "renorm.decl_tensor_intrin": "vectorize: the code generator finds the instructions",
    "renorm.tag_scope": "te.compute(..., tag=) gives a tag",
}


def missing(receiver: str, name: str) -> AttributeError:
    """Return the error for a name that `receiver` ("te", "s[T]", ...) does not have: AbsentName where the table knows
    it."""
    full = f"{receiver}.{name}"
    if full in ABSENT:
        return AbsentName(f"{full} is absent: renorm has no such part of TVM", do=ABSENT[full])
    return AttributeError(f"{receiver} has no attribute {name!r}")

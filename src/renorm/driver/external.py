"""Kernels that a target's own code generator made, as the driver sees kernels."""

from __future__ import annotations

from renorm.codegen.abi import CompiledKernel
from renorm.driver.groups import KernelCall
from renorm.driver.lowering import Parameter
from renorm.graph.external import external_values
from renorm.graph.ir import External, Group
from renorm.graph.strided_region import nbytes
from renorm.runtime.report import WorkRecord


def external_call(group: Group, external: External) -> tuple[CompiledKernel, KernelCall]:
    """Return the code of a group, and the values that it is called with. Constants are part of the code, and no
    parameters."""
    reads, writes = external_values(group, external)
    work = external.code.work or WorkRecord(bytes=sum(map(nbytes, (*reads, *writes))))
    call = KernelCall(group.name, tuple(map(Parameter, reads)), tuple(writes), work)
    return CompiledKernel.of_external(group.name, external.code, len(reads), len(writes)), call

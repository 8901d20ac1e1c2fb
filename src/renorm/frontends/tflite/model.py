"""A decoded file: what its tables refer to by number, and what stands beside its operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from renorm.core.errors import InvalidModel
from renorm.frontends.tflite.flatbuffer import Table, decode
from renorm.frontends.tflite.tensors import Array

KEY = "tflite"  # in Graph.metadata: the Model that the graph was read from, so that it can be written back


class Section:
    """A subgraph of a file: its operators and tensors, and the names of these. marks: of operators, what stands before
    the kind in its name, and the number behind it."""

    def __init__(self, model: Model, table: Table, marks: Sequence[tuple[str, int]] | None = None):
        self.model, self.table = model, table
        self.operators: list[Table] = table.items("operators")
        self.marks = [("", k) for k in range(len(self.operators))] if marks is None else marks
        self.tensors: list[Table] = table.items("tensors")
        self.names = _names(self.tensors)

    def called(self, i: int) -> str:
        return f"tensor {i} {self.names[i]!r}"

    def elements(self, i: int) -> Array | None:
        """Return the bytes of a tensor's elements; None for one without."""
        place, count = self.tensors[i]["buffer"], len(self.model.buffers)
        if not 0 <= place < max(count, 1):
            raise InvalidModel(f"{self.model.label}: {self.called(i)} has buffer {place} of {count}")
        raw = self.model.content(self.model.buffers[place]) if count else None
        return np.zeros(0, np.uint8) if raw is None and place and 0 in self.tensors[i].items("shape") else raw


class Model:
    """label: how errors call it. main: its first subgraph. forms: of which tensor of that a value of the graph that was
    read from it is, by name, and whether it has channels first while the file has them last."""

    def __init__(self, data: memoryview, label: str):
        """Raise InvalidModel for what is no such file, or a damaged one."""
        self.data, self.label = data, label
        self.identifier, self.root = decode(data, label)
        self.schema, self.subgraphs = self.root.schema, self.root.items("subgraphs")
        if not self.subgraphs:
            raise InvalidModel(f"{label}: the model has no subgraph")
        self.buffers: list[Table] = self.root.items("buffers")
        self._sections = dict[int, Section]()
        self.forms = dict[str, tuple[str, bool]]()

    @property
    def main(self) -> Section:
        return self.section(0)

    def section(self, index: int) -> Section:
        """Return a subgraph by its number. Raises InvalidModel where there is none."""
        if not 0 <= index < len(self.subgraphs):
            raise InvalidModel(f"{self.label}: there is no subgraph {index} among {len(self.subgraphs)}")
        if index not in self._sections:
            self._sections[index] = Section(self, self.subgraphs[index])
        return self._sections[index]

    def assigned(self) -> set[tuple[str, str] | None]:
        """Return containers and names of variables to which operators assign, but for what initializes them; None for
        one whose name is not known where that is done."""
        found, starting = set[tuple[str, str] | None](), set[int]()
        sections = [self.section(i) for i in range(len(self.subgraphs))]
        for o in (o for s in sections for o in s.operators if self.kind(o) == "CALL_ONCE"):
            starting.update([] if o["builtin_options"] is None else [int(o["builtin_options"]["init_subgraph_index"])])
        for index, section in enumerate(sections):
            handles = dict[int, tuple[str, str]]()
            for o in section.operators if index not in starting else ():
                kind, said = self.kind(o), o["builtin_options"]
                if kind == "VAR_HANDLE" and said is not None:
                    handles.update(
                        (int(i), (said["container"] or "", said["shared_name"] or "")) for i in o.items("outputs")
                    )
                elif kind == "ASSIGN_VARIABLE":
                    found.update(handles.get(int(i)) for i in o.items("inputs")[:1])
        return found

    def code(self, operator: Table) -> Table:
        codes, index = self.root.items("operator_codes"), operator["opcode_index"]
        if index >= len(codes):
            raise InvalidModel(f"{self.label}: an operator has code {index} of {len(codes)}")
        return codes[index]

    def kind(self, operator: Table) -> str:
        """Return the name of an operator. Codes that did not fit into 8 bits stand in a field of their own."""
        code = self.code(operator)
        number = code["builtin_code"] or code["deprecated_builtin_code"]
        name = self.schema.names("BuiltinOperator").get(number, f"operator {number}")
        return f"CUSTOM {code['custom_code']!r}" if name == "CUSTOM" else name

    def content(self, buffer: Table) -> Array | None:
        """Return the bytes of a buffer: in it, or after the tables in large files; None where it has none."""
        if buffer["offset"] > 1:
            end = buffer["offset"] + buffer["size"]
            if end > len(self.data):
                raise InvalidModel(f"{self.label}: a buffer ends at byte {end} of {len(self.data)}")
            return np.frombuffer(self.data, np.uint8, buffer["size"], buffer["offset"])
        held = buffer["data"]
        return held if held is not None and held.size else None

    @property
    def is_quantized(self) -> bool:
        """Return whether operators make tensors of integers that stand for real numbers, which runtimes round to
        them."""
        made = {int(i) for o in self.main.operators for i in o.items("outputs")}
        return any(q is not None and q.items("scale") for q in (self.main.tensors[i]["quantization"] for i in made))

    @property
    def metadata(self) -> list[tuple[str | None, bytes]]:
        """Names and contents, of the entries that have one."""
        known = [e for e in self.root.items("metadata") if e["buffer"] < len(self.buffers)]
        found = [(e["name"], self.content(self.buffers[e["buffer"]])) for e in known]
        return [(name, b"" if raw is None else raw.tobytes()) for name, raw in found]

    def signatures(self, numbers: Mapping[str, int]) -> list[Table]:
        """Return the signatures of the first subgraph in a file where tensors have these numbers by name, but for those
        whose tensors are gone."""
        found = list[Table]()
        for signature in self.root.items("signature_defs"):
            ends = {side: [self._end(e, numbers) for e in signature.items(side)] for side in ("inputs", "outputs")}
            if not signature["subgraph_index"] and all(e is not None for side in ends.values() for e in side):
                found.append(Table("SignatureDef", self.schema, {**signature.fields, **ends}))
        return found

    def _end(self, end: Table, numbers: Mapping[str, int]) -> Table | None:
        place = int(end["tensor_index"])
        names = self.main.names
        number = numbers.get(names[place]) if place < len(names) else None
        return None if number is None else Table("TensorMap", self.schema, {**end.fields, "tensor_index": number})


def assemble(
    around: Table,
    main: Table,
    codes: Sequence[Table],
    buffers: Sequence[Table],
    metadata: Sequence[tuple[str | None, bytes]],
    signatures: Sequence[Table],
) -> Table:
    """Return the root table of a file with one subgraph, and all else as in `around`."""
    schema, dropped = around.schema, ("metadata_buffer", "metadata", "signature_defs")
    held = [Table("Buffer", schema, {"data": np.frombuffer(raw, np.uint8)} if raw else {}) for _, raw in metadata]
    entries = [
        Table("Metadata", schema, {"buffer": len(buffers) + i} | ({} if name is None else {"name": name}))
        for i, (name, _) in enumerate(metadata)
    ]
    fields = {k: v for k, v in around.fields.items() if k not in dropped}
    fields |= {"operator_codes": [*codes], "subgraphs": [main], "buffers": [*buffers, *held]}
    fields |= {"metadata": entries} if entries else {}
    return Table("Model", schema, fields | ({"signature_defs": [*signatures]} if signatures else {}))


def options_of(operator: Table) -> Table | None:
    """Return the options of an operator; None if it has none."""
    found = operator["builtin_options"]
    return operator["builtin_options2"] if found is None else found


def _names(tensors: Sequence[Table]) -> list[str]:
    """Return names of all tensors of a file, which may leave them out, or use one twice."""
    found, seen = list[str](), Counter[str]()
    stated = {t["name"] for t in tensors}
    for i, table in enumerate(tensors):
        name = table["name"] or f"tensor_{i}"
        seen[name] += 1
        while seen[name] > 1 or (not table["name"] and name in stated):
            name = f"{name}_{i}"
            seen[name] += 1
        found.append(name)
    return found

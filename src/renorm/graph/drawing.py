"""A graph as an SVG picture: operands above, results below, one box per node.

Nodes stand in rows, each below all that it reads (longest path); an edge that passes rows goes through a place of its
own in each of them. Rows are ordered by the mean place of what their members are joined to, in sweeps down and up
(Sugiyama, Tagawa, Toda 1981), and then moved towards it as far as their neighbours leave room. Constants are not drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise

from renorm.core.dataclass import dataclass, field
from renorm.graph.ir import Graph, Node, Value

# Pixels.
CHARACTER, LINE = 7.3, 16.0  # of 12 px monospace
GAP, BETWEEN = 22.0, 44.0  # of neighbours in a row, of rows
MARGIN = 14.0
SWEEPS = 12

STYLE = (
    "text{font:12px ui-monospace,monospace;text-anchor:middle;fill:#1b1f24}"
    ".small{font-size:10px;fill:#57606a;paint-order:stroke;stroke:#fff;stroke-width:3px}"
    "rect+text+.small{stroke:none}"
    "path{fill:none;stroke:#8c959f;stroke-width:1.2}"
    "rect{stroke:#57606a;stroke-width:1}.value{fill:#f6f8fa}.op{fill:#ddf4ff}.norm{fill:#fff1c2}"
)


@dataclass(eq=False)
class _Place:
    """What stands in a row: a node, an input or result of the graph, or (neither) an edge that passes."""

    lines: tuple[str, ...] = ()
    kind: str = ""
    title: str = ""
    above: list[_Place] = field(default_factory=list)  # what it is joined to in the row above
    below: list[_Place] = field(default_factory=list)
    x: float = 0.0  # of its middle
    y: float = 0.0

    @property
    def width(self) -> float:
        return max((CHARACTER * len(line) for line in self.lines), default=-10.0) + 18.0

    @property
    def height(self) -> float:
        return LINE * len(self.lines) + 8.0 if self.lines else 0.0


def svg(graph: Graph) -> str:
    """The picture as text, the same for the same graph."""
    rows, edges = _rows(graph)
    for sweep in range(SWEEPS):
        _order(rows, down=sweep % 2 == 0)
    height = _arrange(rows)
    width = max((p.x + p.width / 2 for row in rows for p in row), default=0.0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + MARGIN:.0f}" height="{height + MARGIN:.0f}" '
        f'viewBox="0 0 {width + MARGIN:.0f} {height + MARGIN:.0f}" role="img">',
        f"<title>{escape(graph.name)}</title><style>{STYLE}</style>",
        '<marker id="end" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="7" markerHeight="7" orient="auto">'
        '<polygon points="0,0 6,3 0,6" fill="#8c959f"/></marker>',
        *(_edge(places, labels) for places, labels in edges),
        *(_box(p) for row in rows for p in row if p.lines),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _rows(graph: Graph) -> tuple[list[list[_Place]], list[tuple[list[_Place], list[str]]]]:
    """Places by row; edges as the places that they go through, with the names of their values where the producer has
    several."""
    depth: dict[Node, int] = {}
    for node in graph.nodes:
        depth[node] = 1 + max((depth[v.producer] for v in _read(node) if v.producer), default=0)
    bottom = 1 + max(depth.values(), default=0)
    rows: list[list[_Place]] = [[] for _ in range(bottom + 1)]
    place: dict[Node | Value, _Place] = {}
    readers = graph.user_map()

    def put(row: int, of: Node | Value, made: _Place) -> None:
        place[of] = made
        rows[row].append(made)

    at: dict[Node | Value, int] = {**depth}
    for value in graph.inputs:
        first = min((depth[n] for n in readers.get(value, [])), default=bottom)
        at[value] = first - 1  # next to its first reader
        put(first - 1, value, _value_place(value, "input"))
    for node in graph.nodes:
        kind = "norm" if node.op.is_normalization else "op"
        lines = (node.op.name, *([node.name] if node.name != node.op.name else []))
        put(depth[node], node, _Place(lines, kind, repr(node)))
    edges: list[tuple[list[_Place], list[str]]] = []

    def join(start: Node | Value, end: _Place, row: int, labels: list[str]) -> None:
        through = [place[start]]
        for between in range(at[start] + 1, row):
            through.append(_Place())
            rows[between].append(through[-1])
        through.append(end)
        for a, b in pairwise(through):
            a.below.append(b)
            b.above.append(a)
        edges.append((through, labels))

    for node in graph.nodes:
        read: dict[Node | Value, list[str]] = {}
        for value in dict.fromkeys(_read(node)):
            is_one_of_several = value.producer and len(value.producer.outputs) > 1
            read.setdefault(value.producer or value, []).extend([value.name] if is_one_of_several else [])
        for start, names in read.items():
            join(start, place[node], depth[node], names)
    for value in graph.outputs:
        end = _value_place(value, "output")
        rows[bottom].append(end)
        if not value.is_constant:
            join(value.producer or value, end, bottom, [])
    return rows, edges


def _read(node: Node) -> Iterable[Value]:
    return (v for v in node.inputs if v is not None and not v.is_constant)


def _value_place(value: Value, role: str) -> _Place:
    return _Place((value.name, str(value.type)), "value", f"{role} {value.name}: {value.type}")


def _order(rows: Sequence[list[_Place]], down: bool) -> None:
    """One sweep: each row by the mean place of what its members are joined to in the row before."""
    for before, row in pairwise(rows) if down else pairwise(rows[::-1]):
        index = {id(p): i / max(1, len(before) - 1) for i, p in enumerate(before)}
        own = {id(p): i / max(1, len(row) - 1) for i, p in enumerate(row)}

        def mean(p: _Place, index: dict[int, float] = index, own: dict[int, float] = own, down: bool = down) -> float:
            joined = [index[id(q)] for q in (p.above if down else p.below)]
            return sum(joined) / len(joined) if joined else own[id(p)]

        row.sort(key=mean)


def _arrange(rows: Sequence[list[_Place]]) -> float:
    """Gives each place its x and y; returns where the last row ends."""
    y = MARGIN
    for row in rows:
        tall = max((p.height for p in row), default=0.0)
        for p in row:
            p.y = y + tall / 2
        y += tall + BETWEEN
        _spread(row, [0.0] * len(row))
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 == 0 else rows[::-1]:
            _spread(row, [_middle([q.x for q in (*p.above, *p.below)], p.x) for p in row])
    left = min((p.x - p.width / 2 for row in rows for p in row), default=0.0)
    for row in rows:
        for p in row:
            p.x += MARGIN - left
    return y - BETWEEN


def _middle(xs: Sequence[float], default: float) -> float:
    return sum(xs) / len(xs) if xs else default


def _spread(row: Sequence[_Place], wanted: Sequence[float]) -> None:
    """Places as near as possible, in the square, to where they want to be, in order and without touching: runs that
    would overlap are merged and stand round the mean of what their members want (pool adjacent violators)."""
    runs: list[tuple[list[_Place], float, float]] = []  # members, middle of the first as the run wants it, width so far
    for p, x in zip(row, wanted):
        members, start, extent = [p], x, 0.0
        while runs:
            before, begin, length = runs[-1]
            step = length + (before[-1].width + members[0].width) / 2 + GAP
            if begin + step <= start:
                break
            start = (begin * len(before) + (start - step) * len(members)) / (len(before) + len(members))
            members, extent = [*before, *members], step + extent
            runs.pop()
        runs.append((members, start, extent))
    for members, start, _ in runs:
        x = start
        for p, after in zip(members, [*members[1:], None]):
            p.x = x
            if after is not None:
                x += (p.width + after.width) / 2 + GAP


def _ends(p: _Place, joined: Sequence[_Place]) -> dict[int, float]:
    """Where on the border of `p` its edges to others end, from left to right as the others stand."""
    there = sorted(joined, key=lambda q: q.x)
    wide = 0.7 * p.width if p.lines else 0.0
    return {id(q): p.x + wide * ((i + 1) / (len(there) + 1) - 0.5) for i, q in enumerate(there)}


def _edge(places: Sequence[_Place], labels: Sequence[str]) -> str:
    path = list[str]()
    for a, b in pairwise(places):
        x, y = _ends(a, a.below)[id(b)], a.y + a.height / 2
        to, end = _ends(b, b.above)[id(a)], b.y - b.height / 2
        path.append(f"{'' if path else f'M{x:.1f},{y:.1f} '}C{x:.1f},{(y + end) / 2:.1f} {to:.1f},{(y + end) / 2:.1f}")
        path.append(f"{to:.1f},{end:.1f}")
    first, second = places[0], places[1]
    top, bottom = first.y + first.height / 2, second.y - second.height / 2
    middle = (_ends(first, first.below)[id(second)] + _ends(second, second.above)[id(first)]) / 2
    texts = (
        f'<text class="small" x="{middle:.1f}" y="{(top + bottom) / 2 + 10 * (i - (len(labels) - 1) / 2) + 3:.1f}">'
        f"{escape(label)}</text>"
        for i, label in enumerate(labels)
    )
    return f'<path d="{" ".join(path)}" marker-end="url(#end)"/>{"".join(texts)}'


def _box(p: _Place) -> str:
    left, top = p.x - p.width / 2, p.y - p.height / 2
    radius = p.height / 2 if p.kind == "value" else 3
    texts = "".join(
        f'<text{"" if i == 0 else " class=" + chr(34) + "small" + chr(34)} x="{p.x:.1f}" '
        f'y="{top + 4 + LINE * (i + 0.8):.1f}">{escape(line)}</text>'
        for i, line in enumerate(p.lines)
    )
    return (
        f'<g><title>{escape(p.title)}</title><rect class="{p.kind}" x="{left:.1f}" y="{top:.1f}" '
        f'width="{p.width:.1f}" height="{p.height:.1f}" rx="{radius:.1f}"/>{texts}</g>'
    )

"""A graph as an SVG picture: operands above, results below, a box for a node, an oval for a value.

Values that are drawn are inputs, outputs, and what somebody reads of a node with several results; any other edge is the
only result of the node where it begins. Constants are not drawn. What is drawn stands in rows, each node below all that
it reads (longest path); an edge that passes rows goes through a place of its own in each of them. Rows are ordered by
the mean place of what their members are joined to, in sweeps down and up (Sugiyama, Tagawa, Toda 1981), and then moved
towards it as far as their neighbours leave room. So no edge touches a box but those that it joins, as long as the
edges do not pass more rows in all than anybody would look at.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise

from renorm.core.dataclass import dataclass, field
from renorm.graph.ir import Graph, Node, Value

# Pixels.
CHARACTER, LINE = 7.3, 16.0  # of 12 px monospace
GAP, BETWEEN = 22.0, 44.0  # of neighbours in a row, of rows
MARGIN = 14.0
SWEEPS = 12
PASSING = 20_000  # places of edges that pass rows, in all: longer ones go straight, behind what they meet

# Colours by class of text and fill; of strokes. A page behind the picture lets it be read on any background, and a
# reader who asks for dark colours has them.
LIGHT = {"page": "#fff", "value": "#f6f8fa", "op": "#ddf4ff", "norm": "#fff1c2", "text": "#1b1f24", "small": "#57606a"}
DARK = {"page": "#111", "value": "#1b2129", "op": "#0c2d4d", "norm": "#4b3a00", "text": "#e6edf3", "small": "#a0a8b2"}
EDGES = "#6e7781", "#8b949e"


def _colours(fills: dict[str, str], edge: str) -> str:
    edges = f"path,rect{{stroke:{edge}}}polygon{{fill:{edge}}}.page{{stroke:none}}"
    return edges + "".join(f"{'' if kind == 'text' else '.'}{kind}{{fill:{fill}}}" for kind, fill in fills.items())


STYLE = (
    "text{font:12px ui-monospace,Menlo,Consolas,monospace;text-anchor:middle}.small{font-size:10px}"
    "path{fill:none;stroke-width:1.2}rect{stroke-width:1}"
    + _colours(LIGHT, EDGES[0])
    + f"@media(prefers-color-scheme:dark){{{_colours(DARK, EDGES[1])}}}"
)


@dataclass(eq=False)
class _Place:
    """One place of a row: a node, a value, or (neither) an edge that passes."""

    lines: tuple[str, ...] = ()
    kind: str = ""
    title: str = ""
    above: list[_Place] = field(default_factory=list)  # what it is joined to in the row above
    below: list[_Place] = field(default_factory=list)
    x: float = 0.0  # of its middle
    y: float = 0.0
    height: float = 0.0

    @property
    def width(self) -> float:
        return max((CHARACTER * len(line) for line in self.lines), default=-10.0) + 18.0

    @property
    def top(self) -> float:
        return self.y - self.height / 2

    @property
    def bottom(self) -> float:
        return self.y + self.height / 2


def svg(graph: Graph) -> str:
    """The picture as text, the same for the same graph."""
    rows, edges = _rows(graph)
    _order(rows)
    height = _arrange(rows) + MARGIN
    width = max((p.x + p.width / 2 for row in rows for p in row), default=0.0) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
        f"<title>{escape(graph.name)}</title><style>{STYLE}</style>",
        '<marker id="end" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="7" markerHeight="7" orient="auto">'
        '<polygon points="0,0 6,3 0,6"/></marker>',
        f'<rect class="page" width="{width:.0f}" height="{height:.0f}" rx="6"/>',
        *_paths(edges),
        *(_box(p) for row in rows for p in row if p.lines),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _rows(graph: Graph) -> tuple[list[list[_Place]], list[list[_Place]]]:
    """Places by row; edges as the places that they go through."""
    readers = graph.user_map()
    depth: dict[Node | Value, int] = {}
    shown: list[Value] = []  # results that stand between their producer, which has several, and their readers
    for node in graph.nodes:
        depth[node] = 1 + max((depth.get(_start(v, depth), 0) for v in _read(node)), default=0)
        results = [v for v in node.outputs if readers.get(v)] if len(node.outputs) > 1 else []
        depth |= dict.fromkeys(results, depth[node] + 1)
        shown += results
    bottom = 1 + max(depth.values(), default=0)
    for value in graph.inputs:  # next to its first reader
        depth[value] = min((depth[n] for n in readers.get(value, [])), default=bottom) - 1
    passed = [depth[n] - depth[start] - 1 for n in graph.nodes for start in _starts(n, depth)]
    passed += [bottom - depth[_start(v, depth)] - 1 for v in graph.outputs if not v.is_constant]
    far = _far(passed)

    rows: list[list[_Place]] = [[] for _ in range(bottom + 1)]
    place: dict[Node | Value, _Place] = {}
    edges: list[list[_Place]] = []

    def put(of: Node | Value, made: _Place) -> None:
        place[of] = made
        rows[depth[of]].append(made)

    def join(start: Node | Value, end: _Place, row: int) -> None:
        if row - depth[start] - 1 > far:
            edges.append([place[start], end])
            return
        through = [place[start]]
        for between in range(depth[start] + 1, row):
            through.append(_Place())
            rows[between].append(through[-1])
        through.append(end)
        for a, b in pairwise(through):
            a.below.append(b)
            b.above.append(a)
        edges.append(through)

    for value in graph.inputs:
        put(value, _value_place(value, "input"))
    for node in graph.nodes:
        kind = "norm" if node.op.is_normalization else "op"
        put(node, _Place((node.op.name, *([node.name] if node.name != node.op.name else [])), kind, repr(node)))
    for value in shown:
        put(value, _value_place(value, "value"))
        assert value.producer is not None
        join(value.producer, place[value], depth[value])
    for node in graph.nodes:
        for start in _starts(node, depth):
            join(start, place[node], depth[node])
    for value in graph.outputs:
        end = _value_place(value, "output")
        rows[bottom].append(end)
        if not value.is_constant:
            join(_start(value, depth), end, bottom)
    return rows, edges


def _start(value: Value, depth: Mapping[Node | Value, int]) -> Node | Value:
    """Where its edges begin: at the value where it has a place of its own, else at its producer."""
    return value if value in depth or value.producer is None else value.producer


def _starts(node: Node, depth: Mapping[Node | Value, int]) -> Iterable[Node | Value]:
    """Return where the edges to a node begin, each once."""
    return dict.fromkeys(_start(v, depth) for v in _read(node))


def _far(passed: Sequence[int]) -> int:
    """Return how many rows an edge may pass, of edges that would pass so many each."""
    left = PASSING
    for count in sorted(passed):
        left -= count
        if left < 0:
            return count - 1
    return max(passed, default=0)


def _read(node: Node) -> Iterable[Value]:
    return (v for v in node.inputs if v is not None and not v.is_constant)


def _value_place(value: Value, role: str) -> _Place:
    return _Place((value.name, str(value.type)), "value", f"{role} {value.name}: {value.type}")


def _order(rows: list[list[_Place]]) -> None:
    """Puts each row in order: of all sweeps, down and up in turns, the one after which fewest edges cross."""
    best, least = [list(row) for row in rows], _crossings(rows)
    for sweep in range(SWEEPS):
        _sweep(rows, down=sweep % 2 == 0)
        if (crossings := _crossings(rows)) < least:
            best, least = [list(row) for row in rows], crossings
    rows[:] = best


def _sweep(rows: Sequence[list[_Place]], down: bool) -> None:
    """Each row by the mean place of what its members are joined to in the row before."""
    for before, row in pairwise(rows) if down else pairwise(rows[::-1]):
        index = {id(p): i / max(1, len(before) - 1) for i, p in enumerate(before)}
        own = {id(p): i / max(1, len(row) - 1) for i, p in enumerate(row)}

        def mean(p: _Place, index: dict[int, float] = index, own: dict[int, float] = own, down: bool = down) -> float:
            joined = [index[id(q)] for q in (p.above if down else p.below)]
            return sum(joined) / len(joined) if joined else own[id(p)]

        row.sort(key=mean)


def _crossings(rows: Sequence[Sequence[_Place]]) -> int:
    """How many pairs of edges between neighbouring rows cross: pairs that end in the other order than they begin."""
    count = 0
    for row, after in pairwise(rows):
        index = {id(p): i for i, p in enumerate(after)}
        ends = list[int]()  # of the edges so far, from left to right as they begin, sorted
        for p in row:
            own = sorted(index[id(q)] for q in p.below)
            count += sum(len(ends) - bisect_right(ends, end) for end in own)
            for end in own:
                insort(ends, end)
    return count


def _arrange(rows: Sequence[list[_Place]]) -> float:
    """Gives each place its x and y; returns where the last row ends."""
    y = MARGIN
    for row in rows:
        tall = max((LINE * len(p.lines) + 8.0 for p in row if p.lines), default=0.0)
        for p in row:
            p.y = y + tall / 2
            p.height = LINE * len(p.lines) + 8.0 if p.lines else tall  # what passes goes straight through the row
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


def _paths(edges: Iterable[Sequence[_Place]]) -> Iterable[str]:
    """All edges; of each place where they end on it is found once."""
    below, above = dict[int, dict[int, float]](), dict[int, dict[int, float]]()
    for places in edges:
        for p in places:
            if id(p) not in below:
                below[id(p)], above[id(p)] = _ends(p, p.below), _ends(p, p.above)
        yield _edge(places, below, above)


def _edge(
    places: Sequence[_Place], below: Mapping[int, Mapping[int, float]], above: Mapping[int, Mapping[int, float]]
) -> str:
    path = list[str]()
    for a, b in pairwise(places):
        x, to = below[id(a)].get(id(b), a.x), above[id(b)].get(id(a), b.x)
        middle = (a.bottom + b.top) / 2
        path.append(f"{'L' if path else 'M'}{x:.1f},{a.bottom:.1f}")
        path.append(f"C{x:.1f},{middle:.1f} {to:.1f},{middle:.1f} {to:.1f},{b.top:.1f}")
    return f'<path d="{" ".join(path)}" marker-end="url(#end)"/>'


def _box(p: _Place) -> str:
    left = p.x - p.width / 2
    radius = p.height / 2 if p.kind == "value" else 3
    texts = "".join(
        f'<text{"" if i == 0 else " class=" + chr(34) + "small" + chr(34)} x="{p.x:.1f}" '
        f'y="{p.top + 4 + LINE * (i + 0.8):.1f}">{escape(line)}</text>'
        for i, line in enumerate(p.lines)
    )
    return (
        f'<g><title>{escape(p.title)}</title><rect class="{p.kind}" x="{left:.1f}" y="{p.top:.1f}" '
        f'width="{p.width:.1f}" height="{p.height:.1f}" rx="{radius:.1f}"/>{texts}</g>'
    )

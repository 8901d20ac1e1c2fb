"""Pictures of graphs: well-formed, everything in them, nothing on top of anything else."""

from __future__ import annotations

import re
import xml.etree.ElementTree as xml
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from renorm import ops
from renorm.graph.drawing import svg
from renorm.graph.ir import Graph

SVG = "{http://www.w3.org/2000/svg}"


def boxes(picture: xml.Element) -> dict[str, tuple[float, float, float, float]]:
    """left, top, right, bottom by title."""
    found = {}
    for group in picture.iter(f"{SVG}g"):
        title, rect = group.findtext(f"{SVG}title"), group.find(f"{SVG}rect")
        assert title is not None
        assert rect is not None
        x, y, width, height = (float(rect.attrib[a]) for a in ("x", "y", "width", "height"))
        found[title] = x, y, x + width, y + height
    return found


def on(path: xml.Element) -> list[tuple[float, float]]:
    """Places along an edge: of its lines the ends, of its curves (Bezier) many."""
    found: list[tuple[float, float]] = []
    for kind, numbers in re.findall(r"([MLC])([^MLC]*)", path.attrib["d"]):
        n = [float(i) for i in re.findall(r"-?[\d.]+", numbers)]
        points = [found[-1], *zip(n[::2], n[1::2])] if found else [(n[0], n[1])]
        if kind != "C":
            found.append(points[-1])
            continue
        for t in (i / 20 for i in range(1, 21)):
            weights = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3
            x, y = (sum(w * p[axis] for w, p in zip(weights, points)) for axis in (0, 1))
            found.append((x, y))
    return found


def box_at(place: tuple[float, float], at: dict[str, Any], edge: int) -> str:
    """The box on whose upper (1) or lower (3) border a place lies."""
    found = [t for t, b in at.items() if b[0] <= place[0] <= b[2] and abs(b[edge] - place[1]) <= 0.2]
    assert len(found) == 1, (place, found)
    return found[0]


@st.composite
def graphs(draw: Any) -> Graph:
    graph = Graph("random")
    values = [graph.input(f"x{i}", "float32", (2, 4)) for i in range(draw(st.integers(1, 3)))]
    halves = []
    for _ in range(draw(st.integers(0, 12))):
        read = [draw(st.sampled_from(values)) for _ in range(draw(st.integers(1, 2)))]
        if len(read) == 2:
            values.append(ops.add(*read))
        elif draw(st.booleans()):
            values.append(ops.relu(*read))
        else:
            halves += ops.split(*read, num_outputs=2, axis=1)
            values.append(ops.concat(*draw(st.permutations(halves[-2:])), axis=1))
    graph.outputs = draw(st.lists(st.sampled_from(values + halves), min_size=1, max_size=3, unique_by=id))
    return graph


@given(graphs())
def test_edges_join_what_they_should_and_nothing_lies_on_anything_else(graph: Graph):
    picture = xml.fromstring(svg(graph))
    at = boxes(picture)
    several = [v for n in graph.nodes if len(n.outputs) > 1 for v in n.outputs if graph.user_map().get(v)]
    assert len(at) == len(graph.nodes) + len(graph.inputs) + len(graph.outputs) + len(several)
    placed = list(at.values())
    for i, a in enumerate(placed):
        assert a[0] >= 0
        assert a[2] <= float(picture.attrib["width"])
        assert a[3] <= float(picture.attrib["height"])
        for b in placed[:i]:
            assert a[2] < b[0] or b[2] < a[0] or a[3] < b[1] or b[3] < a[1]

    def title(v: Any) -> str:
        if v in several:
            return f"value {v.name}: {v.type}"
        return repr(v.producer) if v.producer else f"input {v.name}: {v.type}"

    edges = [on(path) for path in picture.iter(f"{SVG}path")]
    drawn = sorted((box_at(edge[0], at, 3), box_at(edge[-1], at, 1)) for edge in edges)
    read = {(title(v), repr(n)) for n in graph.nodes for v in n.inputs if v is not None}
    read |= {(repr(v.producer), title(v)) for v in several}
    given_out = {(title(v), f"output {v.name}: {v.type}") for v in graph.outputs}
    assert drawn == sorted(read | given_out)
    for edge in edges:
        assert all(above[1] <= below[1] for above, below in pairwise(edge))
        assert not any(b[0] < x < b[2] and b[1] + 0.2 < y < b[3] - 0.2 for x, y in edge for b in placed)
    assert svg(graph) == svg(graph)


def test_names_are_escaped_and_results_of_several_are_named():
    graph = Graph('<a & "b">')
    x = graph.input("<x>", "float32", (4, 3))
    first, _ = ops.split(x, num_outputs=2, axis=0)
    graph.outputs = [ops.relu(first, name="<&>")]
    picture = xml.fromstring(svg(graph))
    texts = [t.text for t in picture.iter(f"{SVG}text")]
    assert "<x>" in texts
    assert "<&>" in texts
    assert first.name in texts
    assert picture.findtext(f"{SVG}title") == '<a & "b">'


def test_an_empty_graph_is_a_picture():
    assert xml.fromstring(svg(Graph("nothing"))).tag == f"{SVG}svg"


def test_edges_past_very_many_rows_go_straight() -> None:
    g = Graph()
    x = g.input("x", "float32", (4,))
    made = [x]
    for _ in range(400):
        made.append(ops.relu(made[-1]))
    g.outputs = [ops.sum(made)]
    picture = svg(g)
    assert len(picture) < 4_000_000  # 80,000 places that edges pass, of some 100 characters each
    root = xml.fromstring(picture)
    assert len(boxes(root)) == 403
    assert len([*root.iter(f"{SVG}path")]) == 400 + 401 + 1

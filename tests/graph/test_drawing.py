"""Drawings of graphs: everything is in them once, joined as in the graph, in text that Graphviz and Mermaid read."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from renorm import ops
from renorm.errors import InvalidInput
from renorm.graph import drawing
from renorm.graph.drawing import dot, mermaid
from renorm.graph.ir import Graph, Group

Drawn = tuple[dict[str, str], list[tuple[str, str]], dict[str, list[str]]]  # labels, edges, members of frames


def of_dot(text: str) -> Drawn:
    """What Graphviz would read, by the grammar of DOT as far as it is used."""
    labels, edges, frames, inside = {}, [], dict[str, list[str]](), ""
    head, *lines, tail = text.splitlines()
    assert re.fullmatch(r'digraph "(\\.|[^"\\])*" \{', head)
    assert tail == "}"
    for line in map(str.strip, lines):
        if edge := re.fullmatch(r"(\w+) -> (\w+)", line):
            edges.append((edge[1], edge[2]))
        elif node := re.fullmatch(r'(\w+) \[label=("(?:\\.|[^"\\])*") shape=(?:oval|box) fillcolor="#\w{6}"\]', line):
            labels[node[1]] = json.loads(node[2])
            frames.setdefault(inside, []).append(node[1])
        elif label := re.fullmatch(r'label=("(?:\\.|[^"\\])*")', line):
            inside = json.loads(label[1])
        elif line == "}":
            inside = ""
        else:
            assert line.startswith(("node [", "subgraph cluster_")), line
    return labels, edges, frames


def of_mermaid(text: str) -> Drawn:
    """What Mermaid would read: a number between # and ; is a character of a label."""
    labels, edges, frames, inside = {}, [], dict[str, list[str]](), ""
    assert text.startswith("flowchart TD\n")

    def label(quoted: str) -> str:
        assert not set('<>"`') & set(quoted.replace("<br>", ""))
        return html.unescape(quoted.replace("<br>", "\n").replace("#", "&#"))

    for line in map(str.strip, text.splitlines()[1:]):
        if edge := re.fullmatch(r"(\w+) --> (\w+)", line):
            edges.append((edge[1], edge[2]))
        elif node := re.fullmatch(r'(\w+)(?:\["([^"]*)"\]|\(\["([^"]*)"\]\)):::\w+', line):
            labels[node[1]] = label(node[2] or node[3])
            frames.setdefault(inside, []).append(node[1])
        elif frame := re.fullmatch(r'subgraph k\d+\["([^"]*)"\]', line):
            inside = label(frame[1])
        elif line == "end":
            inside = ""
        else:
            assert line.startswith("classDef "), line
    return labels, edges, frames


READ = {dot: of_dot, mermaid: of_mermaid}
form = pytest.mark.parametrize("draw", READ)


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
    cut = draw(st.integers(0, len(graph.nodes)))
    graph.groups = [Group(f"kernel{i}", list(part)) for i, part in enumerate((graph.nodes[:cut], graph.nodes[cut:]))]
    return graph


@form
@given(graph=graphs())
def test_everything_is_drawn_once_and_joined(draw: Any, graph: Graph) -> None:
    labels, edges, frames = READ[draw](draw(graph))
    makers = {v: n.name for n in graph.nodes if len(n.outputs) > 1 for v in n.outputs if graph.user_map().get(v)}
    values = [*graph.inputs, *makers, *graph.outputs]
    expected = [f"{v.name}\n{v.type}" for v in values]
    expected += [n.op.name if n.op.name == n.name else f"{n.op.name}\n{n.name}" for n in graph.nodes]
    assert sorted(labels.values()) == sorted(expected)

    def told(v: Any) -> str:
        return f"{v.name}\n{v.type}" if v in makers or v.producer is None else v.producer.name

    names = {key: label if key[0] != "n" or "_" in key else label.splitlines()[-1] for key, label in labels.items()}
    read = {(told(v), n.name) for n in graph.nodes for v in n.inputs if v is not None}
    read |= {(maker, told(v)) for v, maker in makers.items()}
    read |= {(told(v), f"{v.name}\n{v.type}") for v in graph.outputs}
    assert sorted((names[a], names[b]) for a, b in edges) == sorted(read)
    inside = {kernel: [names[key] for key in members] for kernel, members in frames.items() if kernel}
    assert inside == {g.name: [n.name for n in g.nodes] for g in graph.groups if g.nodes}
    assert draw(graph) == draw(graph)


@form
def test_characters_that_mean_something_are_told_as_they_are(draw: Any) -> None:
    graph = Graph('<a & "b">\\')
    x = graph.input('<x>"];`#35;\\', "float32", (4, 3))
    first, _ = ops.split(x, num_outputs=2, axis=0)
    graph.outputs = [ops.relu(first, name="größe <&> 数")]
    labels, _, _ = READ[draw](draw(graph))
    assert f'<x>"];`#35;\\\n{x.type}' in labels.values()
    assert "relu\ngröße <&> 数" in labels.values()
    assert f"{first.name}\n{first.type}" in labels.values()


@form
def test_an_empty_graph_and_a_long_one_are_drawn(draw: Any) -> None:
    assert READ[draw](draw(Graph("nothing"))) == ({}, [], {})
    g = Graph()
    made = [g.input("x", "float32", (4,))]
    for _ in range(400):
        made.append(ops.relu(made[-1]))
    g.outputs = [ops.sum(made)]
    labels, edges, _ = READ[draw](draw(g))
    assert (len(labels), len(edges)) == (403, 400 + 401 + 1)


def test_the_suffix_of_a_file_says_the_form() -> None:
    assert drawing.text(Graph("g"), ".gv") == dot(Graph("g"))
    assert drawing.text(Graph("g"), ".mmd") == mermaid(Graph("g"))
    with pytest.raises(InvalidInput, match=r"\.svg\n.*known: \.dot, \.gv, \.mmd"):
        drawing.text(Graph("g"), ".svg")

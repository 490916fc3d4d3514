"""A program that was damaged is refused or runs; nothing in between, whatever the damage."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from finsy.proto import p4i
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from ringstep.softswitch.engine import Switch, compile_pipeline
from ringstep.softswitch.errors import PipelineError
from ringstep.softswitch.p4rt.errors import P4RuntimeError
from ringstep.softswitch.p4rt.schema import build_schema

DATA = Path(__file__).parent / "data"
DOCUMENTS = {name: json.loads((DATA / f"{name}.json").read_text()) for name in ("copies",)}
FRAMES = [bytes(range(code, code + 20)) for code in (0, 1, 200)]

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 600), st.sampled_from(["", "x", "0x1", "field"])
)
values = st.one_of(scalars, st.builds(list), st.builds(dict), st.lists(scalars, max_size=2))


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every item below `node`, but for notes on the source."""
    found = []
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, item in items:
        if key == "source_info":
            continue
        found.append((*path, key))
        if isinstance(item, dict | list):
            found += places(item, (*path, key))
    return found


PLACES = {name: places(document) for name, document in DOCUMENTS.items()}


@pytest.mark.parametrize("name", DOCUMENTS)
@given(data=st.data())
def test_a_damaged_program_is_refused_politely_or_runs(name: str, data: st.DataObject) -> None:
    document = copy.deepcopy(DOCUMENTS[name])
    for path in data.draw(st.lists(st.sampled_from(PLACES[name]), min_size=1, max_size=2)):
        node = document
        try:
            for key in path[:-1]:
                node = node[key]
            if data.draw(st.booleans()):
                node[path[-1]] = data.draw(values)
            else:
                del node[path[-1]]
        except (KeyError, IndexError, TypeError):
            # The first damage took the place of the second away.
            continue
    try:
        pipeline = compile_pipeline(p4i.P4Info(), json.dumps(document))
    except PipelineError:
        return
    switch = Switch()
    switch.commit(pipeline)
    for frame in FRAMES:
        switch.receive(1, frame, 0)
    switch.advance(10)


@given(data=st.data())
def test_a_damaged_p4info_is_refused_politely_or_fits(data: st.DataObject) -> None:
    lines = (DATA / "copies.p4info.txtpb").read_text().splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))
    kind = data.draw(st.sampled_from(["drop", "double", "number"]))
    if kind == "drop":
        del lines[at]
    elif kind == "double":
        lines.insert(at, lines[at])
    else:
        head, colon, tail = lines[at].partition(":")
        lines[at] = f"{head}: {data.draw(st.integers(0, 1 << 20))}" if colon else head + tail
    try:
        info = text_format.Parse("\n".join(lines), p4i.P4Info())
    except text_format.ParseError:
        return
    try:
        build_schema(info)
        compile_pipeline(info, (DATA / "copies.json").read_text())
    except (PipelineError, P4RuntimeError):
        return

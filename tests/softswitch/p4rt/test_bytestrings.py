"""Bytestrings: what is accepted, what is refused, and that replies are canonical."""

from __future__ import annotations

import grpc
import pytest
from finsy.proto import p4r
from hypothesis import given
from hypothesis import strategies as st
from p4rt_rig import NAMES, Client, details, entry

from ringstep.softswitch.p4rt import bytestrings
from ringstep.softswitch.p4rt.errors import Code, P4RuntimeError


# The examples of the specification's tables "Valid" and "Invalid Bytestring Encoding" for bit<W>.
@pytest.mark.parametrize(
    ("width", "data", "value"),
    [
        (8, b"\x63", 0x63),
        (16, b"\x00\x63", 0x63),
        (16, b"\x63", 0x63),
        (16, b"\x30\x64", 0x3064),
        (16, b"\x00\x30\x64", 0x3064),
        (12, b"\x00\x63", 0x63),
        (12, b"\x00\x00\x63", 0x63),
    ],
)
def test_valid_encodings(width: int, data: bytes, value: int) -> None:
    assert bytestrings.decode(data, width, "field") == value


@pytest.mark.parametrize(
    ("width", "data"),
    [
        (8, b"\x01\x63"),
        (8, b""),
        (16, b"\x01\x00\x63"),
        (12, b"\x10\x63"),
        (12, b"\x01\x00\x63"),
        (12, b"\x00\x40\x63"),
    ],
)
def test_invalid_encodings_are_out_of_range(width: int, data: bytes) -> None:
    with pytest.raises(P4RuntimeError, match="the field: ") as caught:
        bytestrings.decode(data, width, "the field")
    assert caught.value.code is Code.OUT_OF_RANGE


@given(value=st.integers(0, (1 << 128) - 1), padding=st.integers(0, 4))
def test_encoding_is_shortest_and_padding_is_ignored(value: int, padding: int) -> None:
    data = bytestrings.encode(value)
    assert len(data) == 1 or data[0] != 0
    assert bytestrings.decode(bytes(padding) + data, 128, "field") == value


def test_padded_write_reads_back_canonical(client: Client) -> None:
    padded = p4r.FieldMatch(field_id=1, exact=p4r.FieldMatch.Exact(value=bytes(6) + b"\x2a"))
    action = p4r.TableAction(action=p4r.Action(action_id=NAMES["forward"]))
    action.action.params.add(param_id=1, value=b"\x00\x00\x07")
    client.insert(entry("l2", [padded], action))
    [found] = client.read(entry("l2"))
    assert found.table_entry.match[0].exact.value == b"\x2a"
    assert found.table_entry.action.action.params[0].value == b"\x07"


def test_padded_key_names_the_same_entry(client: Client) -> None:
    for data, code in ((b"\x2a", None), (b"\x00\x2a", Code.ALREADY_EXISTS)):
        match = p4r.FieldMatch(field_id=1, exact=p4r.FieldMatch.Exact(value=data))
        one = entry("l2", [match], NAMES.does("forward", 1))
        if code is None:
            client.insert(one)
            continue
        with pytest.raises(grpc.RpcError) as caught:
            client.insert(one)
        assert details(caught.value)[0].canonical_code == code

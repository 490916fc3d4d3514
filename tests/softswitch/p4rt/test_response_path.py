"""How failures travel: per-update details, their order, and the metadata size limit."""

from __future__ import annotations

import grpc
import pytest
from finsy.proto import p4r
from hypothesis import given
from hypothesis import strategies as st
from p4rt_rig import NAMES, Client, Rig, details, entry, exact

from ringstep.softswitch.p4rt.errors import (
    DEFAULT_BUDGET,
    RAISED_BUDGET,
    Code,
    P4RuntimeError,
    batch_status,
    invalid,
)

FINSY_OPTIONS = (("grpc.max_metadata_size", 64 * 1024),)


def l2(address: int, port: int = 1, table: str = "l2") -> p4r.Entity:
    return entry(table, [exact(1, address)], NAMES.does("forward", port))


def test_batch_without_failure_is_ok(client: Client) -> None:
    client.insert(l2(1), l2(2))


def test_each_update_has_its_detail_in_order(client: Client) -> None:
    client.insert(l2(1))
    with pytest.raises(grpc.RpcError) as caught:
        client.insert(l2(1), l2(2), l2(3, port=1 << 9))
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert "2 of 3 updates failed; first: update 0: ALREADY_EXISTS" in caught.value.details()
    assert [Code(one.canonical_code) for one in details(caught.value)] == [
        Code.ALREADY_EXISTS,
        Code.OK,
        Code.OUT_OF_RANGE,
    ]
    assert "parameter port" in details(caught.value)[2].message
    assert len(client.read(entry("l2"))) == 2


def test_rpc_wide_errors_carry_no_details(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.insert(l2(1), device_id=4)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert "device id 4" in caught.value.details()
    assert "device 1" in caught.value.details()
    with pytest.raises(AssertionError, match="no grpc-status-details-bin"):
        details(caught.value)


def test_no_pipeline_is_failed_precondition(rig: Rig) -> None:
    client = rig.primary(1)
    for attempt in (lambda: client.insert(l2(1)), lambda: client.read(entry("l2"))):
        with pytest.raises(grpc.RpcError) as caught:
            attempt()
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "no forwarding pipeline config" in caught.value.details()


def test_read_returns_valid_requests_then_details(client: Client) -> None:
    client.insert(l2(1))
    replies = client.replies(p4r.Entity(), entry("l2"), l2(1, table="settings"))
    seen = next(replies)
    with pytest.raises(grpc.RpcError) as caught:
        next(replies)
    assert [one.table_entry.table_id for one in seen] == [NAMES["l2"]]
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert [Code(one.canonical_code).name for one in details(caught.value)] == [
        "INVALID_ARGUMENT",
        "OK",
        "INVALID_ARGUMENT",
    ]


def test_one_bad_update_in_a_thousand_is_named(rig: Rig) -> None:
    client = rig.primary(1, FINSY_OPTIONS)
    client.push()
    batch = [l2(1)] + [entry("l2", [exact(1, 1)]) for _ in range(999)]
    batch[617] = l2(2)
    with pytest.raises(grpc.RpcError) as caught:
        client.write_updates(
            [
                p4r.Update(type=p4r.Update.MODIFY if position else p4r.Update.INSERT, entity=one)
                for position, one in enumerate(batch)
            ]
        )
    found = details(caught.value)
    assert len(found) == 1000
    assert [i for i, one in enumerate(found) if one.canonical_code] == [617]
    assert "first: update 617: NOT_FOUND" in caught.value.details()


def test_failing_batch_reaches_a_client_with_default_limits(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.delete(*[l2(address) for address in range(50)])
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    found = details(caught.value)
    assert [one.canonical_code for one in found] == [Code.NOT_FOUND] * 50
    assert all(one.message for one in found)


def test_large_failing_batch_reaches_a_client_with_raised_limits(rig: Rig) -> None:
    client = rig.primary(1, FINSY_OPTIONS)
    client.push()
    with pytest.raises(grpc.RpcError) as caught:
        client.delete(*[l2(address) for address in range(2000)])
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    found = details(caught.value)
    assert "2000 of 2000 updates failed" in caught.value.details()
    assert f"details given for updates 0 to {len(found) - 1} only" in caught.value.details()


@given(
    outcomes=st.lists(st.one_of(st.none(), st.integers(0, 400)), max_size=40),
    repeat=st.integers(1, 60),
)
def test_details_keep_their_index_and_the_budget(outcomes: list[int | None], repeat: int) -> None:
    results: list[P4RuntimeError | None] = [
        None if length is None else invalid("é" * length) for length in outcomes * repeat
    ]
    if all(one is None for one in results):
        return
    status = batch_status(results, "update")
    assert status.ByteSize() <= RAISED_BUDGET
    last_failure = max(i for i, one in enumerate(results) if one is not None)
    if len(status.details) <= last_failure:
        assert "only)" in status.message
    for position, packed in enumerate(status.details):
        error = p4r.Error()
        packed.Unpack(error)
        expected = results[position]
        assert error.canonical_code == (Code.OK if expected is None else expected.code)


def test_messages_are_shortened_before_details_are_lost() -> None:
    results: list[P4RuntimeError | None] = [invalid("x" * 300)] * 50
    status = batch_status(results, "update")
    assert len(status.details) == 50
    assert status.ByteSize() <= DEFAULT_BUDGET

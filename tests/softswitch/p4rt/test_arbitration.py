"""Who is primary: the arbitration rules of P4Runtime 1.5, pure and over a channel."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import cast
from unittest.mock import Mock

import grpc
import pytest
from finsy.proto import p4r
from p4rt_rig import NAMES, TIMEOUT_S, Client, Rig, entry, exact

from ringstep.softswitch.engine import Switch, compile_pipeline
from ringstep.softswitch.p4rt import P4RuntimeService
from ringstep.softswitch.p4rt.arbitration import MAX_ELECTION_ID, Arbiter, Notification
from ringstep.softswitch.p4rt.errors import Code, P4RuntimeError


def seen(notifications: list[Notification]) -> list[tuple[object, str, int | None]]:
    return [(one.stream, one.code.name, one.election_id) for one in notifications]


@pytest.fixture
def arbiter() -> Arbiter:
    return Arbiter(device_id=1, max_streams=3)


def test_first_stream_with_an_id_is_primary(arbiter: Arbiter) -> None:
    assert seen(arbiter.update("a", 1, "", 5)) == [("a", "OK", 5)]
    assert arbiter.is_primary("", 5)
    assert arbiter.is_primary_stream("a")


def test_election_id_zero_is_an_id(arbiter: Arbiter) -> None:
    assert seen(arbiter.update("a", 1, "", 0)) == [("a", "OK", 0)]
    assert arbiter.is_primary("", 0)


def test_ids_are_128_bit(arbiter: Arbiter) -> None:
    arbiter.update("a", 1, "", MAX_ELECTION_ID - 1)
    assert seen(arbiter.update("b", 1, "", MAX_ELECTION_ID)) == [
        ("a", "ALREADY_EXISTS", MAX_ELECTION_ID),
        ("b", "OK", MAX_ELECTION_ID),
    ]


def test_lower_id_is_backup_and_only_it_is_told(arbiter: Arbiter) -> None:
    arbiter.update("a", 1, "", 5)
    assert seen(arbiter.update("b", 1, "", 4)) == [("b", "ALREADY_EXISTS", 5)]
    assert not arbiter.is_primary("", 4)


def test_higher_id_takes_over_and_the_new_primary_is_told_last(arbiter: Arbiter) -> None:
    arbiter.update("a", 1, "", 5)
    assert seen(arbiter.update("b", 1, "", 6)) == [("a", "ALREADY_EXISTS", 6), ("b", "OK", 6)]
    assert not arbiter.is_primary("", 5)
    assert arbiter.is_primary("", 6)


def test_stream_without_id_is_never_primary(arbiter: Arbiter) -> None:
    assert seen(arbiter.update("a", 1, "", None)) == [("a", "NOT_FOUND", None)]
    assert not arbiter.is_primary("", None)
    arbiter.update("b", 1, "", 1)
    assert seen(arbiter.update("c", 1, "", None)) == [("c", "ALREADY_EXISTS", 1)]


def test_nobody_is_promoted_when_the_primary_leaves(arbiter: Arbiter) -> None:
    arbiter.update("a", 1, "", 5)
    arbiter.update("b", 1, "", 4)
    assert seen(arbiter.leave("a")) == [("b", "NOT_FOUND", 5)]
    assert not arbiter.is_primary("", 5)
    assert not arbiter.is_primary("", 4)
    assert arbiter.primaries() == []


def test_backup_takes_over_with_the_highest_id_ever_seen(arbiter: Arbiter) -> None:
    arbiter.update("a", 1, "", 5)
    arbiter.update("b", 1, "", 3)
    arbiter.leave("a")
    assert seen(arbiter.update("b", 1, "", 4)) == [("b", "NOT_FOUND", 5)]
    assert seen(arbiter.update("b", 1, "", 5)) == [("b", "OK", 5)]


def test_highest_id_survives_all_streams(arbiter: Arbiter) -> None:
    arbiter.update("a", 1, "", 5)
    arbiter.leave("a")
    assert seen(arbiter.update("b", 1, "", 4)) == [("b", "NOT_FOUND", 5)]


def test_primary_that_lowers_its_id_becomes_backup_and_all_are_told(arbiter: Arbiter) -> None:
    arbiter.update("a", 1, "", 5)
    arbiter.update("b", 1, "", 3)
    assert sorted(seen(arbiter.update("a", 1, "", 4)), key=str) == [
        ("a", "NOT_FOUND", 5),
        ("b", "NOT_FOUND", 5),
    ]


def test_primary_that_repeats_its_id_stays_and_all_are_told(arbiter: Arbiter) -> None:
    arbiter.update("a", 1, "", 5)
    arbiter.update("b", 1, "", 3)
    assert seen(arbiter.update("a", 1, "", 5)) == [("b", "ALREADY_EXISTS", 5), ("a", "OK", 5)]


def test_leaving_backup_is_not_announced(arbiter: Arbiter) -> None:
    arbiter.update("a", 1, "", 5)
    arbiter.update("b", 1, "", 3)
    assert arbiter.leave("b") == []
    assert arbiter.leave("b") == []


def test_roles_elect_independently(arbiter: Arbiter) -> None:
    arbiter.update("a", 1, "", 5)
    assert seen(arbiter.update("b", 1, "telemetry", 5)) == [("b", "OK", 5)]
    assert arbiter.is_primary("telemetry", 5)
    assert arbiter.primaries() == ["a", "b"]
    assert arbiter.knows_role("telemetry")
    assert not arbiter.knows_role("other")


@pytest.mark.parametrize(
    ("stream", "device_id", "role", "election_id", "config", "code"),
    [
        ("new", 2, "", 1, False, Code.NOT_FOUND),
        ("live", 2, "", 1, False, Code.FAILED_PRECONDITION),
        ("live", 1, "other", 1, False, Code.FAILED_PRECONDITION),
        ("new", 1, "", 5, False, Code.INVALID_ARGUMENT),
        ("backup", 1, "", 5, False, Code.INVALID_ARGUMENT),
        ("new", 1, "", 1, True, Code.INVALID_ARGUMENT),
    ],
)
def test_refused_updates_change_nothing(
    arbiter: Arbiter,
    stream: str,
    device_id: int,
    role: str,
    election_id: int,
    config: bool,
    code: Code,
) -> None:
    arbiter.update("live", 1, "", 5)
    arbiter.update("backup", 1, "", 4)
    with pytest.raises(P4RuntimeError) as caught:
        arbiter.update(stream, device_id, role, election_id, has_role_config=config)
    assert caught.value.code is code
    assert arbiter.is_primary("", 5)
    assert arbiter.leave("new") == []


def test_too_many_streams_are_refused(arbiter: Arbiter) -> None:
    for position, stream in enumerate("abc"):
        arbiter.update(stream, 1, "", position)
    with pytest.raises(P4RuntimeError) as caught:
        arbiter.update("d", 1, "", 9)
    assert caught.value.code is Code.RESOURCE_EXHAUSTED
    assert arbiter.is_primary("", 2)


# ------------------------------------------------------------------------------- over a channel


def test_take_over_and_return_over_a_channel(rig: Rig) -> None:
    first = rig.primary(5).streams[0]
    second = rig.client(6).stream()
    second.arbitrate(6)
    assert first.advisory() == (Code.ALREADY_EXISTS, 6)
    assert second.advisory() == (Code.OK, 6)
    second.close()
    assert first.advisory() == (Code.NOT_FOUND, 6)
    first.arbitrate(6)
    assert first.advisory() == (Code.OK, 6)


def test_broken_stream_counts_as_left(rig: Rig) -> None:
    primary = rig.primary(5)
    backup = rig.client().stream()
    backup.arbitrate(4)
    assert backup.advisory() == (Code.ALREADY_EXISTS, 5)
    primary.streams[0].call.cancel()
    assert backup.advisory() == (Code.NOT_FOUND, 5)


def test_same_id_is_free_again_once_its_stream_is_gone(rig: Rig) -> None:
    rig.primary(5).streams[0].close()
    rig.primary(5)


class EndedContext:
    """What the service sees of a call whose client is gone before the stream is served."""

    def peer(self) -> str:
        return "nobody"

    def add_callback(self, callback: object) -> bool:
        return False


def test_update_that_arrives_after_its_stream_ended_is_ignored() -> None:
    service = P4RuntimeService(Switch(), compile_pipeline, packet_out=lambda frame: None)
    ended, handled = threading.Event(), threading.Event()

    def late_requests() -> Iterator[p4r.StreamMessageRequest]:
        ended.wait(TIMEOUT_S)
        update = p4r.MasterArbitrationUpdate(device_id=1, election_id=p4r.Uint128(low=5))
        yield p4r.StreamMessageRequest(arbitration=update)
        handled.set()

    context = cast(grpc.ServicerContext, EndedContext())
    assert list(service.StreamChannel(late_requests(), context)) == []
    ended.set()
    assert handled.wait(TIMEOUT_S)
    request = p4r.SetForwardingPipelineConfigRequest(
        device_id=1, election_id=p4r.Uint128(low=5), action="VERIFY"
    )
    refused = Mock(spec=grpc.ServicerContext)
    refused.abort.side_effect = ConnectionAbortedError
    with pytest.raises(ConnectionAbortedError):
        service.SetForwardingPipelineConfig(request, refused)
    assert refused.abort.call_args.args[0] is grpc.StatusCode.PERMISSION_DENIED


def test_second_stream_with_a_live_id_is_closed(rig: Rig) -> None:
    rig.primary(5)
    stream = rig.client().stream()
    stream.arbitrate(5)
    error = stream.end()
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "election id 5 is already used" in error.details()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"device_id": 2}, grpc.StatusCode.NOT_FOUND),
        ({"config": True, "role": "x"}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_wrong_device_or_role_config_ends_the_stream(
    rig: Rig, arguments: dict[str, object], code: grpc.StatusCode
) -> None:
    stream = rig.client().stream()
    stream.arbitrate(1, **arguments)  # type: ignore[arg-type]
    assert stream.end().code() is code


def test_write_needs_the_primary(rig: Rig, client: Client) -> None:
    for election_id in (None, 0, 2):
        other = rig.client(election_id)
        with pytest.raises(grpc.RpcError) as caught:
            other.insert()
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "not primary" in caught.value.details()
    client.insert()


def test_write_checks_device_then_role_then_primary(client: Client) -> None:
    cases: list[tuple[dict[str, object], grpc.StatusCode, str]] = [
        ({"device_id": 9, "role": "x", "election_id": None}, grpc.StatusCode.NOT_FOUND, "device"),
        ({"role": "x", "election_id": None}, grpc.StatusCode.NOT_FOUND, "role"),
        ({"election_id": None}, grpc.StatusCode.PERMISSION_DENIED, "primary"),
    ]
    for fields, code, word in cases:
        with pytest.raises(grpc.RpcError) as caught:
            client.insert(**fields)
        assert caught.value.code() is code
        assert word in caught.value.details()


class AnnouncingLock:
    """A lock that says when somebody wants it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.wanted = threading.Event()

    def __enter__(self) -> None:
        self.wanted.set()
        self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()


def test_new_primary_is_told_after_the_write_in_flight(client: Client, rig: Rig) -> None:
    old, new = client.streams[0], rig.client(2)
    lock = AnnouncingLock()
    rig.switch.lock = lock  # type: ignore[assignment]
    with ThreadPoolExecutor(1) as pool:
        with lock:
            lock.wanted.clear()
            write = pool.submit(client.insert, entry("l2", [exact(1, 1)], NAMES.does("forward", 1)))
            assert lock.wanted.wait(TIMEOUT_S)
            new.stream().arbitrate(2)
            assert old.advisory() == (Code.ALREADY_EXISTS, 2)
            assert not write.done()
        assert new.streams[0].advisory() == (Code.OK, 2)
        assert len(rig.switch.pipeline.tables["EntitiesIngress.l2"]) == 1  # type: ignore[union-attr]
        write.result()
    new.insert(entry("l2", [exact(1, 2)], NAMES.does("forward", 1)))
    with pytest.raises(grpc.RpcError) as caught:
        client.insert()
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_streams_beyond_the_limit_are_refused() -> None:
    rig = Rig(max_streams=2)
    try:
        rig.primary(1)
        rig.primary(2)
        stream = rig.client().stream()
        stream.arbitrate(3)
        assert stream.end().code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    finally:
        rig.close()

"""Details of refused calls: what this client reads, and what any other one does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from finsy.proto import rpc_status
from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory

import ringstep.controller.kinds
from ringstep.controller.channels import open_channel
from ringstep.controller.jobs import SpecError
from ringstep.controller.problems import (
    DETAILS_KEY,
    INTERNAL_TEXT,
    MAX_TEXT,
    PROBLEMS,
    NotLeaderError,
    answering,
    kind,
    problem_from,
    problem_of,
)
from ringstep.controller.reasons import REASONS, markdown_table
from ringstep.controller.security import UnknownTenantError
from ringstep.controller.store import ExhaustedError, NameTakenError, StoreError
from ringstep.controller.v1 import errors_pb2, jobs_pb2, jobs_pb2_grpc

_FIELD = descriptor_pb2.FieldDescriptorProto


def google_messages() -> dict[str, Any]:
    """google/rpc/error_details.proto as Google publishes it, as far as we use it."""
    file = descriptor_pb2.FileDescriptorProto(
        name="google/rpc/error_details.proto",
        package="google.rpc",
        syntax="proto3",
        dependency=["google/protobuf/duration.proto"],
    )

    def message(parent: Any, name: str, *fields: tuple[str, int, int, int, str]) -> Any:
        made = parent.add(name=name)
        for field, number, label, kind_, type_name in fields:
            made.field.add(
                name=field, number=number, label=label, type=kind_, type_name=type_name or None
            )
        return made

    one, many = _FIELD.LABEL_OPTIONAL, _FIELD.LABEL_REPEATED
    text, nested = _FIELD.TYPE_STRING, _FIELD.TYPE_MESSAGE
    info = message(
        file.message_type,
        "ErrorInfo",
        ("reason", 1, one, text, ""),
        ("domain", 2, one, text, ""),
        ("metadata", 3, many, nested, ".google.rpc.ErrorInfo.MetadataEntry"),
    )
    entry = message(
        info.nested_type, "MetadataEntry", ("key", 1, one, text, ""), ("value", 2, one, text, "")
    )
    entry.options.map_entry = True
    message(
        file.message_type,
        "RetryInfo",
        ("retry_delay", 1, one, nested, ".google.protobuf.Duration"),
    )
    bad = message(
        file.message_type,
        "BadRequest",
        ("field_violations", 1, many, nested, ".google.rpc.BadRequest.FieldViolation"),
    )
    message(
        bad.nested_type,
        "FieldViolation",
        ("field", 1, one, text, ""),
        ("description", 2, one, text, ""),
    )
    pool = descriptor_pool.DescriptorPool()
    duration = descriptor_pb2.FileDescriptorProto()
    duration_pb2.DESCRIPTOR.CopyToProto(duration)
    pool.Add(duration)
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"google.rpc.{name}"))
        for name in ("ErrorInfo", "RetryInfo", "BadRequest")
    }


class Failing(jobs_pb2_grpc.JobsServicer):
    """Fails as it is told."""

    def __init__(self, error: Callable[[], BaseException]) -> None:
        self.error = error

    async def Get(self, request: object, context: Any) -> jobs_pb2.GetResponse:
        async with answering(context):
            raise self.error()
        raise AssertionError("abort raises")

    async def Watch(self, request: object, context: Any) -> AsyncIterator[jobs_pb2.JobEvent]:
        async with answering(context):
            yield jobs_pb2.JobEvent()
            raise self.error()


@asynccontextmanager
async def failing(error: Callable[[], BaseException]) -> AsyncIterator[Any]:
    server = grpc.aio.server()
    jobs_pb2_grpc.add_JobsServicer_to_server(Failing(error), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with open_channel(f"127.0.0.1:{port}") as channel:
            yield jobs_pb2_grpc.JobsStub(channel)
    finally:
        await server.stop(None)


async def failure(error: Callable[[], BaseException]) -> grpc.aio.AioRpcError:
    async with failing(error) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Get(jobs_pb2.GetRequest())
    return caught.value


async def test_problem_comes_with_the_status() -> None:
    error = await failure(lambda: SpecError("spec.rings[1].hosts", "is empty; give two or more"))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == "spec.rings[1].hosts: is empty; give two or more"
    assert problem_of(error) == errors_pb2.Problem(
        reason="BAD_FIELD", field="spec.rings[1].hosts", text=error.details()
    )


async def test_a_stream_that_fails_says_why_too() -> None:
    async with failing(lambda: NameTakenError("taken")) as stub:
        stream = stub.Watch(jobs_pb2.WatchRequest())
        assert await stream.read() == jobs_pb2.JobEvent()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
    problem = problem_of(caught.value)
    assert problem is not None
    assert (problem.reason, problem.field) == ("NAME_TAKEN", "spec.name")


async def test_clients_of_googles_error_model_understand_it() -> None:
    def exhausted() -> ExhaustedError:
        error = ExhaustedError("all Job_IDs are in use; release a job first")
        error.retry_after_s = 1.25  # type: ignore[attr-defined]
        error.field = "spec"  # type: ignore[attr-defined]
        return error

    error = await failure(exhausted)
    raw = next(value for key, value in error.trailing_metadata() if key == DETAILS_KEY)
    status = rpc_status.Status.FromString(raw)
    assert status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    assert status.message == error.details()
    known = google_messages()
    read = {}
    for detail in status.details:
        prefix, _, name = detail.type_url.rpartition("/google.rpc.")
        assert prefix == "type.googleapis.com"
        read[name] = known[name].FromString(detail.value)
    assert read["ErrorInfo"].reason == "EXHAUSTED"
    assert read["ErrorInfo"].domain == "ringstep"
    assert read["BadRequest"].field_violations[0].field == "spec"
    assert read["BadRequest"].field_violations[0].description == error.details()
    delay = read["RetryInfo"].retry_delay
    assert (delay.seconds, delay.nanos) == (1, 250_000_000)


async def test_unexpected_exceptions_tell_nothing_but_where_to_look(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = await failure(lambda: ZeroDivisionError("secret detail"))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert error.details() == INTERNAL_TEXT
    assert "secret detail" not in str(error)
    assert "ZeroDivisionError: secret detail" in caplog.text


async def test_cancellation_of_what_a_call_waits_for_is_answered() -> None:
    """gRPC takes a CancelledError for the caller's hanging up, and would send nothing."""
    error = await failure(asyncio.CancelledError)
    assert error.code() is grpc.StatusCode.INTERNAL
    assert error.details() == INTERNAL_TEXT


async def test_long_texts_fit_what_any_client_takes() -> None:
    text = "é" * 50_000
    async with failing(lambda: SpecError("spec.name", text)) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Get(jobs_pb2.GetRequest())
    problem = problem_of(caught.value)
    assert problem is not None
    assert len(problem.text) == MAX_TEXT
    sent = len(problem.SerializeToString()) * 4 // 3
    sent += 4 * len(caught.value.trailing_metadata()[DETAILS_KEY]) // 3
    assert sent < 8 << 10


async def test_oversized_requests_are_refused() -> None:
    async with failing(lambda: AssertionError("not reached")) as stub:
        big = jobs_pb2.GetRequest(job=jobs_pb2.JobRef(name="x" * (5 << 20)))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Get(big)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in (caught.value.details() or "")
    assert problem_of(caught.value) is None


async def test_no_details_where_nobody_answered() -> None:
    async with open_channel("127.0.0.1:1") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await jobs_pb2_grpc.JobsStub(channel).Get(jobs_pb2.GetRequest(), timeout=20)
    assert problem_of(caught.value) is None


def test_a_type_without_a_kind_of_its_own_has_that_of_its_base() -> None:
    class DiskFullError(StoreError):
        pass

    code, problem = problem_from(DiskFullError("no space left"))
    assert (code, problem.reason) == (grpc.StatusCode.INTERNAL, "STORE_FAILED")
    assert problem.text == "no space left"


def test_a_controller_that_stands_by_names_the_one_that_leads() -> None:
    code, problem = problem_from(NotLeaderError("10.0.0.1:9560", 0.5))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert (problem.reason, dict(problem.metadata)) == ("NOT_LEADER", {"leader": "10.0.0.1:9560"})
    assert problem.retry_after_ms == 500
    _, problem = problem_from(NotLeaderError(""))
    assert not problem.metadata
    assert "no controller leads yet" in problem.text


def test_waiting_is_not_advised_where_it_does_not_help() -> None:
    error = ExhaustedError("no state block is free on tor1")
    error.retry_after_s = None  # type: ignore[attr-defined]
    assert problem_from(error)[1].retry_after_ms == 0


def test_unknown_tenants_are_told_the_known_ones() -> None:
    code, problem = problem_from(UnknownTenantError("x", ["research", "prod"]))
    assert (code, problem.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "UNKNOWN_TENANT")
    assert problem.field == "spec.tenant"
    assert "use one of prod, research, or add [tenants.x]" in problem.text


def test_reasons_are_described_before_they_are_given() -> None:
    class OtherError(Exception):
        pass

    with pytest.raises(ValueError, match="NEW with ABORTED is not in REASONS"):
        kind(OtherError, grpc.StatusCode.ABORTED, "NEW")
    with pytest.raises(ValueError, match="QUOTA with ABORTED"):
        kind(OtherError, grpc.StatusCode.ABORTED, "QUOTA")
    with pytest.raises(ValueError, match="StoreError already means STORE_FAILED"):
        kind(StoreError, grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA")
    assert OtherError not in PROBLEMS


def test_every_reason_is_in_the_table() -> None:
    table = markdown_table()
    for name, reason in REASONS.items():
        assert f"| `{name}` | {reason.code.name} |" in table
    assert ringstep.controller.kinds

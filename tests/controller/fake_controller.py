"""A controller that says what a test tells it to, and notes what it was asked."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import grpc

from ringstep.controller.v1 import (
    errors_pb2,
    jobs_pb2,
    jobs_pb2_grpc,
    switches_pb2,
    switches_pb2_grpc,
)

IN_SYNC = switches_pb2.SWITCH_PHASE_IN_SYNC
STEP_BITS = 14


def parameters(**changes: Any) -> jobs_pb2.MarkerParameters:
    values: dict[str, Any] = {
        "k": 0.01,
        "tau": jobs_pb2.Fraction(num=1, den=4),
        "t_win_us": 100,
        "alpha_max": 255,
        "q_gate": -1,
        "step_bits": STEP_BITS,
        "mode": jobs_pb2.PROGRESS_MODE_ANCHORED,
        "scope": jobs_pb2.SCOPE_PORT,
    }
    return jobs_pb2.MarkerParameters(**(values | changes))


def job(name: str = "resnet", id_: int = 1, generation: int = 1, **changes: Any) -> jobs_pb2.Job:
    """A job that one switch follows and another, tor2, is in sync with too."""
    values: dict[str, Any] = {
        "parameters": parameters(),
        "programming": [
            jobs_pb2.SwitchProgramming(switch=switch, phase=IN_SYNC) for switch in ("tor1", "tor2")
        ],
        "paths_choice": jobs_pb2.PATHS_CHOICE_PLANNED,
    }
    spec = changes.pop("spec", None) or jobs_pb2.JobSpec(
        name=name, rings=[jobs_pb2.Ring(hosts=["h1", "h3"])], tenant="research"
    )
    return jobs_pb2.Job(id=id_, generation=generation, spec=spec, **(values | changes))


def switch(name: str = "tor1", **status: Any) -> switches_pb2.Switch:
    return switches_pb2.Switch(
        name=name,
        device_id=1,
        address="127.0.0.1:9559",
        role="tor",
        status=switches_pb2.SwitchStatus(**({"phase": IN_SYNC} | status)),
    )


def problem(reason: str, text: str, field: str = "", **metadata: str) -> errors_pb2.Problem:
    return errors_pb2.Problem(reason=reason, text=text, field=field, metadata=metadata)


Refusal = tuple[grpc.StatusCode, str, errors_pb2.Problem | None]


class FakeController:
    """Both services on a free loopback port; a context manager.

    Attributes:
        calls: (method, request, metadata) of every call, in order; methods as ``Jobs.Get``.
        answers: by method, what it answers; a callable gets the request.
        refusals: by method, refusals that are used up one call after the other.
        refuse_all: every call is refused with this.
        events: what ``Jobs.Watch`` streams; the stream stays open until the controller stops, or
            until None is in the queue.
    """

    def __init__(self, port: int = 0) -> None:
        self.calls: list[tuple[str, Any, dict[str, str]]] = []
        self.answers: dict[str, Any] = {}
        self.refusals: dict[str, list[Refusal]] = {}
        self.refuse_all: Refusal | None = None
        self.events: queue.Queue[Any] = queue.Queue()
        self.switch_events: queue.Queue[Any] = queue.Queue()
        self._stopped = threading.Event()
        self._server = grpc.server(
            ThreadPoolExecutor(max_workers=8), options=[("grpc.so_reuseport", 0)]
        )
        jobs_pb2_grpc.add_JobsServicer_to_server(_Servicer(self, "Jobs"), self._server)
        switches_pb2_grpc.add_SwitchesServicer_to_server(_Servicer(self, "Switches"), self._server)
        self.target = f"127.0.0.1:{self._server.add_insecure_port(f'127.0.0.1:{port}')}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopped.set()
        self._server.stop(None).wait()

    def asked(self, method: str) -> list[Any]:
        """The requests of one method."""
        return [request for name, request, _ in self.calls if name == method]

    def stream(self, events: queue.Queue[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        while not self._stopped.is_set() and context.is_active():
            try:
                event = events.get(timeout=0.02)
            except queue.Empty:
                continue
            if event is None:
                return
            yield event


class _Servicer:
    """Answers any method by its name."""

    def __init__(self, controller: FakeController, service: str) -> None:
        self._controller = controller
        self._service = service

    def __getattr__(self, method: str) -> Callable[[Any, grpc.ServicerContext], Any]:
        controller, name = self._controller, f"{self._service}.{method}"

        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            self._note(name, request, context)
            found = controller.answers.get(name)
            if found is None:
                context.abort(grpc.StatusCode.UNIMPLEMENTED, f"no answer for {name}")
            return found(request) if callable(found) else found

        def stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            self._note(name, request, context)
            events = controller.events if self._service == "Jobs" else controller.switch_events
            yield from controller.stream(events, context)

        return stream if method == "Watch" else answer

    def _note(self, name: str, request: Any, context: grpc.ServicerContext) -> None:
        controller = self._controller
        controller.calls.append((name, request, dict(context.invocation_metadata())))
        refusals = controller.refusals.get(name)
        refusal = refusals.pop(0) if refusals else controller.refuse_all
        if refusal is not None:
            code, text, told = refusal
            if told is not None:
                context.set_trailing_metadata((("ringstep-problem-bin", told.SerializeToString()),))
            context.abort(code, text)

"""What Prometheus reads, who serves it, and that the dashboard asks for nothing else."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ringstep.controller.channels import open_channel
from ringstep.controller.jobs import SpecError
from ringstep.controller.kinds import kind
from ringstep.controller.metrics import LinkFacts, Metrics, SwitchFacts
from ringstep.controller.metricsserver import MetricsListenError, serving_metrics
from ringstep.controller.problems import answering
from ringstep.controller.v1 import jobs_pb2, jobs_pb2_grpc

MONITORING = Path(__file__).resolve().parents[2] / "examples" / "monitoring"
assert kind


class Facts:
    """A fleet of two switches."""

    def jobs_by_tenant(self) -> Mapping[str, int]:
        return {"default": 3, 'we "quote"': 1}

    def leased_jobs(self) -> int:
        return 2

    def free_ids(self) -> int:
        return 16_000

    def quarantined_ids(self) -> int:
        return 5

    def switches(self) -> Sequence[SwitchFacts]:
        return [
            SwitchFacts(
                "tor1", "in_sync", desired=100, updates=250, sessions=1, drift_missing=1,
                drift_changed=2, drift_foreign=3, drifts=4, foreign_removed=5,
                audited_unix_s=time.time() - 60,
            ),
            SwitchFacts("tor2", "connecting", desired=90, pending=90, refused=7, foreign_kept=6),
        ]  # fmt: skip

    def links(self) -> Sequence[LinkFacts]:
        return [LinkFacts("tor1", "spine1", 4, 0.5)]

    def leading(self) -> bool:
        return True

    def epoch(self) -> int:
        return 9

    def store_queue(self) -> int:
        return 11


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text, _ = metrics.render()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def read(metrics: Metrics, name: str, **labels: str) -> float:
    return samples(metrics)[(name, tuple(sorted(labels.items())))]


def test_facts_of_the_fleet_are_shown() -> None:
    metrics = Metrics(Facts(), version="1.2.3")
    metrics.take_snapshot()
    assert read(metrics, "ringstep_jobs", tenant="default") == 3
    assert read(metrics, "ringstep_jobs", tenant='we "quote"') == 1
    assert read(metrics, "ringstep_jobs_leased") == 2
    assert read(metrics, "ringstep_job_ids", state="free") == 16_000
    assert read(metrics, "ringstep_job_ids", state="quarantined") == 5
    assert read(metrics, "ringstep_leader") == 1
    assert read(metrics, "ringstep_leader_epoch") == 9
    assert read(metrics, "ringstep_store_queue") == 11
    assert read(metrics, "ringstep_switches", phase="in_sync") == 1
    assert read(metrics, "ringstep_switches", phase="error") == 0
    assert read(metrics, "ringstep_switch_in_sync", switch="tor2") == 0
    assert read(metrics, "ringstep_switch_desired_entries", switch="tor1") == 100
    assert read(metrics, "ringstep_switch_pending_updates", switch="tor2") == 90
    assert read(metrics, "ringstep_switch_refused_updates", switch="tor2") == 7
    assert read(metrics, "ringstep_switch_foreign_kept", switch="tor2") == 6
    assert read(metrics, "ringstep_switch_foreign_removed_total", switch="tor1") == 5
    assert read(metrics, "ringstep_switch_updates_total", switch="tor1") == 250
    assert read(metrics, "ringstep_switch_sessions_total", switch="tor1") == 1
    assert read(metrics, "ringstep_switch_drifts_total", switch="tor1") == 4
    for kind_, count in (("missing", 1), ("changed", 2), ("foreign", 3)):
        assert read(metrics, "ringstep_switch_drift_entries", switch="tor1", kind=kind_) == count
    assert read(metrics, "ringstep_switch_audit_age_seconds", switch="tor1") >= 60
    never = ("ringstep_switch_audit_age_seconds", (("switch", "tor2"),))
    assert never not in samples(metrics)
    assert read(metrics, "ringstep_link_planned_edges", src="tor1", dst="spine1") == 4
    assert read(metrics, "ringstep_link_planned_load", src="tor1", dst="spine1") == 0.5
    assert read(metrics, "ringstep_build_info", version="1.2.3") == 1
    assert read(metrics, "process_resident_memory_bytes") > 0


def test_what_happens_is_counted() -> None:
    metrics = Metrics()
    metrics.registered(0.003)
    metrics.programmed(0.2)
    metrics.released("expired")
    metrics.renewed()
    metrics.moved("link", 3)
    metrics.stored(20, 0.004)
    metrics.store_failed()
    metrics.call("Jobs.Get", "OK", 0.001)
    assert read(metrics, "ringstep_registrations_total") == 1
    assert read(metrics, "ringstep_registration_seconds_sum") == 0.003
    assert read(metrics, "ringstep_programmed_seconds_count") == 1
    assert read(metrics, "ringstep_releases_total", reason="expired") == 1
    assert read(metrics, "ringstep_renewals_total") == 1
    assert read(metrics, "ringstep_job_moves_total", reason="link") == 3
    assert read(metrics, "ringstep_store_batch_changes_sum") == 20
    assert read(metrics, "ringstep_store_write_seconds_count") == 1
    assert read(metrics, "ringstep_store_failures_total") == 1
    assert read(metrics, "ringstep_calls_total", method="Jobs.Get", code="OK") == 1


def test_two_controllers_in_one_process_do_not_share_counts() -> None:
    one, two = Metrics(), Metrics()
    one.renewed()
    assert read(two, "ringstep_renewals_total") == 0


# -- calls -------------------------------------------------------------------------------------


class Jobs(jobs_pb2_grpc.JobsServicer):
    def __init__(self) -> None:
        self.waiting = asyncio.Event()

    async def Get(self, request: jobs_pb2.GetRequest, context: Any) -> jobs_pb2.GetResponse:
        async with answering(context):
            if request.job.name == "bad":
                raise SpecError("job", "bad")
            if request.job.name == "slow":
                self.waiting.set()
                await asyncio.Event().wait()
            return jobs_pb2.GetResponse()
        raise AssertionError("abort raises")

    async def Renew(self, request: object, context: object) -> jobs_pb2.RenewResponse:
        raise ZeroDivisionError

    async def Watch(self, request: object, context: Any) -> AsyncIterator[jobs_pb2.JobEvent]:
        yield jobs_pb2.JobEvent()
        yield jobs_pb2.JobEvent()


@asynccontextmanager
async def serving(metrics: Metrics, jobs: Jobs) -> AsyncIterator[Any]:
    server = grpc.aio.server(interceptors=[metrics.interceptor()])
    jobs_pb2_grpc.add_JobsServicer_to_server(jobs, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with open_channel(f"127.0.0.1:{port}") as channel:
            yield jobs_pb2_grpc.JobsStub(channel)
    finally:
        await server.stop(None)


async def test_calls_are_counted_by_method_and_code() -> None:
    metrics, jobs = Metrics(), Jobs()

    def get(name: str) -> jobs_pb2.GetRequest:
        return jobs_pb2.GetRequest(job=jobs_pb2.JobRef(name=name))

    async with serving(metrics, jobs) as stub:
        await stub.Get(get("good"))
        for call in (stub.Get(get("bad")), stub.Renew(jobs_pb2.RenewRequest())):
            with pytest.raises(grpc.aio.AioRpcError):
                await call
        assert len([event async for event in stub.Watch(jobs_pb2.WatchRequest())]) == 2
        slow = stub.Get(get("slow"))
        async with asyncio.timeout(60):
            await jobs.waiting.wait()
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        expected = {
            ("Jobs.Get", "OK"): 1,
            ("Jobs.Get", "INVALID_ARGUMENT"): 1,
            ("Jobs.Get", "CANCELLED"): 1,
            ("Jobs.Renew", "UNKNOWN"): 1,
            ("Jobs.Watch", "OK"): 1,
        }
        # The server hears of it a moment later.
        for _ in range(1000):
            if counted(metrics) == expected:
                break
            await asyncio.sleep(0.01)
        assert counted(metrics) == expected


def counted(metrics: Metrics) -> dict[tuple[str, str], float]:
    return {
        (dict(labels)["method"], dict(labels)["code"]): value
        for (name, labels), value in samples(metrics).items()
        if name == "ringstep_calls_total"
    }


# -- the server --------------------------------------------------------------------------------


async def ask(address: str, request: str) -> tuple[str, str]:
    """Return status line with headers, and body."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    writer.write(request.encode())
    answer = (await reader.read()).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return head, body


async def test_metrics_and_health_are_served() -> None:
    problem = ""
    metrics = Metrics(Facts())
    async with serving_metrics(
        metrics, "127.0.0.1:0", lambda: problem, lambda: {"leading": True}
    ) as address:
        head, body = await ask(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert head.startswith("HTTP/1.1 200 OK")
        assert "Content-Type: text/plain" in head
        assert 'ringstep_jobs{tenant="default"} 3.0' in body
        accept = "Accept: application/openmetrics-text; version=1.0.0"
        head, body = await ask(address, f"GET /metrics HTTP/1.1\r\n{accept}\r\n\r\n")
        assert "application/openmetrics-text" in head
        assert body.endswith("# EOF\n")
        head, body = await ask(address, "GET /healthz HTTP/1.1\r\n\r\n")
        assert head.startswith("HTTP/1.1 200")
        assert json.loads(body) == {"status": "ok", "leading": True}
        problem = "the store does not answer"
        head, body = await ask(address, "GET /healthz?verbose HTTP/1.1\r\n\r\n")
        assert head.startswith("HTTP/1.1 503")
        assert json.loads(body)["status"] == problem
        head, body = await ask(address, "HEAD /metrics HTTP/1.1\r\n\r\n")
        assert (head.split()[1], body) == ("200", "")
        assert (await ask(address, "GET / HTTP/1.1\r\n\r\n"))[0].split()[1] == "404"
        assert (await ask(address, "POST /metrics HTTP/1.1\r\n\r\n"))[0].split()[1] == "405"
        assert await ask(address, "x" * 40_000 + "\r\n\r\n") == ("", "")


async def test_server_closes_with_connections_open_and_frees_its_port() -> None:
    async with serving_metrics(Metrics(), "127.0.0.1:0") as address:
        _, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
        writer.write(b"GET /metr")
        await writer.drain()
        await asyncio.sleep(0.05)
    async with serving_metrics(Metrics(), address) as again:
        assert again == address
        with pytest.raises(MetricsListenError, match=r"cannot listen on 127\.0\.0\.1:"):
            async with serving_metrics(Metrics(), address):
                pass
    writer.close()


# -- the examples ------------------------------------------------------------------------------

_NAME = re.compile(r"\b(?:ringstep|process)_[a-z0-9_]+\b")
_SERIES = re.compile(r"_(bucket|sum|count)$")


def known_names() -> set[str]:
    metrics = Metrics(Facts())
    metrics.take_snapshot()
    metrics.call("Jobs.Get", "OK", 0.1)
    metrics.released("expired")
    metrics.moved("link")
    names = {name for name, _ in samples(metrics)}
    return names | {_SERIES.sub("", name) for name in names}


def test_dashboard_asks_for_metrics_that_exist() -> None:
    dashboard = json.loads((MONITORING / "grafana-ringstep.json").read_text())
    assert dashboard["schemaVersion"] >= 38
    variables = {each["name"]: each["type"] for each in dashboard["templating"]["list"]}
    assert variables["datasource"] == "datasource"
    asked: set[str] = set()
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}", panel["title"]
            asked |= set(_NAME.findall(target["expr"]))
    assert asked <= known_names()
    own = {name for name in known_names() if name.startswith("ringstep_")}
    shown = {_SERIES.sub("", name) for name in asked}
    left_out = {_SERIES.sub("", name) for name in own if not name.endswith("_created")} - shown
    assert left_out <= {"ringstep_jobs_leased", "ringstep_link_planned_edges"}
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


def test_alerts_ask_for_metrics_that_exist() -> None:
    text = (MONITORING / "ringstep-alerts.yml").read_text()
    rules = re.findall(r"expr: (.+)", text)
    assert len(rules) == text.count("- alert:") > 5
    for rule in rules:
        assert set(_NAME.findall(rule)) <= known_names(), rule


def test_prometheus_example_reads_the_alerts_that_are_there() -> None:
    text = (MONITORING / "prometheus.yml").read_text()
    for name in re.findall(r"- (\S+\.yml)", text):
        assert (MONITORING / name).is_file()
    assert "127.0.0.1:9561" in text

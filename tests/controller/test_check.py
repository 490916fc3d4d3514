"""`ringstep controller check`: what it finds, what it says, and that it changes nothing."""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc.aio
import pytest
import typer
from fake_switch import FakeSwitch
from finsy.proto import U128, p4r, p4r_grpc
from pki import DAY, Authority
from softswitches import SoftSwitch
from typer.testing import CliRunner

from ringstep.controller.channels import open_channel
from ringstep.controller.check import run_checks
from ringstep.controller.checkcli import controller_check
from ringstep.controller.config import load_config
from ringstep.controller.findings import Finding, Verdict
from ringstep.controller.health import add_health_and_reflection
from ringstep.controller.pipeline import Pipeline
from ringstep.controller.store import Store
from ringstep.controller.storecheck import check_store
from ringstep.controller.switchcheck import check_switch
from ringstep.controller.tokens import token_digest

NewSwitch = Callable[..., Awaitable[FakeSwitch]]
APP = typer.Typer()
APP.command("check")(controller_check)


WriteConfig = Callable[..., Path]


@pytest.fixture
def write_config(tmp_path: Path, fabric_text: str) -> WriteConfig:
    """Write a topology, with addresses of switches, and a configuration; return the latter."""

    def write(text: str = "", **switches: str) -> Path:
        fabric = fabric_text
        for name, address in switches.items():
            here = f'name = "{name}"\n'
            fabric = fabric.replace(here, f'{here}p4runtime = "{address}"\n')
        (tmp_path / "fabric.toml").write_text(fabric)
        path = tmp_path / "controller.toml"
        listen = "" if text.startswith("listen") else 'listen = "127.0.0.1:0"\n'
        path.write_text(f'topology = "fabric.toml"\n{listen}{text}')
        return path

    return write


async def found(path: Path, **options: object) -> dict[str, list[Finding]]:
    """Return the findings by part."""
    findings: dict[str, list[Finding]] = {}
    for finding in await run_checks(load_config(path), **options):  # type: ignore[arg-type]
        findings.setdefault(finding.part, []).append(finding)
    return findings


def only(findings: dict[str, list[Finding]], part: str) -> tuple[Verdict, str]:
    (finding,) = findings[part]
    return finding.verdict, finding.text


async def test_all_is_well(
    tmp_path: Path, write_config: WriteConfig, new_switch: NewSwitch
) -> None:
    switches = {name: await new_switch() for name in ("tor1", "tor2", "spine1", "spine2")}
    switch = switches["tor1"]
    seen: list[tuple[int, int]] = []
    path = write_config(**{name: each.address for name, each in switches.items()})
    findings = await found(path, progress=lambda done, total: seen.append((done, total)))
    assert {each.verdict for group in findings.values() for each in group} == {Verdict.OK}
    assert only(findings, "topology")[1].endswith("4 switches, 4 hosts, 8 links")
    assert "will be made at the first start" in only(findings, "store")[1]
    assert only(findings, "switch tor1")[1] == (
        f"{switch.address} (device 1) answers, runs no program yet, has no primary"
    )
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert {each.name for each in tmp_path.iterdir()} == {"controller.toml", "fabric.toml"}
    assert (switch.writes, switch.pushes, switch.config) == ([], 0, None)


async def test_says_which_program_a_switch_runs_and_who_is_primary(
    write_config: WriteConfig, new_switch: NewSwitch, pipeline: Pipeline
) -> None:
    switch = await new_switch()
    path = write_config(tor1=switch.address)
    switch.config = p4r.ForwardingPipelineConfig()
    switch.config.cookie.cookie = pipeline.cookie
    async with open_channel(switch.address) as channel:
        stream = p4r_grpc.P4RuntimeStub(channel).StreamChannel()
        arbitration = p4r.MasterArbitrationUpdate(device_id=1, election_id=U128.encode(7 << 32))
        await stream.write(p4r.StreamMessageRequest(arbitration=arbitration))
        await stream.read()
        verdict, text = only(await found(path), "switch tor1")
        assert verdict is Verdict.WARNING
        assert f"runs the controller's program, has a primary with election id {7 << 32}" in text
        assert f"above this controller's {(1 << 32) + 1}: a controller of another store" in text
        path.write_text(path.read_text() + "[p4runtime]\nelection_id = 7\n")
        assert only(await found(path), "switch tor1")[0] is Verdict.OK
        switch.config.cookie.cookie = 1
        assert (
            "runs another program, which will be replaced"
            in (only(await found(path), "switch tor1")[1])
        )
        # The primary was never disturbed.
        await stream.write(p4r.StreamMessageRequest(arbitration=arbitration))
        assert (await stream.read()).arbitration.status.code == 0
        stream.cancel()


async def test_two_checks_at_once_do_not_disturb_each_other(new_switch: NewSwitch) -> None:
    switch = await new_switch()
    checks = (check_switch("tor1", switch.address, 1, 0, None) for _ in range(4))
    assert {finding.verdict for finding in await asyncio.gather(*checks)} == {Verdict.OK}


async def test_the_software_switch_answers_and_stays_without_primary(
    tmp_path: Path, pipeline: Pipeline
) -> None:
    with SoftSwitch(tmp_path, 1) as switch:
        for _ in range(2):
            finding = await check_switch("tor1", switch.address, 1, pipeline.cookie, None)
            assert finding.verdict is Verdict.OK
            assert "runs no program yet" in finding.text
            assert finding.text.endswith("has no primary")
        finding = await check_switch("tor1", switch.address, 7, pipeline.cookie, None)
        assert finding.verdict is Verdict.PROBLEM
        assert "does not know this device id" in finding.text


async def test_switches_that_do_not_answer_are_named(write_config: WriteConfig) -> None:
    with socket.socket() as silent, socket.socket() as closed:
        silent.bind(("127.0.0.1", 0))
        silent.listen(1)
        closed.bind(("127.0.0.1", 0))
        path = write_config(
            tor1=f"127.0.0.1:{closed.getsockname()[1]}",
            tor2=f"127.0.0.1:{silent.getsockname()[1]}",
        )
        findings = await found(path, timeout_s=1.0)
    assert only(findings, "switch tor1")[0] is Verdict.PROBLEM
    assert "is a P4Runtime server running there, without TLS?" in only(findings, "switch tor1")[1]
    assert "did not answer within 1 s" in only(findings, "switch tor2")[1]
    verdict, text = only(findings, "switches")
    assert verdict is Verdict.WARNING
    assert "without a P4Runtime address: spine1, spine2" in text


async def test_an_explanation_of_failed_tls_is_passed_on(write_config: WriteConfig) -> None:
    async def explain(address: str, tls: object, timeout_s: float) -> str:
        return "the server's certificate has expired; renew it"

    findings = await found(write_config(tor1="127.0.0.1:1"), explain=explain)
    assert only(findings, "switch tor1")[1] == (
        "127.0.0.1:1 (device 1) cannot be reached: the server's certificate has expired; renew it"
    )


async def test_switches_added_at_run_time_are_asked_too(
    tmp_path: Path, write_config: WriteConfig, new_switch: NewSwitch
) -> None:
    switch = await new_switch()
    path = write_config(tor1="127.0.0.1:1", spine2="127.0.0.1:1")
    store = Store(load_config(path).store)
    store.close()
    with sqlite3.connect(tmp_path / "ringstep.db") as database:
        for name, device_id in (("tor1", "1"), ("tor2", "2")):
            database.execute(
                "INSERT INTO switches (name, device_id, address, from_file) VALUES (?, ?, ?, 0)",
                (name, device_id, switch.address),
            )
        database.execute("INSERT INTO removed_switches VALUES ('spine2')")
    findings = await found(path)
    assert only(findings, "switch tor1")[0] is Verdict.OK
    assert only(findings, "switch tor2")[0] is Verdict.OK
    assert "switch spine2" not in findings
    assert "0 live jobs" in only(findings, "store")[1]


async def test_files_that_cannot_be_used_are_all_listed(
    tmp_path: Path, write_config: WriteConfig
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue(begins=-9 * DAY, ends=-DAY)
    (tmp_path / "tokens.toml").write_text("[[token]]\n")
    path = write_config(
        f'store = "sqlite:///{tmp_path}/none/x.db"\n'
        f'[tls]\ncert = "{pair.cert}"\nkey = "{pair.key}"\n[auth]\ntokens = "tokens.toml"\n'
        '[pipeline]\np4info = "none.txtpb"\n[p4runtime.tls]\nca = "none.pem"\n'
        "[p4runtime.switch.tor9]\n",
    )
    findings = await found(path)
    assert "expired on" in only(findings, "tls")[1]
    assert "'name' is missing" in findings["tokens"][0].text
    assert "none.txtpb" in only(findings, "program")[1]
    assert "none.pem: cannot be read" in only(findings, "p4runtime.tls")[1]
    assert "its folder does not exist" in only(findings, "store")[1]
    assert "p4runtime.switch.tor9: no switch of" in findings["configuration"][1].text
    problems = {
        part
        for part, group in findings.items()
        if any(each.verdict is Verdict.PROBLEM for each in group)
    }
    assert problems == {"tls", "tokens", "program", "p4runtime.tls", "store", "configuration"}


async def test_certificates_near_their_end_and_of_other_names_are_warned_of(
    tmp_path: Path,
    write_config: WriteConfig,
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue(names=["controller.example"], ends=13 * DAY)
    path = write_config(
        f'[tls]\ncert = "{pair.cert}"\nkey = "{pair.key}"\nclient_ca = "{authority.cert}"\n',
    )
    first, ca, name = (await found(path))["tls"]
    assert (first.verdict, ca.verdict, name.verdict) == (
        Verdict.WARNING,
        Verdict.OK,
        Verdict.WARNING,
    )
    assert "expires in 12 days" in first.text
    assert "names controller.example, not '127.0.0.1'" in name.text


async def test_tokens_are_compared_with_the_tenants(
    tmp_path: Path, write_config: WriteConfig
) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(
        f'[[token]]\nname = "a"\nrole = "scheduler"\ntenant = "prod"\n'
        f'sha256 = "{token_digest("x")}"\nexpires = 2020-01-01T00:00:00Z\n'
    )
    tokens.chmod(0o644)
    path = write_config('[auth]\ntokens = "tokens.toml"\n[tenants.research]\n')
    texts = " ".join(each.text for each in (await found(path))["tokens"])
    assert "1 callers" in texts
    assert "chmod 640" in texts
    assert "expired: a" in texts
    assert "'a' is for tenant 'prod', which [tenants] does not list" in texts


async def test_addresses_in_use_are_found_and_a_running_controller_known(
    write_config: WriteConfig,
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        path = write_config(f'listen = "{address}"\n[metrics]\nlisten = "{address}"\n')
        findings = await found(path, timeout_s=0.5)
        assert only(findings, "listen")[0] is Verdict.PROBLEM
        assert "the port is in use" in only(findings, "metrics")[1]
    server = grpc.aio.server()
    await add_health_and_reflection(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        path = write_config(f'listen = "127.0.0.1:{port}"\n')
        verdict, text = only(await found(path), "listen")
        assert verdict is Verdict.WARNING
        assert "in use by a controller that runs" in text
    finally:
        await server.stop(None)
    path = write_config('listen = "192.0.2.1:9560"\ninsecure_listen = true\n')
    assert "the address is not of this machine" in only(await found(path), "listen")[1]


async def test_a_clock_that_was_set_back_is_noticed(write_config: WriteConfig) -> None:
    path = write_config()
    past = datetime.now(UTC) - timedelta(hours=1)
    verdict, text = only(await found(path, now=lambda: past), "clock")
    assert verdict is Verdict.WARNING
    assert "fabric.toml was written on" in text
    verdict, _ = only(await found(path, now=lambda: datetime(1970, 1, 1, tzinfo=UTC)), "clock")
    assert verdict is Verdict.PROBLEM


def test_stores_of_others_are_refused(tmp_path: Path, write_config: WriteConfig) -> None:
    def look(name: str) -> tuple[Verdict, str]:
        first = check_store(f"sqlite:///{tmp_path / name}", 1.0, 0.0).findings[0]
        return first.verdict, first.text

    (tmp_path / "text.db").write_text("not a database" * 100)
    verdict, text = look("text.db")
    assert verdict is Verdict.PROBLEM
    assert "file is not a database" in text
    with sqlite3.connect(tmp_path / "old.db") as database:
        database.execute("CREATE TABLE meta (key, value)")
        database.execute("INSERT INTO meta VALUES ('schema', '0')")
    assert "written with schema 0" in look("old.db")[1]
    with sqlite3.connect(tmp_path / "other.db") as database:
        database.execute("CREATE TABLE jobs (x)")
    assert "holds tables of something else" in look("other.db")[1]


def test_the_leader_is_named(tmp_path: Path, write_config: WriteConfig) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    Store(url).close()
    with sqlite3.connect(tmp_path / "x.db") as database:
        database.execute("CREATE TABLE IF NOT EXISTS leader (id, epoch, address)")
        database.execute("DELETE FROM leader")
        database.execute("INSERT INTO leader VALUES (1, 4, '10.0.0.1:9560')")
    texts = [each.text for each in check_store(url, 1.0, 0.0).findings]
    assert any("10.0.0.1:9560 leads, or led last (term 4)" in text for text in texts)


def test_a_database_server_that_is_not_there_is_said_without_its_password() -> None:
    pytest.importorskip("psycopg", reason="needs psycopg: pip install 'ringstep[postgres]'")
    (finding,) = check_store("postgresql://me:pass-w0rd@127.0.0.1:1/x", 2.0, 0.0).findings
    assert finding.verdict is Verdict.PROBLEM
    assert "does the server run there" in finding.text
    assert "pass-w0rd" not in finding.text


# -- the commands ------------------------------------------------------------------------------


def test_command_lists_findings_and_ends_with_their_status(write_config: WriteConfig) -> None:
    run = CliRunner().invoke
    path = write_config()
    result = run(APP, ["--config", str(path), "--timeout", "1"])
    assert result.exit_code == 0, result.output
    assert "✓ configuration: is valid" in result.output
    assert "! switches: without a P4Runtime address" in result.output
    path = write_config(tor1="127.0.0.1:1")
    result = run(APP, ["--config", str(path), "--timeout", "1", "--json"])
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    assert data["ok"] is False
    assert {"part": "configuration", "verdict": "ok", "text": "is valid"} in data["findings"]
    path.write_text("topologie = 1\n")
    result = run(APP, ["--config", str(path), "--json"])
    assert result.exit_code == 2
    assert "did you mean 'topology'" in result.stderr
    assert json.loads(result.stdout)["ok"] is False

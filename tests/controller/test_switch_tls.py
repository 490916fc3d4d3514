"""Sessions with switches over TLS: who is trusted, and what is said where somebody is not.

The switch is the software switch as a process with its TLS options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from certificates import Authority, Identity, authority, issue
from softswitches import SoftSwitch
from typer.testing import CliRunner

from ringstep.controller.channels import ChannelTls
from ringstep.controller.p4rt import Session, SessionError, Timing
from ringstep.controller.pipeline import Pipeline
from ringstep.softswitch.cli import app

Start = Callable[..., SoftSwitch]


@pytest.fixture(scope="module")
def ca() -> Authority:
    return authority("Ringstep test CA")


@pytest.fixture(scope="module")
def client(ca: Authority) -> Identity:
    return issue(ca, ["controller"])


@pytest.fixture
def start(tmp_path: Path, ca: Authority) -> Iterator[Start]:
    """Start a software switch with a certificate; it asks clients for theirs where told so."""
    running: list[SoftSwitch] = []

    def run(server: Identity, *, client_ca: Authority | None = ca) -> SoftSwitch:
        cert, key = server.write(tmp_path, "server")
        extra = ["--grpc-tls-cert", str(cert), "--grpc-tls-key", str(key)]
        if client_ca is not None:
            extra += ["--grpc-tls-client-ca", str(client_ca.write(tmp_path, "client-ca")[0])]
        running.append(SoftSwitch(tmp_path, 1, extra=extra))
        return running[-1]

    yield run
    for switch in running:
        switch.close()


async def failure(
    switch: SoftSwitch, pipeline: Pipeline, timing: Timing, tls: ChannelTls | None
) -> str:
    """What a session with the switch fails with."""
    with pytest.raises(SessionError) as caught:
        async with Session(switch.address, 1, pipeline, timing=timing, tls=tls):
            pass
    assert caught.value.unreachable
    assert str(caught.value).startswith(switch.address)
    return str(caught.value)


async def test_both_sides_with_certificates_of_one_authority_work(
    start: Start, ca: Authority, client: Identity, pipeline: Pipeline, timing: Timing
) -> None:
    switch = start(issue(ca, ["127.0.0.1"]))
    tls = ChannelTls(ca.cert, client.cert, client.key)
    async with Session(switch.address, 1, pipeline, timing=timing, tls=tls) as session:
        await session.push_pipeline()
        assert await session.runs_our_pipeline()


async def test_certificate_with_another_name_works_where_that_name_is_given(
    start: Start, ca: Authority, pipeline: Pipeline, timing: Timing
) -> None:
    switch = start(issue(ca, ["tor1.fabric"]), client_ca=None)
    tls = ChannelTls(ca.cert, server_name="tor1.fabric")
    async with Session(switch.address, 1, pipeline, timing=timing, tls=tls) as session:
        assert not await session.runs_our_pipeline()
    said = await failure(switch, pipeline, timing, ChannelTls(ca.cert))
    assert "the server's certificate is not for the name '127.0.0.1'" in said


async def test_expired_server_certificate_is_named(
    start: Start, ca: Authority, client: Identity, pipeline: Pipeline, timing: Timing
) -> None:
    switch = start(issue(ca, ["127.0.0.1"], expired=True))
    tls = ChannelTls(ca.cert, client.cert, client.key)
    said = await failure(switch, pipeline, timing, tls)
    assert "the server's certificate has expired; renew it" in said


async def test_server_certificate_of_another_authority_is_named(
    start: Start, ca: Authority, client: Identity, pipeline: Pipeline, timing: Timing
) -> None:
    switch = start(issue(authority("somebody"), ["127.0.0.1"]))
    tls = ChannelTls(ca.cert, client.cert, client.key)
    said = await failure(switch, pipeline, timing, tls)
    assert "the server's certificate comes from another authority than the CA file given" in said


async def test_missing_client_certificate_is_named(
    start: Start, ca: Authority, pipeline: Pipeline, timing: Timing
) -> None:
    switch = start(issue(ca, ["127.0.0.1"]))
    said = await failure(switch, pipeline, timing, ChannelTls(ca.cert))
    assert "it asks for a client certificate and none was sent" in said


async def test_expired_client_certificate_is_named(
    start: Start, ca: Authority, pipeline: Pipeline, timing: Timing
) -> None:
    switch = start(issue(ca, ["127.0.0.1"]))
    own = issue(ca, ["controller"], expired=True)
    said = await failure(switch, pipeline, timing, ChannelTls(ca.cert, own.cert, own.key))
    assert "our client certificate has expired; renew it" in said
    assert own.key.decode() not in said


async def test_client_certificate_of_another_authority_is_named(
    start: Start, ca: Authority, pipeline: Pipeline, timing: Timing
) -> None:
    switch = start(issue(ca, ["127.0.0.1"]))
    own = issue(authority("somebody"), ["controller"])
    said = await failure(switch, pipeline, timing, ChannelTls(ca.cert, own.cert, own.key))
    assert "it does not trust the authority of our client certificate" in said


async def test_switch_with_tls_is_recognised_by_a_controller_without(
    start: Start, ca: Authority, pipeline: Pipeline, timing: Timing
) -> None:
    switch = start(issue(ca, ["127.0.0.1"]))
    said = await failure(switch, pipeline, timing, None)
    assert "the server speaks TLS and this controller does not" in said


async def test_switch_without_tls_is_recognised_by_a_controller_with(
    tmp_path: Path, ca: Authority, pipeline: Pipeline, timing: Timing
) -> None:
    with SoftSwitch(tmp_path, 1) as switch:
        said = await failure(switch, pipeline, timing, ChannelTls(ca.cert))
    assert "the server does not speak TLS there" in said


def test_wrong_certificate_options_of_the_switch_are_refused(
    tmp_path: Path, ca: Authority, client: Identity
) -> None:
    cert, key = client.write(tmp_path, "one")
    other = issue(ca, ["other"]).write(tmp_path, "other")[1]
    text = tmp_path / "text"
    text.write_text("no certificate")

    def refusal(*options: Path | str) -> str:
        result = CliRunner().invoke(app, ["run", *map(str, options)])
        assert result.exit_code == 2
        return " ".join(result.output.split())

    assert "belong together" in refusal("--grpc-tls-cert", cert)
    assert "needs --grpc-tls-cert" in refusal("--grpc-tls-client-ca", cert)
    both = ("--grpc-tls-cert", cert, "--grpc-tls-key")
    assert "do not go together" in refusal(*both, other)
    assert "is not a PEM file" in refusal(*both, text)
    assert "cannot be read" in refusal(*both, tmp_path / "absent")
    assert "is not a PEM file" in refusal(*both, key, "--grpc-tls-client-ca", text)

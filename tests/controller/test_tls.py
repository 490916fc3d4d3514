"""Certificates in files, and connections with them: what works, and what is said where not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pki import DAY, Authority, Pair

from ringstep.controller.channels import ChannelTls, open_channel
from ringstep.controller.config import TlsConfig
from ringstep.controller.credentials import connection_hint
from ringstep.controller.health import add_health_and_reflection
from ringstep.controller.tlsfiles import (
    ServerTls,
    TlsFileError,
    certificates_in,
    channel_tls,
    checked_pair,
)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def server_of(authority: Authority, *, mutual: bool = False, **options: object) -> TlsConfig:
    pair = authority.issue(**options)  # type: ignore[arg-type]
    return TlsConfig(cert=pair.cert, key=pair.key, client_ca=authority.cert if mutual else None)


@asynccontextmanager
async def serving(tls: ServerTls) -> AsyncIterator[str]:
    server = grpc.aio.server()
    await add_health_and_reflection(server)
    port = server.add_secure_port("127.0.0.1:0", tls.credentials)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def check(target: str, tls: ChannelTls | None) -> int:
    async with open_channel(target, tls) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
        return int(reply.status)


async def test_facts_of_a_certificate_are_read(authority: Authority) -> None:
    pair = authority.issue("tor1", ["tor1.example", "10.0.0.1", "fd00::1"], ends=30 * DAY)
    facts = checked_pair(pair.cert, pair.key)
    assert (facts.subject, facts.issuer) == ("tor1", "ca")
    assert facts.names == ("tor1.example", "10.0.0.1", "fd00::1")
    left = facts.not_after - datetime.now(UTC)
    assert timedelta(days=29) < left <= timedelta(days=30)
    assert certificates_in(authority.cert, "an authority")[0].not_after.year > facts.not_after.year


async def test_a_chain_of_certificates_gives_the_facts_of_the_first(authority: Authority) -> None:
    pair = authority.issue("leaf")
    pair.cert.write_bytes(pair.cert.read_bytes() + authority.cert.read_bytes())
    assert checked_pair(pair.cert, pair.key).subject == "leaf"
    assert [each.subject for each in certificates_in(pair.cert, "a chain")] == ["leaf", "ca"]


async def test_calls_go_through_tls(authority: Authority) -> None:
    async with serving(ServerTls(server_of(authority))) as target:
        assert await check(target, channel_tls(authority.cert, None, None)) == 1


async def test_mutual_tls_wants_a_certificate_of_the_authority(
    authority: Authority, tmp_path: Path
) -> None:
    async with serving(ServerTls(server_of(authority, mutual=True))) as target:
        mine = authority.issue("client", [])
        assert await check(target, channel_tls(authority.cert, mine.cert, mine.key)) == 1
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await check(target, channel_tls(authority.cert, None, None))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        other = Authority(tmp_path, "other").issue("stranger", [])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await check(target, channel_tls(authority.cert, other.cert, other.key))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_mutual_tls_refuses_an_expired_client_certificate(authority: Authority) -> None:
    mine = authority.issue("client", ["c"], begins=-9 * DAY, ends=-DAY)
    own = ChannelTls(authority.cert.read_bytes(), mine.cert.read_bytes(), mine.key.read_bytes())
    async with serving(ServerTls(server_of(authority, mutual=True))) as target:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await check(target, own)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_client_refuses_a_server_of_another_authority(
    authority: Authority, tmp_path: Path
) -> None:
    async with serving(ServerTls(server_of(authority))) as target:
        other = Authority(tmp_path, "other")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await check(target, channel_tls(other.cert, None, None))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_client_refuses_a_server_of_another_name(authority: Authority) -> None:
    async with serving(ServerTls(server_of(authority, names=["tor1"]))) as target:
        with pytest.raises(grpc.aio.AioRpcError):
            await check(target, channel_tls(authority.cert, None, None))
        assert await check(target, channel_tls(authority.cert, None, None, "tor1")) == 1


async def test_a_renewed_certificate_is_shown_after_reloading(
    authority: Authority, tmp_path: Path
) -> None:
    config = server_of(authority)
    tls = ServerTls(config)
    async with serving(tls) as target:
        other = Authority(tmp_path, "other")
        other.issue("server")  # The files of the old certificate are overwritten.
        trusting = channel_tls(other.cert, None, None)
        with pytest.raises(grpc.aio.AioRpcError):
            await check(target, trusting)
        tls.reload()
        assert await check(target, trusting) == 1


async def test_reloading_a_bad_certificate_keeps_the_old_one(authority: Authority) -> None:
    config = server_of(authority)
    tls = ServerTls(config)
    async with serving(tls) as target:
        config.cert.write_text("nothing")
        with pytest.raises(TlsFileError, match="holds no PEM block"):
            tls.reload()
        assert await check(target, channel_tls(authority.cert, None, None)) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"begins": -9 * DAY, "ends": -DAY}, "the certificate of 'localhost' expired on 20"),
        ({"begins": DAY}, "is in force from 20.* is the clock right"),
        ({"names": []}, r"names no host \(subjectAltName\)"),
        ({"password": b"x"}, "is encrypted, and nobody is there to type its password"),
    ],
)
def test_unusable_certificates_are_refused_before_listening(
    authority: Authority, options: dict[str, object], message: str
) -> None:
    with pytest.raises(TlsFileError, match=message):
        ServerTls(server_of(authority, **options))


def test_key_of_another_certificate_is_refused(authority: Authority) -> None:
    one, two = authority.issue("one"), authority.issue("two")
    with pytest.raises(TlsFileError, match=r"two\.key: is not the key of the certificate .*one"):
        ServerTls(TlsConfig(cert=one.cert, key=two.key))


def test_missing_and_swapped_files_are_named(authority: Authority, tmp_path: Path) -> None:
    pair = authority.issue()
    gone = tmp_path / "gone.pem"
    with pytest.raises(TlsFileError, match=r"gone\.pem: cannot be read \(No such file"):
        ServerTls(TlsConfig(cert=gone, key=pair.key))
    with pytest.raises(TlsFileError, match=r"server\.key: holds no certificate"):
        ServerTls(TlsConfig(cert=pair.key, key=pair.key))
    with pytest.raises(TlsFileError, match=r"server\.pem: holds no usable private key"):
        ServerTls(TlsConfig(cert=pair.cert, key=pair.cert))
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n")
    with pytest.raises(TlsFileError, match=r"broken\.pem: holds a certificate that cannot be read"):
        ServerTls(TlsConfig(cert=broken, key=pair.key))


def test_expired_certificate_of_our_own_is_refused(authority: Authority) -> None:
    mine = authority.issue("client", ["c"], begins=-9 * DAY, ends=-DAY)
    with pytest.raises(TlsFileError, match="'c' expired on"):
        channel_tls(None, mine.cert, mine.key)
    with pytest.raises(TlsFileError, match="the key is missing"):
        channel_tls(None, mine.cert, None)


def test_keys_are_not_shown(authority: Authority) -> None:
    mine = authority.issue("client", [])
    tls = channel_tls(authority.cert, mine.cert, mine.key)
    assert "PRIVATE" not in repr(tls)


# -- what a client is told ---------------------------------------------------------------------


async def hint(authority: Authority, pair: Pair | None, tls: ChannelTls | None) -> str:
    """Call a server that shows ``pair`` and wants a certificate of ``authority``."""
    server = grpc.aio.server()
    await add_health_and_reflection(server)
    if pair is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        shown = [(pair.key.read_bytes(), pair.cert.read_bytes())]
        mutual = grpc.ssl_server_credentials(shown, authority.cert.read_bytes(), True)
        port = server.add_secure_port("127.0.0.1:0", mutual)
    await server.start()
    try:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await check(f"127.0.0.1:{port}", tls)
    finally:
        await server.stop(None)
    return connection_hint(caught.value.details() or "", tls)


async def test_clients_are_told_what_is_wrong_with_the_controllers_certificate(
    authority: Authority, tmp_path: Path
) -> None:
    trusting = channel_tls(authority.cert, None, None)
    expired = authority.issue("expired", begins=-9 * DAY, ends=-DAY)
    assert "has expired: renew it there" in await hint(authority, expired, trusting)
    future = authority.issue("future", begins=DAY)
    assert "compare the two clocks" in await hint(authority, future, trusting)
    for names in ([], ["tor1"]):
        pair = authority.issue("other", names)
        assert "--server-name" in await hint(authority, pair, trusting)
    stranger = channel_tls(Authority(tmp_path, "other").cert, None, None)
    assert "of another authority" in await hint(authority, authority.issue(), stranger)
    assert "there is no TLS there" in await hint(authority, None, trusting)


async def test_clients_are_told_what_the_controller_may_want_of_them(
    authority: Authority, tmp_path: Path
) -> None:
    good = authority.issue()
    assert "give --ca" in await hint(authority, good, None)
    assert "give --cert and --key" in (
        await hint(authority, good, channel_tls(authority.cert, None, None))
    )
    other = Authority(tmp_path, "other").issue("stranger", [])
    own = channel_tls(authority.cert, other.cert, other.key)
    assert "another authority than the controller's client_ca" in await hint(authority, good, own)


def test_no_hint_where_certificates_are_not_at_fault() -> None:
    assert connection_hint("failed to connect: Connection refused", None) == ""

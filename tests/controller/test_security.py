"""Tokens, roles and tenants: who may call what, and that no secret is ever shown."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pki import Authority

from ringstep.controller.channels import ChannelTls, open_channel
from ringstep.controller.config import TlsConfig, load_config
from ringstep.controller.credentials import (
    ClientCredentials,
    CredentialsError,
    load_credentials,
    metadata,
)
from ringstep.controller.health import add_health_and_reflection
from ringstep.controller.logs import configure
from ringstep.controller.metrics import Metrics
from ringstep.controller.problems import problem_of
from ringstep.controller.security import (
    Authenticator,
    AuthInterceptor,
    OtherTenantError,
    UnauthenticatedError,
    current_caller,
    refuse_other_tenant,
    reload_on_hangup,
    tenant_for,
)
from ringstep.controller.tlsfiles import ServerTls
from ringstep.controller.tokens import (
    LOCAL,
    Caller,
    Role,
    TokensError,
    generate_token,
    load_tokens,
    token_digest,
)
from ringstep.controller.v1 import jobs_pb2, jobs_pb2_grpc, switches_pb2, switches_pb2_grpc

NOW = datetime(2030, 1, 1, tzinfo=UTC)
CODES = grpc.StatusCode


def write_tokens(folder: Path, *entries: dict[str, object]) -> Path:
    path = folder / "tokens.toml"
    text = ""
    for entry in entries:
        text += "[[token]]\n"
        for key, value in entry.items():
            text += f"{key} = {value if isinstance(value, datetime) else repr(str(value))}\n"
    path.write_text(text)
    path.chmod(0o640)
    return path


def entry(name: str, role: str, token: str, **more: object) -> dict[str, object]:
    return {"name": name, "role": role, "sha256": token_digest(token), **more}


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


class Jobs(jobs_pb2_grpc.JobsServicer):
    """Answers with the name of whoever calls."""

    async def Get(self, request: object, context: object) -> jobs_pb2.GetResponse:
        return jobs_pb2.GetResponse(job=jobs_pb2.Job(owner=current_caller().name))

    async def Register(self, request: object, context: object) -> jobs_pb2.RegisterResponse:
        await asyncio.sleep(0.01)
        return jobs_pb2.RegisterResponse(job=jobs_pb2.Job(owner=current_caller().name))

    async def Rebalance(self, request: object, context: object) -> jobs_pb2.RebalanceResponse:
        return jobs_pb2.RebalanceResponse()

    async def Watch(self, request: object, context: object) -> AsyncIterator[jobs_pb2.JobEvent]:
        for _ in range(2):
            await asyncio.sleep(0.01)
            yield jobs_pb2.JobEvent(job=jobs_pb2.Job(owner=current_caller().name))


class Switches(switches_pb2_grpc.SwitchesServicer):
    async def Drain(self, request: object, context: object) -> switches_pb2.DrainResponse:
        return switches_pb2.DrainResponse()


@asynccontextmanager
async def serving(authenticator: Authenticator) -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server(interceptors=[Metrics().interceptor(), AuthInterceptor(authenticator)])
    jobs_pb2_grpc.add_JobsServicer_to_server(Jobs(), server)
    switches_pb2_grpc.add_SwitchesServicer_to_server(Switches(), server)
    await add_health_and_reflection(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with open_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(None)


async def call(channel: grpc.aio.Channel, method: str, token: str | None) -> str:
    """Return the code of a call, or whom the service took the caller for."""
    sent = () if token is None else bearer(token)
    jobs: Any = jobs_pb2_grpc.JobsStub(channel)
    switches: Any = switches_pb2_grpc.SwitchesStub(channel)
    try:
        match method:
            case "Get":
                return str((await jobs.Get(jobs_pb2.GetRequest(), metadata=sent)).job.owner)
            case "Register":
                reply = await jobs.Register(jobs_pb2.RegisterRequest(), metadata=sent)
                return str(reply.job.owner)
            case "Watch":
                events = jobs.Watch(jobs_pb2.WatchRequest(), metadata=sent)
                return " ".join([event.job.owner async for event in events])
            case "Rebalance":
                await jobs.Rebalance(jobs_pb2.RebalanceRequest(), metadata=sent)
            case "Drain":
                await switches.Drain(switches_pb2.DrainRequest(), metadata=sent)
            case "Health":
                health = health_pb2_grpc.HealthStub(channel)
                await health.Check(health_pb2.HealthCheckRequest(), metadata=sent)
        return "done"
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)


async def test_roles_allow_what_they_should_and_nothing_else(tmp_path: Path) -> None:
    tokens = {role: generate_token() for role in Role}
    path = write_tokens(tmp_path, *(entry(role, role, token) for role, token in tokens.items()))
    expected = {
        "Get": ("reader", "scheduler", "operator"),
        "Watch": ("reader reader", "scheduler scheduler", "operator operator"),
        "Health": ("done", "done", "done"),
        "Register": ("PERMISSION_DENIED", "scheduler", "operator"),
        "Rebalance": ("PERMISSION_DENIED", "PERMISSION_DENIED", "done"),
        "Drain": ("PERMISSION_DENIED", "PERMISSION_DENIED", "done"),
    }
    async with serving(Authenticator(path)) as channel:
        for method, answers in expected.items():
            for role, answer in zip(Role, answers, strict=True):
                assert await call(channel, method, tokens[role]) == answer, (method, role)
            assert await call(channel, method, None) == "UNAUTHENTICATED"
            assert await call(channel, method, generate_token()) == "UNAUTHENTICATED"


async def test_calls_at_the_same_time_do_not_see_each_others_caller(tmp_path: Path) -> None:
    tokens = {f"c{number}": generate_token() for number in range(8)}
    path = write_tokens(tmp_path, *(entry(name, "scheduler", t) for name, t in tokens.items()))
    async with serving(Authenticator(path)) as channel:
        calls = [
            call(channel, method, token)
            for token in tokens.values()
            for method in ("Register", "Watch")
        ]
        answers = await asyncio.gather(*calls)
    assert answers == [text for name in tokens for text in (name, f"{name} {name}")]


async def test_without_a_tokens_file_every_caller_is_the_local_operator() -> None:
    async with serving(Authenticator()) as channel:
        assert await call(channel, "Get", None) == "local"
        assert await call(channel, "Drain", None) == "done"
        assert await call(channel, "Get", "whatever") == "local"


async def test_refusals_say_what_would_be_right(tmp_path: Path) -> None:
    token = generate_token()
    path = write_tokens(tmp_path, entry("dash", "reader", token))
    async with serving(Authenticator(path)) as channel:
        stub: Any = switches_pb2_grpc.SwitchesStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Drain(switches_pb2.DrainRequest(), metadata=bearer(token))
        problem = problem_of(caught.value)
        assert problem is not None
        assert problem.reason == "ROLE_TOO_LOW"
        assert dict(problem.metadata) == {"role": "reader", "needs": "operator"}
        assert problem.text == caught.value.details()
        assert problem.text == (
            "'dash' is a reader, and ringstep.v1.Switches/Drain needs role operator; use the token "
            "of such a caller"
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Drain(switches_pb2.DrainRequest())
        assert "give a token with $RINGSTEP_TOKEN or --token-file" in (caught.value.details() or "")


def test_expired_tokens_are_nobodys(tmp_path: Path) -> None:
    token = generate_token()
    path = write_tokens(
        tmp_path, entry("nightly", "scheduler", token, expires=NOW), entry("x", "reader", "y")
    )
    before = Authenticator(path, now=lambda: NOW - timedelta(seconds=1))
    assert before.resolve(bearer(token)) == Caller("nightly", Role.SCHEDULER)
    with pytest.raises(UnauthenticatedError, match="not known here, or has expired"):
        Authenticator(path, now=lambda: NOW).resolve(bearer(token))
    assert load_tokens(path).expired(NOW) == ["nightly"]


@pytest.mark.parametrize("value", ["Basic abc", "Bearer", "Bearer  ", "abc"])
def test_authorization_must_be_one_bearer_token(tmp_path: Path, value: str) -> None:
    authenticator = Authenticator(write_tokens(tmp_path, entry("a", "reader", "abc")))
    with pytest.raises(UnauthenticatedError, match="not 'Bearer TOKEN'"):
        authenticator.resolve((("authorization", value),))
    with pytest.raises(UnauthenticatedError, match="once"):
        authenticator.resolve(bearer("abc") * 2)


def test_tenants_keep_to_themselves() -> None:
    research = Caller("slurm", Role.SCHEDULER, "research")
    assert tenant_for(research, "", "default") == "research"
    assert tenant_for(research, "research", "default") == "research"
    with pytest.raises(OtherTenantError, match="acts for tenant 'research', not for 'prod'"):
        tenant_for(research, "prod", "default")
    with pytest.raises(OtherTenantError):
        refuse_other_tenant(research, "prod")
    assert research.may_see("research")
    assert not research.may_see("prod")
    assert tenant_for(LOCAL, "", "default") == "default"
    assert tenant_for(Caller("k8s", Role.SCHEDULER), "prod", "default") == "prod"


def test_tokens_are_read_again_and_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    old, new = generate_token(), generate_token()
    authenticator = Authenticator(write_tokens(tmp_path, entry("a", "reader", old)))
    write_tokens(tmp_path, entry("a", "operator", new))
    authenticator.reload()
    assert authenticator.resolve(bearer(new)).role is Role.OPERATOR
    with pytest.raises(UnauthenticatedError):
        authenticator.resolve(bearer(old))
    (tmp_path / "tokens.toml").write_text("[[token]]\n")
    with pytest.raises(TokensError):
        authenticator.reload()
    assert authenticator.resolve(bearer(new)).role is Role.OPERATOR


async def test_hangup_reads_files_again(caplog: pytest.LogCaptureFixture) -> None:
    done = asyncio.Event()

    def bad() -> None:
        raise TokensError("tokens.toml", ["tokens.toml:1: bad"])

    loop = asyncio.get_running_loop()
    reload_on_hangup(loop, [bad, done.set])
    try:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.wait_for(done.wait(), 10)
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
    assert "the old one stays in force: tokens.toml:1: bad" in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'token' is missing; write for example [[token]] with name, role and sha256"),
        (
            '[[token]]\nname = "a"\nrole = "root"\nsha256 = "00"\n',
            "tokens.toml:3: token[1].role: 'root' is not usable: input should be 'reader', "
            "'scheduler' or 'operator'",
        ),
        (
            '[[token]]\nname = "a"\nrole = "reader"\nsha256 = "rs_secret"\n',
            "tokens.toml:1: token[1]: sha256 is not a SHA-256 in hex",
        ),
        (
            f'[[token]]\nname = "a"\nrole = "operator"\ntenant = "x"\nsha256 = "{"0" * 64}"\n',
            "tokens.toml:1: token[1]: an operator commands the whole fabric, not only tenant 'x'",
        ),
        (
            '[[token]]\nname = "a"\nrole = "reader"\nexpires = 2030-01-01T00:00:00\n'
            f'sha256 = "{"0" * 64}"\n',
            "tokens.toml:4: token[1].expires: 2030-01-01T00:00:00 has no time zone; write for "
            "example 2030-01-31T00:00:00Z",
        ),
        (
            f'[[token]]\nname = "a"\nrole = "reader"\nsha256 = "{"0" * 64}"\n'
            f'[[token]]\nname = "b"\nrole = "reader"\nsha256 = "{"0" * 64}"\n',
            "tokens.toml:8: token[2].sha256: is there twice; each caller has a token of his",
        ),
        (
            '[[token]]\nname = "a"\nrole = "reader"\ntoken = "rs_secret"\n',
            "tokens.toml:4: token[1].token: unknown key; known keys here: name, role, tenant, "
            "sha256, expires",
        ),
    ],
)
def test_mistakes_in_a_tokens_file_are_named_and_no_secret_repeated(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(text)
    with pytest.raises(TokensError) as caught:
        load_tokens(path)
    assert message in str(caught.value)
    assert "rs_secret" not in str(caught.value)


def test_permissions_of_a_tokens_file_matter(tmp_path: Path) -> None:
    path = write_tokens(tmp_path, entry("a", "reader", "x"))
    assert load_tokens(path).warnings == ()
    path.chmod(0o644)
    assert "chmod 640" in load_tokens(path).warnings[0]
    path.chmod(0o666)
    with pytest.raises(TokensError, match="everybody may write to it"):
        load_tokens(path)


def test_tokens_differ_and_say_what_they_are() -> None:
    tokens = {generate_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(token.startswith("rs_") and len(token) > 40 for token in tokens)


# -- the client's half -------------------------------------------------------------------------


def test_token_comes_from_option_then_variable_then_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("rs_file\n")
    env = {"RINGSTEP_TOKEN": "rs_env", "RINGSTEP_TOKEN_FILE": str(file)}
    assert load_credentials(env={}).token is None
    assert load_credentials(env=env).token == "rs_env"
    assert load_credentials(token_file=file, env=env).token == "rs_file"
    assert load_credentials(env={"RINGSTEP_TOKEN_FILE": str(file)}).token == "rs_file"
    with pytest.raises(CredentialsError, match="gone: cannot be read"):
        load_credentials(token_file=tmp_path / "gone", env={})
    file.write_text("two words of a secret\n")
    with pytest.raises(CredentialsError, match="does not hold a token") as caught:
        load_credentials(token_file=file, env={})
    assert "secret" not in str(caught.value)


def test_token_is_not_sent_in_plaintext_to_another_machine() -> None:
    plain = ClientCredentials(token="rs_x")
    assert metadata(plain, "127.0.0.1:9560") == bearer("rs_x")
    assert metadata(plain, "localhost:9560") == bearer("rs_x")
    assert metadata(ClientCredentials(), "10.0.0.1:9560") == ()
    with pytest.raises(CredentialsError, match=r"not sent to 10\.0\.0\.1:9560 without TLS"):
        metadata(plain, "10.0.0.1:9560")
    assert metadata(ClientCredentials(ChannelTls(), "rs_x"), "10.0.0.1:9560") == bearer("rs_x")
    named = load_credentials(env={"RINGSTEP_TOKEN": "rs_x", "RINGSTEP_PLAINTEXT_TOKEN": "1"})
    assert metadata(named, "10.0.0.1:9560") == bearer("rs_x")


def test_tls_comes_from_options_and_variables(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    mine = authority.issue("client", [])
    assert load_credentials(env={}).tls is None
    assert load_credentials(env={}, tls=True).tls == ChannelTls()
    env = {"RINGSTEP_CA": str(authority.cert), "RINGSTEP_SERVER_NAME": "controller"}
    with pytest.raises(CredentialsError, match="the key is missing"):
        load_credentials(cert=mine.cert, env=env)
    given = load_credentials(cert=mine.cert, key=mine.key, env=env).tls
    assert given == ChannelTls(
        authority.cert.read_bytes(), mine.cert.read_bytes(), mine.key.read_bytes(), "controller"
    )


async def test_client_and_server_meet_over_mutual_tls_with_a_token(tmp_path: Path) -> None:
    authority, token = Authority(tmp_path), generate_token()
    own, mine = authority.issue(), authority.issue("client", [])
    tls = ServerTls(TlsConfig(cert=own.cert, key=own.key, client_ca=authority.cert))
    tokens = write_tokens(tmp_path, entry("slurm", "scheduler", token))
    server = grpc.aio.server(interceptors=[AuthInterceptor(Authenticator(tokens))])
    jobs_pb2_grpc.add_JobsServicer_to_server(Jobs(), server)
    target = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', tls.credentials)}"
    await server.start()
    credentials = load_credentials(
        authority.cert, mine.cert, mine.key, env={"RINGSTEP_TOKEN": token}
    )
    try:
        async with open_channel(target, credentials.tls) as channel:
            reply = await jobs_pb2_grpc.JobsStub(channel).Get(
                jobs_pb2.GetRequest(), metadata=metadata(credentials, target)
            )
        assert reply.job.owner == "slurm"
    finally:
        await server.stop(None)


# -- secrets -----------------------------------------------------------------------------------


async def test_secrets_are_in_no_log_repr_or_error(tmp_path: Path) -> None:
    token, wrong, password = generate_token(), generate_token(), "pass-w0rd"
    authority = Authority(tmp_path)
    mine = authority.issue()
    tokens = write_tokens(tmp_path, entry("a", "reader", token))
    tokens.chmod(0o644)
    config_file = tmp_path / "controller.toml"
    config_file.write_text(
        f'topology = "f.toml"\nstore = "postgresql://me:{password}@db/ringstep"\n'
        f'[tls]\ncert = "{mine.cert}"\nkey = "{mine.key}"\n[auth]\ntokens = "{tokens}"\n'
    )
    seen = [repr(load_config(config_file)), str(load_config(config_file))]
    stream = io.StringIO()
    root = logging.getLogger()
    before, levels = root.handlers[:], (root.level, logging.getLogger("ringstep").level)
    configure("json", "debug", stream)
    root.setLevel(logging.DEBUG)
    logging.getLogger("grpc").setLevel(logging.DEBUG)
    try:
        credentials = load_credentials(
            authority.cert, mine.cert, mine.key, env={"RINGSTEP_TOKEN": token}
        )
        authenticator = Authenticator(tokens)
        seen += [
            repr(credentials),
            str(credentials),
            repr(authenticator),
            repr(load_tokens(tokens)),
        ]
        async with serving(authenticator) as channel:
            for used in (token, wrong):
                stub: Any = switches_pb2_grpc.SwitchesStub(channel)
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.Drain(switches_pb2.DrainRequest(), metadata=bearer(used))
                seen += [str(caught.value), repr(caught.value)]
        for bad in (f'store = "mysql://me:{password}@db/x"\n', f"store = 5\nlisten = {password!r}"):
            config_file.write_text(f'topology = "f"\n{bad}')
            with pytest.raises(ValueError, match=r"controller\.toml") as refused:
                load_config(config_file)
            seen.append(str(refused.value).replace(repr(password), ""))
    finally:
        root.handlers[:] = before
        root.setLevel(levels[0])
        logging.getLogger("ringstep").setLevel(levels[1])
        logging.getLogger("grpc").setLevel(logging.NOTSET)
    shown = stream.getvalue() + "\n".join(seen)
    assert "refused /ringstep.v1.Switches/Drain" in stream.getvalue()
    assert "chmod 640" in stream.getvalue()
    key_lines = mine.key.read_text().splitlines()[1:-1]
    for secret in (token, wrong, password, token_digest(token), *key_lines):
        assert secret not in shown

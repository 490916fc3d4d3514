"""controller.toml: what it may say, and what is said about one that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringstep.controller.config import (
    ConfigError,
    ControllerConfig,
    P4RuntimeConfig,
    load_config,
    refuse_exposure,
)
from ringstep.controller.p4rt import Timing


def write(folder: Path, text: str) -> Path:
    path = folder / "controller.toml"
    path.write_text(text)
    return path


def test_topology_is_all_that_is_needed(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, 'topology = "fabric.toml"\n'))
    assert config.topology == tmp_path / "fabric.toml"
    assert config.listen == "127.0.0.1:9560"
    assert config.store == f"sqlite:///{tmp_path / 'ringstep.db'}"
    assert (config.pipeline.p4info, config.pipeline.json_) == (None, None)
    assert config.p4runtime.timing == Timing()


def test_everything_can_be_set_and_paths_start_at_the_file(tmp_path: Path) -> None:
    config = load_config(
        write(
            tmp_path,
            'topology = "/etc/fabric.toml"\nlisten = "[::1]:0"\nstore = "sqlite:////var/x.db"\n'
            '[pipeline]\np4info = "p/x.txtpb"\njson = "p/x.json"\n'
            "[p4runtime]\nelection_id = 7\nheartbeat_s = 1.5\naudit_s = 60\n",
        )
    )
    assert str(config.topology) == "/etc/fabric.toml"
    assert config.listen == "[::1]:0"
    assert config.store == "sqlite:////var/x.db"
    assert config.pipeline.p4info == tmp_path / "p/x.txtpb"
    assert config.pipeline.json_ == tmp_path / "p/x.json"
    assert config.p4runtime.election_id == 7
    assert (config.p4runtime.timing.heartbeat_s, config.p4runtime.timing.audit_s) == (1.5, 60)


def test_a_switch_may_run_another_program(tmp_path: Path) -> None:
    config = load_config(
        write(
            tmp_path,
            'topology = "f.toml"\n[pipeline]\nuec = true\n'
            '[pipeline.switch.spine1]\np4info = "x.txtpb"\njson = "x.json"\n'
            "[pipeline.switch.spine2]\n",
        )
    ).pipeline
    assert config.uec
    assert config.switch["spine1"].p4info == tmp_path / "x.txtpb"
    assert config.switch["spine1"].json_ == tmp_path / "x.json"
    assert not config.switch["spine2"].uec


def test_security_and_paths_of_files(tmp_path: Path) -> None:
    config = load_config(
        write(
            tmp_path,
            'topology = "f.toml"\nlisten = "0.0.0.0:9560"\nadvertise = "ctl1:9560"\n'
            '[tls]\ncert = "a.pem"\nkey = "a.key"\nclient_ca = "ca.pem"\n'
            '[auth]\ntokens = "/etc/tokens.toml"\n',
        )
    )
    assert config.tls is not None
    assert config.auth is not None
    assert config.tls.cert == tmp_path / "a.pem"
    assert config.tls.client_ca == tmp_path / "ca.pem"
    assert str(config.auth.tokens) == "/etc/tokens.toml"
    assert config.advertise == "ctl1:9560"


def test_switches_may_differ_in_tls_and_foreign_entries(tmp_path: Path) -> None:
    config = load_config(
        write(
            tmp_path,
            'topology = "f.toml"\n[p4runtime]\nforeign = "keep"\n'
            '[p4runtime.tls]\nca = "ca.pem"\ncert = "me.pem"\nkey = "me.key"\n'
            '[p4runtime.switch.tor1]\nserver_name = "tor1.example"\nforeign = "remove"\n'
            "[p4runtime.switch.tor2]\nplaintext = true\n",
        )
    ).p4runtime
    assert [config.foreign_of(name) for name in ("tor1", "tor2", "x")] == ["remove", "keep", "keep"]
    own, other = config.tls_of("tor1"), config.tls_of("x")
    assert own is not None
    assert other is not None
    assert (own.server_name, own.ca) == ("tor1.example", tmp_path / "ca.pem")
    assert (other.server_name, other.key) == ("", tmp_path / "me.key")
    assert config.tls_of("tor2") is None
    assert P4RuntimeConfig().tls_of("tor1") is None


def test_jobs_and_tenants(tmp_path: Path) -> None:
    config = load_config(
        write(
            tmp_path,
            'topology = "f.toml"\n[jobs]\nlease = "10m"\nmax_lease = "2h"\nquarantine = "1.5s"\n'
            "[jobs.quota]\ndefault = 5\n[tenants.research]\nmax_jobs = 100\n[tenants.prod]\n",
        )
    )
    assert (config.jobs.lease_s, config.jobs.max_lease_s) == (600, 7200)
    assert config.jobs.quarantine_s == 1.5
    assert (config.max_jobs("research"), config.max_jobs("prod")) == (100, 5)
    assert config.knows_tenant("prod")
    assert not config.knows_tenant("default")


def test_without_configuration_jobs_live_on_and_any_tenant_is_known(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, 'topology = "f.toml"\n[jobs]\nlease = "off"\n'))
    assert (config.jobs.lease_s, config.jobs.max_lease_s) == (0, 86_400)
    assert config.jobs.quarantine_s == 60
    assert config.max_jobs("any") is None
    assert config.knows_tenant("any")
    assert config.metrics.listen is None
    assert (config.log.format, config.log.level) == ("text", "info")


@pytest.mark.parametrize(
    "tables",
    [
        '[tls]\ncert = "c"\nkey = "k"\n[auth]\ntokens = "t"\n',
        '[tls]\ncert = "c"\nkey = "k"\nclient_ca = "ca"\n',
    ],
)
def test_other_addresses_are_served_with_tls_and_known_callers(tmp_path: Path, tables: str) -> None:
    path = write(tmp_path, f'topology = "f"\nlisten = "10.0.0.1:9560"\n{tables}')
    assert load_config(path).listen == "10.0.0.1:9560"


@pytest.mark.parametrize(
    ("tables", "reason"),
    [
        ("", "there is no TLS: anyone on the way could command the fabric; give"),
        ('[auth]\ntokens = "t"\n', "command the fabric and read the tokens that are sent to it"),
        ('[tls]\ncert = "c"\nkey = "k"\n', "nobody is asked who he is; give [auth] tokens or"),
    ],
)
def test_other_addresses_are_not_served_unprotected_unless_told_by_name(
    tmp_path: Path, tables: str, reason: str
) -> None:
    path = write(tmp_path, f'topology = "f"\nlisten = "10.0.0.1:9560"\n{tables}')
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    text = str(caught.value)
    assert "controller.toml:2: listen: 10.0.0.1:9560 is not loopback and" in text
    assert reason in text
    assert "or listen on 127.0.0.1, or say insecure_listen = true (serve --insecure-listen)" in text
    assert load_config(path, {"insecure_listen": True}).insecure_listen
    assert load_config(path, {"listen": "127.0.0.1:1"}).listen == "127.0.0.1:1"
    with pytest.raises(ConfigError, match="insecure_listen"):
        refuse_exposure(ControllerConfig(topology=path, listen="[fd00::1]:9560"))


def test_password_of_the_store_is_not_shown(tmp_path: Path) -> None:
    url = "postgresql://ringstep:pass/w@rd@db.example/ringstep?sslmode=require"
    config = load_config(write(tmp_path, f'topology = "f"\nstore = "{url}"\n'))
    assert config.store == url
    for shown in (repr(config), str(config)):
        assert "postgresql://ringstep:***@db.example/ringstep?sslmode=require" in shown
        assert "pass/w" not in shown
    bad = write(tmp_path, f'topology = "f"\nstore = "{url.replace("postgresql", "mysql")}"\n')
    with pytest.raises(ConfigError, match="'mysql' is not a kind of store") as caught:
        load_config(bad)
    assert "pass/w" not in str(caught.value)
    with pytest.raises(ValueError, match="not a kind of store") as invalid:
        ControllerConfig(topology=bad, store="mysql://me:pass/w@rd@db")
    assert "pass/w" not in str(invalid.value)


def test_store_in_memory_is_left_alone(tmp_path: Path) -> None:
    path = write(tmp_path, 'topology = "f.toml"\nstore = "sqlite://"\n')
    assert load_config(path).store == "sqlite://"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "",
            "controller.toml: 'topology' is missing; write for example topology = \"fabric.toml\"",
        ),
        (
            'topology = "f"\nlisten = "localhost"\n',
            "controller.toml:2: listen: 'localhost' is not HOST:PORT; write for example "
            '"127.0.0.1:9559" or "[::1]:9559"',
        ),
        (
            'topology = "f"\nlisen = "127.0.0.1:1"\n',
            "controller.toml:2: lisen: unknown key; did you mean 'listen'? known keys here: "
            "topology, listen, advertise, insecure_listen, store, tls, auth, pipeline, p4runtime, "
            "jobs, tenants, metrics, log",
        ),
        (
            'topology = "f"\n[p4runtime]\nelection_id = 0\n',
            "controller.toml:3: p4runtime.election_id: 0 is outside 1..2**64 - 1; a higher id wins",
        ),
        (
            'topology = "f"\n[p4runtime]\naudit_s = -1\n',
            "controller.toml:3: p4runtime.audit_s: -1 is not usable: input should be greater than "
            "0",
        ),
        (
            'topology = "f"\n[pipeline]\nuec = true\njson = "x.json"\n',
            "controller.toml:2: pipeline: uec names a program that comes with Ringstep, p4info and "
            "json another; give one of the two (a program compiled with -DRINGSTEP_UEC needs no "
            "uec)",
        ),
        (
            'topology = "f"\n[pipeline.switch.tor1]\nuce = true\n',
            "controller.toml:3: pipeline.switch.tor1.uce: unknown key; did you mean 'uec'? known "
            "keys here: p4info, json, uec",
        ),
        (
            'topology = "f"\n[tls]\ncert = "c.pem"\n',
            "controller.toml:2: tls: 'key' is missing; write for example key = \"controller.key\"",
        ),
        (
            'topology = "f"\n[p4runtime.tls]\ncert = "c.pem"\n',
            "controller.toml:2: p4runtime.tls: key is missing; a certificate and its key go "
            "together",
        ),
        (
            'topology = "f"\n[p4runtime]\nforeign = "ignore"\n',
            "controller.toml:3: p4runtime.foreign: 'ignore' is not one of 'remove' or 'keep'",
        ),
        (
            'topology = "f"\n[jobs]\nlease = 600\n',
            "controller.toml:3: jobs.lease: 600 is not a duration; write a number with s, m, h or "
            'd, such as "90s", "10m", or "off"',
        ),
        (
            'topology = "f"\n[jobs]\nmax_lease = "100ms"\n',
            'controller.toml:3: jobs.max_lease: 0.1 s: must be whole seconds, at least "1s"',
        ),
        (
            'topology = "f"\n[jobs]\nlease = "2d"\n',
            "controller.toml:2: jobs: lease is 172800 s, but max_lease 86400 s; a lease is at most "
            "as long as max_lease",
        ),
        (
            'topology = "f"\n[tenants."a b"]\n',
            "controller.toml: tenants: 'a b' is not a tenant's name; write a letter, then up to 62 "
            "letters, digits, '_', '-' or '.', such as [tenants.research]",
        ),
        (
            'topology = "f"\n[tenants.a]\nmax_jobs = -1\n',
            "controller.toml:3: tenants.a.max_jobs: -1 is not usable: input should be greater than "
            "or equal to 0",
        ),
        (
            'topology = "f"\n[tenants.a]\nmax_job = 1\n',
            "controller.toml:3: tenants.a.max_job: unknown key; did you mean 'max_jobs'? known "
            "keys here: max_jobs",
        ),
        (
            'topology = "f"\n[log]\nformat = "xml"\n',
            "controller.toml:3: log.format: 'xml' is not one of 'text' or 'json'",
        ),
        (
            'topology = "f"\n[metrics]\nlisten = "9561"\n',
            "controller.toml:3: metrics.listen: '9561' is not HOST:PORT; write for example "
            '"127.0.0.1:9559" or "[::1]:9559"',
        ),
        ("topology = \n", "controller.toml:1:12: not TOML: Invalid value"),
    ],
)
def test_mistakes_are_named_by_line_and_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, text))
    assert str(caught.value).removeprefix(f"{tmp_path}/") == message


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give the path of a controller configuration"):
        load_config(tmp_path / "none.toml")

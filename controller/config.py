"""The controller's configuration: ``controller.toml``, overridden by the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from ringstep.controller.channels import is_loopback
from ringstep.controller.defaults import (
    DEFAULT_LISTEN,
    DEFAULT_STORE,
    parse_duration,
    parse_listen,
)
from ringstep.controller.p4rt import Timing
from ringstep.controller.redact import safe_url
from ringstep.fabric.tomlfile import (
    FileError,
    Location,
    Problems,
    TomlTable,
    parse_toml,
    read_text,
)
from ringstep.fabric.topology import parse_target

DEFAULT_TENANT: Final = "default"
"""The tenant of jobs that name none, registered with a token of none."""
_EXAMPLES = {
    "topology": 'topology = "fabric.toml"',
    "cert": 'cert = "controller.pem"',
    "key": 'key = "controller.key"',
    "tokens": 'tokens = "tokens.toml"',
    "max_jobs": "max_jobs = 100",
}
_SQLITE_FILE = "sqlite:///"
_NAME = re.compile(r"^[A-Za-z][A-Za-z0-9_.-]{0,62}\Z")
_STORES = ("sqlite", "postgresql", "postgresql+psycopg")
_TIMING = Timing()
_Table = TypeVar("_Table", bound=TomlTable)


class ConfigError(FileError):
    """A configuration file that cannot be used; ``problems`` holds one line per mistake."""


Seconds = Annotated[float, Field(gt=0, le=3600)]


class ProgramConfig(TomlTable):
    """Paths of p4c's output; without them, the program that comes with Ringstep.

    ``uec``: that program in the build with Ultra Ethernet.
    """

    p4info: Path | None = None
    json_: Annotated[Path | None, Field(alias="json")] = None
    uec: Annotated[bool, Field(strict=True)] = False

    @model_validator(mode="after")
    def _one_program(self) -> Self:
        if self.uec and (self.p4info or self.json_):
            raise ValueError(
                "uec names a program that comes with Ringstep, p4info and json another; give one "
                "of the two (a program compiled with -DRINGSTEP_UEC needs no uec)"
            )
        return self

    def under(self, folder: Path) -> Self:
        """Return it with relative paths starting at ``folder``."""
        return self.model_copy(
            update={
                "p4info": None if self.p4info is None else folder / self.p4info,
                "json_": None if self.json_ is None else folder / self.json_,
            }
        )


class PipelineConfig(ProgramConfig):
    """The program of all switches, and of those that run another one, by name."""

    switch: dict[str, ProgramConfig] = Field(default_factory=dict)


def _election_id(value: int) -> int:
    if not 0 < value < 1 << 64:
        raise ValueError(f"{value} is outside 1..2**64 - 1; a higher id wins")
    return value


Foreign = Literal["remove", "keep"]
"""What is done with entries that a switch holds and nobody here put there."""


class SwitchTlsConfig(TomlTable):
    """TLS to switches; PEM files.

    ``ca``: authorities that sign the switches' certificates; without it, those of the system.
    ``cert`` and ``key``: who we are, for switches that ask. ``server_name``: the name that a
    switch's certificate carries, where that is not the host of its address.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    server_name: str = ""

    @model_validator(mode="after")
    def _cert_with_key(self) -> Self:
        if (self.cert is None) != (self.key is None):
            missing = "cert" if self.cert is None else "key"
            raise ValueError(f"{missing} is missing; a certificate and its key go together")
        return self


class SwitchConfig(TomlTable):
    """What is different with one switch. ``plaintext``: it has no TLS, whatever the others have."""

    server_name: str | None = None
    plaintext: Annotated[bool, Field(strict=True)] = False
    foreign: Foreign | None = None


class P4RuntimeConfig(TomlTable):
    """How sessions with switches are held; intervals in seconds."""

    election_id: Annotated[int, Field(strict=True), AfterValidator(_election_id)] = 1
    connect_s: Seconds = _TIMING.connect_s
    rpc_s: Seconds = _TIMING.rpc_s
    state_s: Seconds = _TIMING.state_s
    heartbeat_s: Seconds = _TIMING.heartbeat_s
    audit_s: Seconds = _TIMING.audit_s
    retry_max_s: Seconds = _TIMING.retry_max_s
    foreign: Foreign = "remove"
    tls: SwitchTlsConfig | None = None
    switch: dict[str, SwitchConfig] = Field(default_factory=dict)

    def foreign_of(self, switch: str) -> Foreign:
        """Return what is done with foreign entries of a switch."""
        own = self.switch.get(switch)
        return self.foreign if own is None or own.foreign is None else own.foreign

    def tls_of(self, switch: str) -> SwitchTlsConfig | None:
        """Return the TLS settings of the session with a switch, or None where it has no TLS."""
        own = self.switch.get(switch, SwitchConfig())
        if self.tls is None or own.plaintext:
            return None
        if own.server_name is None:
            return self.tls
        return self.tls.model_copy(update={"server_name": own.server_name})

    @property
    def timing(self) -> Timing:
        """The intervals, as a session takes them."""
        return Timing(
            connect_s=self.connect_s,
            rpc_s=self.rpc_s,
            state_s=self.state_s,
            heartbeat_s=self.heartbeat_s,
            audit_s=self.audit_s,
            retry_max_s=self.retry_max_s,
        )


class TlsConfig(TomlTable):
    """TLS of the API; PEM files. With ``client_ca``, clients must show a certificate it signed."""

    cert: Path
    key: Path
    client_ca: Path | None = None


class AuthConfig(TomlTable):
    """Who may call: the file that holds the tokens' hashes."""

    tokens: Path


def _parse_lease(value: object) -> timedelta | None:
    if value is None or value == "off":
        return None
    try:
        lease = parse_duration(value)
    except ValueError as error:
        raise ValueError(f'{error}, or "off"') from None
    return _whole_seconds(lease)


def _whole_seconds(value: timedelta) -> timedelta:
    if value.total_seconds() < 1 or value.total_seconds() % 1:
        raise ValueError(f'{value.total_seconds():g} s: must be whole seconds, at least "1s"')
    return value


Quota = Annotated[int, Field(strict=True, ge=0)]


class QuotaConfig(TomlTable):
    """Live jobs that a tenant may have, where its own table says nothing else; None: any number."""

    default: Quota | None = None


class JobsConfig(TomlTable):
    """How long jobs and Job_IDs live.

    ``lease``: of jobs that ask for none; None: they have none, and live until released.
    ``max_lease``: the longest that may be asked for. ``quarantine``: from a job's release until
    its Job_ID may be handed out again.
    """

    lease: Annotated[timedelta | None, BeforeValidator(_parse_lease)] = None
    max_lease: Annotated[
        timedelta, BeforeValidator(parse_duration), AfterValidator(_whole_seconds)
    ] = timedelta(days=1)
    quarantine: Annotated[timedelta, BeforeValidator(parse_duration)] = timedelta(seconds=60)
    quota: QuotaConfig = QuotaConfig()

    @model_validator(mode="after")
    def _lease_allowed(self) -> Self:
        if self.lease is not None and self.lease > self.max_lease:
            raise ValueError(
                f"lease is {self.lease_s} s, but max_lease {self.max_lease_s} s; a lease is at "
                "most as long as max_lease"
            )
        return self

    @property
    def lease_s(self) -> int:
        """The default lease in seconds; 0: none."""
        return 0 if self.lease is None else round(self.lease.total_seconds())

    @property
    def max_lease_s(self) -> int:
        """The longest lease in seconds."""
        return round(self.max_lease.total_seconds())

    @property
    def quarantine_s(self) -> float:
        """Seconds from a release until the Job_ID may be handed out again."""
        return self.quarantine.total_seconds()


class TenantConfig(TomlTable):
    """What one tenant may have. ``max_jobs`` None: what ``jobs.quota.default`` says."""

    max_jobs: Quota | None = None


def _tenant_names(tenants: dict[str, TenantConfig]) -> dict[str, TenantConfig]:
    for name in tenants:
        if not _NAME.match(name):
            raise ValueError(
                f"{name!r} is not a tenant's name; write a letter, then up to 62 letters, digits, "
                "'_', '-' or '.', such as [tenants.research]"
            )
    return tenants


class MetricsConfig(TomlTable):
    """Where Prometheus reads; None: nowhere."""

    listen: Annotated[str, BeforeValidator(parse_listen)] | None = None


class LogConfig(TomlTable):
    """How the controller logs, to standard error."""

    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"


def _store_url(value: object) -> str:
    # The value is never repeated: it may hold a password.
    scheme = value.partition(":")[0] if isinstance(value, str) else ""
    if not isinstance(value, str) or scheme not in _STORES or f"{scheme}://" not in value:
        raise ValueError(
            f"{scheme or 'this'!r} is not a kind of store; write "
            '"sqlite:///PATH" or "postgresql://USER@HOST/DATABASE"'
        )
    return value


class ControllerConfig(TomlTable):
    """All of ``controller.toml``. Relative paths start at the file's own folder.

    ``advertise``: where other controllers send clients while this one leads; None: ``listen``.
    ``insecure_listen``: serve without TLS, or without asking who calls, beyond loopback.
    """

    # A store's URL may hold a password; pydantic's own messages would repeat it.
    model_config = ConfigDict(hide_input_in_errors=True)

    topology: Path
    listen: Annotated[str, BeforeValidator(parse_listen)] = DEFAULT_LISTEN
    advertise: Annotated[str, BeforeValidator(parse_target)] | None = None
    insecure_listen: Annotated[bool, Field(strict=True)] = False
    store: Annotated[str, BeforeValidator(_store_url)] = DEFAULT_STORE
    tls: TlsConfig | None = None
    auth: AuthConfig | None = None
    pipeline: PipelineConfig = PipelineConfig()
    p4runtime: P4RuntimeConfig = P4RuntimeConfig()
    jobs: JobsConfig = JobsConfig()
    tenants: Annotated[dict[str, TenantConfig], AfterValidator(_tenant_names)] = Field(
        default_factory=dict
    )
    metrics: MetricsConfig = MetricsConfig()
    log: LogConfig = LogConfig()

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Show everything but the password of the store."""
        for name, value in super().__repr_args__():
            yield name, safe_url(self.store) if name == "store" else value

    def knows_tenant(self, tenant: str) -> bool:
        """Say whether jobs of this tenant are taken: all are unless [tenants] lists some."""
        return not self.tenants or tenant in self.tenants

    def max_jobs(self, tenant: str) -> int | None:
        """Return how many live jobs a tenant may have; None: any number."""
        own = self.tenants.get(tenant)
        return self.jobs.quota.default if own is None or own.max_jobs is None else own.max_jobs


def exposure_problems(config: ControllerConfig) -> list[tuple[Location, str]]:
    """Return what is unsafe about where the API is served, by key; empty where nothing is."""
    if is_loopback(config.listen) or config.insecure_listen:
        return []
    ways_out = (
        "or listen on 127.0.0.1, or say insecure_listen = true (serve --insecure-listen) if "
        "everybody who reaches it may command it"
    )
    if config.tls is None:
        secret = " and read the tokens that are sent to it" if config.auth is not None else ""
        return [
            (
                ("listen",),
                f"{config.listen} is not loopback and there is no TLS: anyone on the way could "
                f"command the fabric{secret}; give [tls] cert and key, {ways_out}",
            )
        ]
    if config.auth is None and config.tls.client_ca is None:
        return [
            (
                ("listen",),
                f"{config.listen} is not loopback and nobody is asked who he is; give [auth] "
                f"tokens or tls.client_ca, {ways_out}",
            )
        ]
    return []


def refuse_exposure(config: ControllerConfig) -> None:
    """Check that the API is not served unprotected beyond loopback, unless told by name.

    Raises:
        ConfigError: it would be; the text says all ways out.
    """
    if problems := exposure_problems(config):
        raise ConfigError(
            "controller.toml", [f"{'.'.join(map(str, where))}: {text}" for where, text in problems]
        )


def load_config(path: Path, changes: Mapping[str, object] | None = None) -> ControllerConfig:
    """Read and check a configuration file.

    ``changes``: top-level keys that stand in for the file's, as the command line gives them.

    Raises:
        ConfigError: it cannot be read, is not TOML, has wrong or unknown keys, or would serve
            unprotected beyond loopback without saying so.
    """
    text = read_text(path, "a controller configuration", ConfigError)
    config = parse_toml(text, str(path), ControllerConfig, _EXAMPLES, ConfigError)
    folder = path.resolve().parent
    others = {name: program.under(folder) for name, program in config.pipeline.switch.items()}
    p4runtime = config.p4runtime.model_copy(
        update={"tls": _under(folder, config.p4runtime.tls, "ca", "cert", "key")}
    )
    config = config.model_copy(
        update={
            "topology": folder / config.topology,
            "store": _absolute_store(config.store, folder),
            "tls": _under(folder, config.tls, "cert", "key", "client_ca"),
            "auth": _under(folder, config.auth, "tokens"),
            "pipeline": config.pipeline.under(folder).model_copy(update={"switch": others}),
            "p4runtime": p4runtime,
            **(changes or {}),
        }
    )
    problems = Problems(text, str(path), ConfigError)
    for location, problem in exposure_problems(config):
        problems.add(location, problem)
    problems.raise_if_any()
    return config


def _under(folder: Path, table: _Table | None, *keys: str) -> _Table | None:
    if table is None:
        return None
    paths = {key: folder / path for key in keys if (path := getattr(table, key)) is not None}
    return table.model_copy(update=paths)


def _absolute_store(url: str, folder: Path) -> str:
    path = url.removeprefix(_SQLITE_FILE)
    if path == url or path in {"", ":memory:"}:
        return url
    return f"{_SQLITE_FILE}{folder / path}"

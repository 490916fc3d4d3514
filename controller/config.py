"""The controller's configuration: ``controller.toml``, overridden by the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ringstep.controller.defaults import DEFAULT_LISTEN, DEFAULT_STORE, parse_listen
from ringstep.controller.p4rt import Timing
from ringstep.fabric.tomlfile import FileError, TomlTable, parse_toml, read_text

_EXAMPLES = {"topology": 'topology = "fabric.toml"'}
_SQLITE_FILE = "sqlite:///"
_TIMING = Timing()


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


class P4RuntimeConfig(TomlTable):
    """How sessions with switches are held; intervals in seconds."""

    election_id: Annotated[int, Field(strict=True), AfterValidator(_election_id)] = 1
    connect_s: Seconds = _TIMING.connect_s
    rpc_s: Seconds = _TIMING.rpc_s
    state_s: Seconds = _TIMING.state_s
    heartbeat_s: Seconds = _TIMING.heartbeat_s
    audit_s: Seconds = _TIMING.audit_s
    retry_max_s: Seconds = _TIMING.retry_max_s

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


class ControllerConfig(TomlTable):
    """All of ``controller.toml``. Relative paths start at the file's own folder."""

    topology: Path
    listen: Annotated[str, BeforeValidator(parse_listen)] = DEFAULT_LISTEN
    store: str = DEFAULT_STORE
    pipeline: PipelineConfig = PipelineConfig()
    p4runtime: P4RuntimeConfig = P4RuntimeConfig()


def load_config(path: Path) -> ControllerConfig:
    """Read and check a configuration file.

    Raises:
        ConfigError: it cannot be read, is not TOML, or has wrong or unknown keys.
    """
    text = read_text(path, "a controller configuration", ConfigError)
    config = parse_toml(text, str(path), ControllerConfig, _EXAMPLES, ConfigError)
    folder = path.resolve().parent
    others = {name: program.under(folder) for name, program in config.pipeline.switch.items()}
    return config.model_copy(
        update={
            "topology": folder / config.topology,
            "store": _absolute_store(config.store, folder),
            "pipeline": config.pipeline.under(folder).model_copy(update={"switch": others}),
        }
    )


def _absolute_store(url: str, folder: Path) -> str:
    path = url.removeprefix(_SQLITE_FILE)
    if path == url or path in {"", ":memory:"}:
        return url
    return f"{_SQLITE_FILE}{folder / path}"

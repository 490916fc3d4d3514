"""The controller's configuration: ``controller.toml``, overridden by the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from ringstep.controller.defaults import DEFAULT_LISTEN, DEFAULT_STORE, parse_listen
from ringstep.controller.p4rt import Timing
from ringstep.fabric.tomlfile import FileError, TomlTable, parse_toml, read_text

_EXAMPLES = {"topology": 'topology = "fabric.toml"'}
_SQLITE_FILE = "sqlite:///"
_TIMING = Timing()


class ConfigError(FileError):
    """A configuration file that cannot be used; ``problems`` holds one line per mistake."""


Seconds = Annotated[float, Field(gt=0, le=3600)]


class PipelineConfig(TomlTable):
    """Paths of p4c's output; without them, the program that comes with Ringstep."""

    p4info: Path | None = None
    json_: Annotated[Path | None, Field(alias="json")] = None


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
    pipeline = config.pipeline
    return config.model_copy(
        update={
            "topology": folder / config.topology,
            "store": _absolute_store(config.store, folder),
            "pipeline": pipeline.model_copy(
                update={
                    "p4info": None if pipeline.p4info is None else folder / pipeline.p4info,
                    "json_": None if pipeline.json_ is None else folder / pipeline.json_,
                }
            ),
        }
    )


def _absolute_store(url: str, folder: Path) -> str:
    path = url.removeprefix(_SQLITE_FILE)
    if path == url or path in {"", ":memory:"}:
        return url
    return f"{_SQLITE_FILE}{folder / path}"

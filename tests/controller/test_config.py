"""controller.toml: what it may say, and what is said about one that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringstep.controller.config import ConfigError, load_config
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
            "topology, listen, store, pipeline, p4runtime",
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

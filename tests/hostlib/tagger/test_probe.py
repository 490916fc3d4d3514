"""What is missing is named, with what to do about it."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from ringstep.hostlib.native.build import SOURCES, BuiltTagger
from ringstep.hostlib.tagger import (
    Capabilities,
    Capability,
    NicTagger,
    TagError,
    _Capabilities,
    measure,
    probe,
    probe_nic,
)
from ringstep.protocol.tag import TagLayout

from .conftest import Mock

app = typer.Typer()
app.command()(probe_nic)


def lines(found: Capabilities, mark: str) -> str:
    return "\n".join(line for line in found.findings if line.startswith(mark))


def test_a_nic_that_can(mock: Mock, library: ctypes.CDLL) -> None:
    found = probe(library=library)
    assert found.can_tag
    assert (found.device, found.port, found.sports) == ("mlx5_0", 1, (0xC000, 0xFFFF))
    assert found.flags == (1 << 12) - 1
    assert all(line.startswith("ok  ") for line in found.findings)
    assert [call.kind for call in mock.calls()] == ["open", "firmware", "firmware", "close"]


@pytest.mark.parametrize(
    ("settings", "missing", "word"),
    [
        ({"DEVICES": "m=mlx5-ib"}, Capability.ETHERNET, "InfiniBand"),
        ({"DEVICES": "m=mlx5-roce1"}, Capability.ROCE_V2, "no GID of RoCE v2"),
        ({"DEVICES": "m=rxe"}, Capability.MLX5_DEVICE, "not driven by mlx5"),
        ({"DEVICES": "m=mlx5-closed"}, Capability.DEVICE, "cannot be opened: Permission denied"),
        ({"DEVICES": ""}, Capability.DEVICE, "no RDMA device"),
        ({"FIRMWARE": "0"}, Capability.FIRMWARE, "rts2rts_qp_udp_sport"),
        ({"RANGE": "49152-57343"}, Capability.RANGE, "source ports from 49152 to 57343"),
    ],
)
def test_what_is_against_it_is_named(
    mock: Mock,
    library: ctypes.CDLL,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, str],
    missing: Capability,
    word: str,
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(f"RINGSTEP_MOCK_{name}", value)
    found = probe(library=library)
    assert not found.can_tag
    assert missing not in found.flags
    assert word in lines(found, "no")


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"FIRMWARE": "errno:1"}, "Operation not permitted"),
        ({"RANGE": "0-0"}, "not known"),
        ({"DEVICES": "m=mlx5-down"}, "is down"),
    ],
)
def test_what_is_not_known_is_not_held_against_it(
    mock: Mock,
    library: ctypes.CDLL,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, str],
    word: str,
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(f"RINGSTEP_MOCK_{name}", value)
    found = probe(library=library)
    assert found.can_tag
    assert word in lines(found, "?")


def test_the_first_device_that_can_is_taken(
    mock: Mock, library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGSTEP_MOCK_DEVICES", "rxe0=rxe,ib=mlx5-ib,good=mlx5,other=mlx5")
    assert probe(library=library).device == "good"
    assert probe("other:1", library=library).can_tag
    assert not probe("ib", library=library).can_tag
    gone = probe("nosuch", library=library)
    assert (gone.can_tag, gone.device) == (False, "nosuch")
    assert "there are: rxe0, ib, good, other" in lines(gone, "no")
    assert "port 2 of good cannot be asked" in lines(probe("good:2", library=library), "no")
    for bad in ("good:", "good:0", "good:256", "good:x", "good:-1", "x" * 64):
        with pytest.raises(TagError):
            probe(bad, library=library)


def test_an_open_device(mock: Mock, library: ctypes.CDLL) -> None:
    found = _Capabilities()
    assert library.rt_probe_context(mock.open(), 1, ctypes.byref(found)) == 0
    assert library.rt_can_tag(found.flags) == 1
    assert found.device == b"mlx5_0"
    assert library.rt_probe_context(None, 1, ctypes.byref(found)) == 22
    assert library.rt_probe_context(mock.contexts[0], 0, ctypes.byref(found)) == 22
    assert library.rt_probe(b"", None) == 22


def test_a_library_that_is_not_rdma_core(
    mock: Mock, library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, built: BuiltTagger
) -> None:
    monkeypatch.setenv("RINGSTEP_TAG_PROVIDER", str(built.library))
    found = probe(library=library)
    assert found.flags == Capability.MLX5
    assert "MLX5_1.17" in lines(found, "no")
    with pytest.raises(TagError, match="rdma-core 33"):
        NicTagger(TagLayout(), library=library)
    monkeypatch.setenv("RINGSTEP_TAG_PROVIDER", "/nosuch/libmlx5.so")
    found = probe(library=library)
    assert found.flags == 0
    assert "/nosuch/libmlx5.so" in lines(found, "no")
    with pytest.raises(TagError, match="nosuch"):
        NicTagger(TagLayout(), library=library)


def test_this_machine_is_probed_without_a_crash(
    library: ctypes.CDLL, no_mock_settings: None
) -> None:
    found = probe(library=library)
    assert found.findings
    assert found.can_tag <= (Capability.DEVICE in found.flags)


def test_the_command(mock: Mock, built: BuiltTagger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGSTEP_TAG_LIBRARY", str(built.library))
    good = CliRunner().invoke(app, ["--device", "mlx5_0:1"])
    assert good.exit_code == 0
    assert "mlx5_0:1 can carry step tags" in good.output
    told = json.loads(CliRunner().invoke(app, ["--json", "--measure", "20"]).output)
    assert told["cost"]["calls"] == 20
    assert "20 commands" in CliRunner().invoke(app, ["--measure", "20"]).output
    assert told["can_tag"]
    assert "setter" in told["capabilities"]
    assert told["sports"] == [49152, 65535]
    monkeypatch.setenv("RINGSTEP_MOCK_DEVICES", "ib=mlx5-ib")
    bad = CliRunner().invoke(app, [])
    assert bad.exit_code == 1
    assert "LINK_TYPE" in bad.output
    wrong = CliRunner().invoke(app, ["--device", "mlx5_0:999"])
    assert wrong.exit_code == 2
    assert "1 to 255" in wrong.output


def test_the_cost_of_a_command_is_measured_and_nothing_left(
    mock: Mock, library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = measure("mlx5_0", 50, library=library)
    assert (cost.calls, cost.skipped, cost.failed) == (50, 0, 0)
    assert mock.ports() == [0xC000 + step for step in range(50)]
    kinds = [call.kind for call in mock.calls()]
    for made, gone in (("open", "close"), ("create", "destroy")):
        assert kinds.count(made) == kinds.count(gone) > 0
    assert [c.argument for c in mock.calls("modify")] == [1, 2, 3]
    monkeypatch.setenv("RINGSTEP_MOCK_FAIL", "53:5")
    with pytest.raises(TagError, match="error state"):
        measure("mlx5_0:1", 10, library=library)
    kinds = [call.kind for call in mock.calls()]
    assert kinds.count("create") == kinds.count("destroy")
    for device, count, word in (
        ("", 1, "no device"), ("mlx5_0", 0, "0 ports"), ("mlx5_0", 16_385, "16384"),
        ("mlx5_0:2", 1, "cannot"), ("nosuch", 1, "cannot"), ("mlx5_0:x", 1, "1 to 255"),
    ):  # fmt: skip
        with pytest.raises(TagError, match=word):
            measure(device, count, library=library)


def test_only_its_own_symbols_are_exported(built: BuiltTagger) -> None:
    done = subprocess.run(
        ["nm", "-D", "--defined-only", str(built.library)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip("needs nm: apt-get install binutils")
    names = [line.split()[-1].partition("@")[0] for line in done.stdout.splitlines()]
    assert names
    assert all(name.startswith("rt_") for name in names)
    needed = subprocess.run(
        ["ldd", str(built.library)], capture_output=True, text=True, check=False
    ).stdout
    assert "ibverbs" not in needed
    assert Path(built.mock).exists()


@pytest.mark.parametrize(("compiler", "language"), [("cc", "c"), ("c++", "c++")])
def test_the_header_stands_alone(tmp_path: Path, compiler: str, language: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}; `apt-get install g++`")
    source = tmp_path / "one"
    source.write_text("#include <ringstep_tag.h>\nrt_layout layout; rt_cost cost;\n")
    subprocess.run(
        [compiler, "-x", language, "-fsyntax-only", "-pedantic", "-Wall", "-Wextra", "-Werror",
         "-I", str(SOURCES / "tagger"), str(source)],
        check=True,
    )  # fmt: skip

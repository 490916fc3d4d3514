"""The C interface with wrong arguments: the code, the argument's name, what would be right."""

from __future__ import annotations

import ctypes
import importlib.util
import socket
import subprocess
import threading
from collections.abc import Iterator
from ctypes import byref, c_void_p
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ringstep.hostlib.native.build import BuiltEngine

BAD_ARGUMENT, ABORTED = 1, 4
FLOAT32, SUM = 7, 0
OK = 0


def _module() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "engine_scenarios", Path(__file__).with_name("scenarios.py")
    )
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


SCENARIOS = _module()


@pytest.fixture
def api(engine: BuiltEngine, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("NCCL_ALGO", "NCCL_PROTO", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN"):
        monkeypatch.delenv(name, raising=False)
    return SCENARIOS.Engine(str(engine.library))


def unique(api: Any) -> ctypes.Array[ctypes.c_char]:
    made = ctypes.create_string_buffer(128)
    assert api.library.re_get_unique_id(made, None) == OK, api.text
    return made


@pytest.fixture
def alone(api: Any) -> Iterator[c_void_p]:
    """A communicator of one rank."""
    comm = c_void_p()
    assert api.library.re_comm_init(byref(comm), unique(api), 1, 0, None) == OK, api.text
    yield comm
    api.library.re_comm_destroy(comm)


@pytest.fixture
def pair(api: Any) -> Iterator[list[c_void_p]]:
    """Both ranks of a communicator, in this process."""
    name = unique(api)
    comms = [c_void_p(), c_void_p()]
    codes: list[int] = []

    def join(rank: int) -> None:
        codes.append(api.library.re_comm_init(byref(comms[rank]), name, 2, rank, None))

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [OK, OK]
    yield comms
    for comm in comms:
        api.library.re_comm_destroy(comm)


BUFFER = ctypes.create_string_buffer(4096)
HERE = ctypes.addressof(BUFFER)


@pytest.mark.parametrize(
    ("function", "arguments", "said"),
    [
        ("re_all_reduce", (HERE, HERE, 4, 10, SUM), "type is 10: 0 (RE_INT8) to 9 (RE_BFLOAT16)"),
        ("re_all_reduce", (HERE, HERE, 4, -1, SUM), "type is -1: "),
        ("re_all_reduce", (HERE, HERE, 4, FLOAT32, 5), "op is 5: 0 (RE_SUM) to 4 (RE_AVG)"),
        ("re_all_reduce", (None, HERE, 4, FLOAT32, SUM), "send is NULL"),
        ("re_all_reduce", (HERE, None, 4, FLOAT32, SUM), "recv is NULL"),
        ("re_all_reduce", (HERE, HERE, 1 << 62, FLOAT32, SUM), "count is 4611686018427387904: "),
        ("re_all_reduce", (HERE, HERE + 4, 4, FLOAT32, SUM), "in place is send == recv"),
        ("re_all_gather", (HERE, HERE + 4, 4, FLOAT32), "send == recv + rank * count"),
        ("re_reduce_scatter", (HERE + 4, HERE, 4, FLOAT32, SUM), "recv == send + rank * count"),
        ("re_broadcast", (HERE, HERE, 4, FLOAT32, 1), "root is 1: 0 to 0"),
        ("re_broadcast", (HERE, HERE, 4, FLOAT32, -1), "root is -1: 0 to 0"),
    ],
)
def test_collectives_name_what_is_wrong(
    api: Any, alone: c_void_p, function: str, arguments: tuple[Any, ...], said: str
) -> None:
    assert getattr(api.library, function)(*arguments, alone) == BAD_ARGUMENT
    assert api.text.startswith(f"{function}: ")
    assert said in api.text
    assert api.library.re_all_reduce(HERE, HERE, 4, FLOAT32, SUM, alone) == OK


def test_no_communicator_is_an_error_and_not_a_crash(api: Any) -> None:
    library = api.library
    assert library.re_all_reduce(HERE, HERE, 4, FLOAT32, SUM, None) == BAD_ARGUMENT
    assert "comm is NULL" in api.text
    assert library.re_comm_fence(None) == BAD_ARGUMENT
    assert library.re_comm_last_run(None, None) == BAD_ARGUMENT
    assert (library.re_comm_rank(None), library.re_comm_n_ranks(None)) == (-1, -1)
    library.re_comm_destroy(None)
    library.re_comm_abort(None)


@pytest.mark.parametrize(
    ("ranks", "rank", "config", "said"),
    [
        (0, 0, {}, "n_ranks is 0: at least 1"),
        (2, 2, {}, "rank is 2: 0 to 1"),
        (2, -1, {}, "rank is -1: 0 to 1"),
        (1, 0, {"size": 8}, "config.size is 8: sizeof(re_config)"),
        (1, 0, {"timeout_s": -1.0}, "config.timeout_s"),
        (1, 0, {"timeout_s": float("nan")}, "config.timeout_s"),
        (1, 0, {"max_channels": 9}, "config.max_channels is 9: 1 to 8"),
    ],
)
def test_init_names_what_is_wrong(
    api: Any, ranks: int, rank: int, config: dict[str, Any], said: str
) -> None:
    given = SCENARIOS.Config(size=ctypes.sizeof(SCENARIOS.Config))
    for name, value in config.items():
        setattr(given, name, value)
    comm = c_void_p(1)
    code = api.library.re_comm_init(byref(comm), unique(api), ranks, rank, byref(given))
    assert code == BAD_ARGUMENT
    assert said in api.text
    assert comm.value is None


def test_a_longer_config_of_a_newer_header_is_taken(api: Any) -> None:
    size = ctypes.sizeof(SCENARIOS.Config)
    longer = ctypes.create_string_buffer(size + 64)
    ctypes.memmove(longer, byref(ctypes.c_size_t(size + 64)), 8)
    comm = c_void_p()
    assert api.library.re_comm_init(byref(comm), unique(api), 1, 0, longer) == OK, api.text
    api.library.re_comm_destroy(comm)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RINGSTEP_ENGINE_ALPHA_US", "fast"), ("RINGSTEP_ENGINE_ALPHA_US", "-1"),
        ("RINGSTEP_ENGINE_BETA_GBPS", "1,5"), ("RINGSTEP_ENGINE_BETA_GBPS", "inf"),
        ("NCCL_MIN_NCHANNELS", "0"), ("NCCL_ALGO", "rings"), ("NCCL_PROTO", "gather:ll"),
    ],
)  # fmt: skip
def test_settings_that_are_none_fail_init(
    engine: BuiltEngine, name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    done = subprocess.run([str(engine.perf), "all_reduce", "-N", "1", "--sizes", "8"],
                          capture_output=True, text=True, timeout=30, check=False)  # fmt: skip
    assert done.returncode == 1
    assert name in done.stderr


def test_a_group_that_was_never_opened(api: Any) -> None:
    assert api.library.re_group_end() == BAD_ARGUMENT
    assert "call re_group_start first" in api.text
    assert api.library.re_group_simulate_end() == BAD_ARGUMENT
    assert api.library.re_group_start() == OK
    assert api.library.re_group_end() == OK


def test_an_id_that_was_damaged(api: Any) -> None:
    comm = c_void_p()
    broken = ctypes.create_string_buffer(128)
    assert api.library.re_comm_init(byref(comm), broken, 1, 0, None) == BAD_ARGUMENT


def test_abort_from_another_thread_ends_a_waiting_collective(
    api: Any, pair: list[c_void_p]
) -> None:
    codes: list[int] = []

    def wait() -> None:  # the other rank never calls
        codes.append(api.library.re_all_reduce(HERE, HERE, 4, FLOAT32, SUM, pair[0]))

    thread = threading.Thread(target=wait)
    thread.start()
    api.library.re_comm_abort(pair[0])
    thread.join(30)
    assert codes == [ABORTED]
    assert api.library.re_all_reduce(HERE, HERE, 4, FLOAT32, SUM, pair[0]) == ABORTED


def test_a_communicator_may_end_inside_an_open_group(api: Any, pair: list[c_void_p]) -> None:
    assert api.library.re_group_start() == OK
    assert api.library.re_all_reduce(HERE, HERE, 4, FLOAT32, SUM, pair[0]) == OK
    api.library.re_comm_destroy(pair[0])
    pair[0] = c_void_p()
    assert api.library.re_group_end() == OK


def test_only_the_interface_is_exported(engine: BuiltEngine) -> None:
    listed = subprocess.run(["nm", "-D", "--defined-only", str(engine.library)],
                            capture_output=True, text=True, check=True).stdout  # fmt: skip
    names = {row.split()[-1] for row in listed.splitlines()}
    ours = {name for name in names if not name.startswith("_Z")}  # the rest: the standard library's
    assert all(name.startswith("re_") for name in ours), ours
    assert not [name for name in names if "8ringstep" in name]
    assert "re_comm_fence" in ours


def test_bind_addresses_that_are_taken_or_none(api: Any) -> None:
    name = ctypes.create_string_buffer(128)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        assert api.library.re_get_unique_id(name, where.encode()) != OK
        assert where in api.text
    assert api.library.re_get_unique_id(name, b"no such host") != OK
    assert api.library.re_get_unique_id(None, None) == BAD_ARGUMENT

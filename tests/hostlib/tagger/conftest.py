"""The library, and the mock provider with devices and queue pairs of its own."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ringstep.hostlib.native.build import BuiltTagger, build_tagger, missing_tools
from ringstep.hostlib.tagger import load


class Call(NamedTuple):
    kind: str
    qp_num: int
    argument: int
    result: int


class _Call(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("qp_num", ctypes.c_uint32),
        ("argument", ctypes.c_uint32),
        ("result", ctypes.c_int32),
    )


class _InitAttr(ctypes.Structure):
    _fields_ = (
        ("pointers", ctypes.c_void_p * 4),
        ("cap", ctypes.c_uint32 * 5),
        ("qp_type", ctypes.c_int),
        ("sq_sig_all", ctypes.c_int),
    )


KINDS = {1: "open", 2: "create", 3: "modify", 4: "destroy", 5: "sport", 6: "firmware", 7: "close"}
RC, UC, UD = 2, 3, 4
INIT, RTR, RTS, ERR = 1, 2, 3, 6
ALL = (1 << 21) - 1
"""Mask of ibv_modify_qp with every attribute."""


class Mock:
    """An open device of the mock provider."""

    def __init__(self, path: Path) -> None:
        self.library = library = ctypes.CDLL(str(path))
        for name in ("ibv_get_device_list", "ibv_open_device", "ibv_alloc_pd", "ibv_create_qp"):
            getattr(library, name).restype = ctypes.c_void_p
        library.rt_mock_calls.restype = ctypes.c_uint64
        library.rt_mock_sport.restype = ctypes.c_uint32
        self.contexts: list[int] = []
        self.pds: list[int] = []
        self.qps: list[int] = []
        library.rt_mock_reset()

    def open(self, index: int = 0) -> int:
        count = ctypes.c_int()
        devices = self.library.ibv_get_device_list(ctypes.byref(count))
        array = ctypes.cast(devices, ctypes.POINTER(ctypes.c_void_p))
        context = self.library.ibv_open_device(ctypes.c_void_p(array[index]))
        self.library.ibv_free_device_list(ctypes.c_void_p(devices))
        assert context
        self.contexts.append(context)
        return int(context)

    def qp(self, qp_type: int = RC, *, rts: bool = True) -> int:
        """Make a queue pair on the first device."""
        if not self.contexts:
            self.open()
        if not self.pds:
            self.pds.append(self.library.ibv_alloc_pd(ctypes.c_void_p(self.contexts[0])))
        attr = _InitAttr(qp_type=qp_type)
        qp = self.library.ibv_create_qp(ctypes.c_void_p(self.pds[0]), ctypes.byref(attr))
        self.qps.append(qp)
        if rts:
            assert self.library.rt_mock_to_rts(ctypes.c_void_p(qp)) == 0
        return int(qp)

    def modify(self, qp: int, state: int, mask: int = ALL) -> int:
        attr = ctypes.c_int(state)
        return int(self.library.ibv_modify_qp(ctypes.c_void_p(qp), ctypes.byref(attr), mask))

    def destroy(self, qp: int) -> None:
        self.qps.remove(qp)
        self.library.ibv_destroy_qp(ctypes.c_void_p(qp))

    def sport(self, qp: int) -> int:
        return int(self.library.rt_mock_sport(ctypes.c_void_p(qp)))

    def number(self, qp: int) -> int:
        return ctypes.c_uint32.from_address(qp + 52).value

    def calls(self, kind: str | None = None) -> list[Call]:
        room = self.library.rt_mock_calls(None, ctypes.c_uint64(0))
        array = (_Call * max(1, room))()
        self.library.rt_mock_calls(array, ctypes.c_uint64(room))
        found = [Call(KINDS[c.kind], c.qp_num, c.argument, c.result) for c in array[:room]]
        return [call for call in found if kind is None or call.kind == kind]

    def ports(self) -> list[int]:
        """The ports that were set, in order."""
        return [call.argument for call in self.calls("sport") if call.result == 0]

    def close(self) -> None:
        for qp in list(self.qps):
            self.destroy(qp)
        for pd in self.pds:
            self.library.ibv_dealloc_pd(ctypes.c_void_p(pd))
        for context in self.contexts:
            self.library.ibv_close_device(ctypes.c_void_p(context))
        self.library.rt_mock_reset()


@pytest.fixture(scope="session")
def built() -> BuiltTagger:
    ready = os.environ.get("RINGSTEP_TEST_TAGGER")  # instrumented, by test_sanitizers.py
    if ready is not None:
        return BuiltTagger(Path(ready))
    missing = missing_tools()
    if missing is not None:
        pytest.skip(missing)
    return build_tagger()


@pytest.fixture(scope="session")
def library(built: BuiltTagger) -> ctypes.CDLL:
    return load(built.library)


@pytest.fixture
def no_mock_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("RINGSTEP_MOCK", "RINGSTEP_TAG"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def mock(
    built: BuiltTagger, no_mock_settings: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Mock]:
    """The mock provider, chosen; settings of the environment may follow."""
    monkeypatch.setenv("RINGSTEP_TAG_PROVIDER", str(built.mock))
    mock = Mock(built.mock)
    yield mock
    mock.close()

"""What one rank of a test does with the engine's C interface: a process of its own.

``python scenarios.py LIBRARY SCENARIO RANK RANKS HOST:PORT``; prints one JSON object.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

FLOAT32, FLOAT64, INT32, SUM, MAX = 7, 8, 2, 0, 2


class Config(ctypes.Structure):
    _fields_ = (("size", c_size_t), ("address", c_char_p), ("bridge", c_char_p),
                ("node", c_char_p), ("timeout_s", c_double), ("max_channels", c_int),
                ("no_plugins", c_int))  # fmt: skip


class Run(ctypes.Structure):
    _fields_ = (("coll", c_int), ("algo", c_int), ("proto", c_int), ("n_channels", c_int),
                ("chunk_bytes", c_size_t), ("bytes", c_size_t), ("nanoseconds", c_uint64),
                ("decided", c_int))  # fmt: skip


class Engine:
    """The library; every call returns the code, ``text`` is the error's."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        self.library.re_last_error.restype = c_char_p
        self.library.re_comm_plugins.restype = c_char_p
        for name in ("re_comm_plugins", "re_comm_destroy", "re_comm_fence", "re_comm_abort"):
            getattr(self.library, name).argtypes = [c_void_p]
        self.library.re_comm_last_run.argtypes = [c_void_p, POINTER(Run)]
        self.library.re_all_reduce.argtypes = [c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p]
        self.library.re_reduce_scatter.argtypes = self.library.re_all_reduce.argtypes
        self.library.re_all_gather.argtypes = [c_void_p, c_void_p, c_size_t, c_int, c_void_p]
        self.library.re_broadcast.argtypes = [c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p]

    @property
    def text(self) -> str:
        return str(self.library.re_last_error().decode())

    def init(self, rank: int, ranks: int, where: str, **options: Any) -> tuple[int, c_void_p]:
        unique = ctypes.create_string_buffer(128)
        assert self.library.re_unique_id_of(unique, where.encode()) == 0, self.text
        config = Config(size=ctypes.sizeof(Config), timeout_s=options.pop("timeout_s", 30.0))
        for name, value in options.items():
            setattr(config, name, value)
        comm = c_void_p()
        code = self.library.re_comm_init(byref(comm), unique, ranks, rank, byref(config))
        return code, comm

    def all_reduce(self, comm: c_void_p, count: int, kind: int = FLOAT32, op: int = SUM) -> Any:
        width = 8 if kind == FLOAT64 else 4
        send, recv = ctypes.create_string_buffer(count * width), (ctypes.c_char * (count * width))()
        self.kept = [*getattr(self, "kept", []), send, recv]
        return self.library.re_all_reduce(send, recv, count, kind, op, comm)

    def last(self, comm: c_void_p) -> dict[str, int]:
        run = Run()
        assert self.library.re_comm_last_run(comm, byref(run)) == 0, self.text
        return {name: int(getattr(run, name)) for name, _ in Run._fields_}


def group(engine: Engine, comms: list[c_void_p]) -> dict[str, Any]:
    """Tasks of several kinds and sizes on the first communicator, one on each other."""
    library = engine.library
    codes = [library.re_group_start(), library.re_group_start()]
    for count in (1000, 100, 300, 40000, 0):
        codes.append(engine.all_reduce(comms[0], count))
    codes.append(engine.all_reduce(comms[0], 100, FLOAT32, MAX))
    codes.append(engine.all_reduce(comms[0], 100, INT32, SUM))
    codes.append(library.re_group_end())
    for comm in comms[1:]:
        codes.append(engine.all_reduce(comm, 7))
    codes.append(library.re_group_end())
    return {"codes": codes}


def simulate(engine: Engine, comms: list[c_void_p]) -> dict[str, Any]:
    """A group that is asked about and not run, then the same run."""
    codes = [engine.library.re_group_start(), engine.all_reduce(comms[0], 500),
             engine.library.re_group_simulate_end()]  # fmt: skip
    run = Run()
    ran = engine.library.re_comm_last_run(comms[0], byref(run)) == 0
    codes.append(engine.all_reduce(comms[0], 500))
    return {"codes": codes, "ran_in_simulation": ran}


def once(engine: Engine, comms: list[c_void_p]) -> dict[str, Any]:
    """One all-reduce, with what it had to give."""
    count = 30000
    values = (ctypes.c_float * count)(*([1.0] * count))
    code = engine.library.re_all_reduce(values, values, count, FLOAT32, SUM, comms[0])
    right = code != 0 or set(values) == {float(RANKS)}
    return {"code": code, "text": engine.text if code else "", "right": right}


def after_error(engine: Engine, comms: list[c_void_p]) -> dict[str, Any]:
    """A wrong call spoils its group; the communicator is as before."""
    codes = [engine.library.re_group_start(), engine.all_reduce(comms[0], 10),
             engine.all_reduce(comms[0], 10, 99), engine.library.re_group_end()]  # fmt: skip
    text = engine.text
    codes.append(engine.all_reduce(comms[0], 10))
    return {"codes": codes, "text": text}


SCENARIOS: dict[str, Callable[[Engine, list[c_void_p]], dict[str, Any]]] = {
    "group": group, "simulate": simulate, "once": once, "after_error": after_error,
}  # fmt: skip
COMMS = {"group": 3}

if __name__ == "__main__":
    PATH, NAME, RANK, RANKS, WHERE = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5]), sys.argv[5]
    host, first_port = WHERE.rsplit(":", 1)
    made = Engine(PATH)
    comms = []
    for i in range(COMMS.get(NAME, 1)):
        code, comm = made.init(RANK, RANKS, f"{host}:{int(first_port) + i}")
        if code:
            print(json.dumps({"init": code, "text": made.text}))
            sys.exit(0)
        comms.append(comm)
    found = SCENARIOS[NAME](made, comms)
    found["plugins"] = made.library.re_comm_plugins(comms[0]).decode()
    try:
        found["last"] = made.last(comms[0])
    except AssertionError:
        found["last"] = None
    for comm in comms:
        made.library.re_comm_destroy(comm)
    print(json.dumps(found))

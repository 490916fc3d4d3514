"""NCCL's own adapters drive the plugin: the judge of every ABI that somebody else wrote.

NCCL turns older plugin ABIs into its newest one by functions inside of libnccl.so.2, which need no
GPU. They are local symbols of a library that is not stripped; its symbol table has their addresses.
PyTorch brings such a library along.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ringstep.hostlib.native.build import Built
from ringstep.hostlib.shm import Decision, DecisionTable, Record, ShmFile
from ringstep.hostlib.shm_layout import Algo, Collective, Proto, RecordFlag

COMMON = r"""
import ctypes, re, subprocess, sys
from pathlib import Path
from ringstep.hostlib.native.caller import IGNORE, Costs, Plugin, Rank, _Profiler, _Tuner
from ringstep.hostlib.shm_layout import Algo, Collective, Proto

nccl, path = sys.argv[1], Path(sys.argv[2])
library = ctypes.CDLL(nccl)
table = subprocess.run(["nm", nccl], capture_output=True, text=True, check=True).stdout
symbols = {row.split()[2]: int(row.split()[0], 16) for row in table.splitlines()
           if len(row.split()) == 3 and re.search("getNccl|ncclGetVersion$", row)}
base = ctypes.cast(library.ncclGetVersion, ctypes.c_void_p).value - symbols["ncclGetVersion"]

def adapted(kind, version):
    name = f"getNccl{kind}_v{version}"
    address = base + symbols[f"_Z{len(name)}{name}Pv"]
    get = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)
    return get(plugin.library._handle)

class Adapted(Plugin):
    tuner_abi = profiler_abi = None  # of the adapter; None: straight to the newest
    def tuner(self, _):
        if self.tuner_abi is None:
            return super().tuner(6)
        return _Tuner.from_address(adapted("Tuner", self.tuner_abi))
    def profiler(self, _):
        if self.profiler_abi is None:
            return super().profiler(6)
        return _Profiler.from_address(adapted("Profiler", self.profiler_abi))

plugin = Adapted(path)
"""

ONE_ABI = r"""
kind, version = sys.argv[3], int(sys.argv[4])
setattr(plugin, f"{kind.lower()}_abi", version)
assert plugin.tuner(6).name == b"ringstep"
rank = Rank(plugin, 77, 1, 0)
if kind == "Tuner" and version < 6:
    # An older plugin has no getChunkSize; NCCL keeps its own.
    assert not plugin.tuner(6).get_chunk_size
costs, channels = rank.get_coll_info(Collective.ALL_REDUCE, 1 << 20)
assert (costs.chosen(), channels) == ((Algo.TREE, Proto.LL128), 5), (costs.chosen(), channels)
costs = Costs(); costs[Algo.TREE, Proto.LL128] = IGNORE
costs, channels = rank.get_coll_info(Collective.ALL_REDUCE, 1 << 20, costs)
assert costs[Algo.TREE, Proto.LL128] == IGNORE and channels == 0
rank.collective()
if kind == "Profiler" and version >= 5:
    rank.api_call(captured=True)
rank.finalize()
print("good")
"""

LEFT_OUT = r"""
for kind, version in (("Tuner", 2), *(("Profiler", v) for v in (1, 2, 3))):
    assert adapted(kind, version) is None, (kind, version)
print("good")
"""

SWITCH = r"""
from ringstep.hostlib.shm import Commit, Decision, DecisionTable, ShmFile, default_path
plugin.tuner_abi, plugin.profiler_abi = int(sys.argv[3]), int(sys.argv[4])
ranks = [Rank(plugin, 78, 2, r) for r in range(2)]
shm = ShmFile.open(default_path(), writable=True)
for rank in ranks: rank.collective()
table = DecisionTable()
table.set(Collective.ALL_REDUCE, range(64), Decision(Algo.TREE, Proto.SIMPLE, 3, 256 << 10))
shm.announce(0, 1, table)
assert [r.collective()[1] for r in ranks] == [0, 0]
ahead, behind = ranks
assert ahead.collective()[1] == 0
assert shm.commit(0, 1) is Commit.DONE
assert ahead.collective()[1] == 3
assert [behind.collective()[1] for _ in range(2)] == [0, 3]
if plugin.tuner_abi >= 6:
    chunk = behind.get_chunk_size(Collective.ALL_REDUCE, 1 << 20, Algo.TREE, Proto.SIMPLE, 4096)
    assert chunk == 256 << 10, chunk
for rank in ranks: rank.finalize()
print("good")
"""


@pytest.fixture(scope="session")
def nccl() -> str:
    if shutil.which("nm") is None:
        pytest.skip("needs nm; `apt-get install binutils`")
    named = os.environ.get("RINGSTEP_LIBNCCL")
    if named:
        return named
    found = importlib.util.find_spec("nvidia")
    for folder in found.submodule_search_locations or () if found else ():
        library = Path(folder) / "nccl" / "lib" / "libnccl.so.2"
        if library.exists():
            return str(library)
    pytest.skip(
        "needs NCCL's library, no GPU: PyTorch for CUDA brings it, "
        "`pip install nvidia-nccl-cu13` has it alone (250 MB); "
        "RINGSTEP_LIBNCCL names another one that is not stripped"
    )


def judged(nccl: str, built: Built, script: str, *arguments: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMON + script, nccl, str(built.plugin), *map(str, arguments)],
        capture_output=True, text=True,
    )  # fmt: skip
    if "KeyError: '_Z" in done.stderr or "KeyError: 'ncclGetVersion'" in done.stderr:
        pytest.skip(f"{nccl} has no such adapter, or is stripped; {done.stderr.splitlines()[-1]}")
    assert done.stdout == "good\n", done.stderr


@pytest.mark.parametrize(
    ("kind", "version"),
    [*(("Tuner", v) for v in (3, 4, 5, 6)), *(("Profiler", v) for v in (4, 5, 6))],
)
def test_nccls_own_adapter_drives_the_plugin(
    built: Built, shm: ShmFile, monkeypatch: pytest.MonkeyPatch, nccl: str, kind: str, version: int
) -> None:
    table = DecisionTable()
    table.set(Collective.ALL_REDUCE, range(64), Decision(Algo.TREE, Proto.LL128, 5))
    monkeypatch.setenv("RINGSTEP_STATIC_DIGEST", f"{shm.write_static(table):x}")
    judged(nccl, built, ONE_ABI, kind, version)
    (record,) = [r for r in shm.rings()[0].poll() if isinstance(r, Record)]
    assert (record.func, record.algo, record.proto) == (
        Collective.ALL_REDUCE, Algo.RING, Proto.SIMPLE,
    )  # fmt: skip
    assert record.bytes == 1 << 20
    assert record.duration_ns == 4001
    assert RecordFlag.DECIDED in record.flags


def test_versions_left_out_are_not_found_by_nccl(built: Built, shm: ShmFile, nccl: str) -> None:
    """NCCL asks for the newest first; what is not exported it has to take for absent."""
    judged(nccl, built, LEFT_OUT)


@pytest.mark.parametrize(
    ("tuner", "profiler"), [(4, 4), (5, 5), (5, 6), (6, 6)],
    ids=["2.27", "2.28", "2.29", "2.30"],
)  # fmt: skip
def test_ranks_switch_together_behind_the_adapters_of_each_release(
    built: Built, shm: ShmFile, monkeypatch: pytest.MonkeyPatch, nccl: str, tuner: int,
    profiler: int,
) -> None:  # fmt: skip
    """The pairs of plugin ABIs that NCCL's releases have, with a rank that lags."""
    if profiler == 4:
        monkeypatch.setenv("RINGSTEP_NO_GRAPHS", "1")
    judged(nccl, built, SWITCH, tuner, profiler)

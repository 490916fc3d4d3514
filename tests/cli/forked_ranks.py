"""Stands for torchrun on one node: loads PyTorch once and forks the ranks, which end with it.

``python forked_ranks.py RANKS PORT SCRIPT WORD…``. Its status is that of the first rank to end
with another one than 0.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

import torch._dynamo
import torch.nn.parallel  # noqa: F401  What every rank would load by itself.

PR_SET_PDEATHSIG = 1


def become(rank: int, ranks: int, port: str, words: list[str]) -> None:
    """Run the script as a rank."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1",
        MASTER_PORT=port,
    )  # fmt: skip
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")


def main() -> int:
    ranks, port, words = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    starter = os.getpid()
    for rank in range(ranks):
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() == starter:
                become(rank, ranks, port, words)
            return 1
    for _ in range(ranks):
        status = os.waitstatus_to_exitcode(os.wait()[1])
        if status:
            return status if status > 0 else 128 - status
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Stands for the coordinator: makes the file, says that it is ready, and does as it is told.

``python fake_coordinator.py FILE BEHAVIOUR … --ready-fd N``. Behaviours: ``mute`` and ``stuck``
(never ready); ``broken`` (ends at once); any other is ready, and ends when FAKE_FOLDER/die appears.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from ringstep.hostlib.shm import ShmError, ShmFile


def main() -> None:
    file, behaviour = Path(sys.argv[1]), sys.argv[2]
    folder = Path(os.environ["FAKE_FOLDER"])
    with (folder / "coordinators").open("a") as pids:
        pids.write(f"{os.getpid()}\n")
    (folder / "coordinator.words").write_text("\n".join(sys.argv[1:]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if behaviour == "broken":
        print("error: /dev/shm: no storage for 5259264 bytes", file=sys.stderr)
        sys.exit(1)
    if behaviour in ("mute", "stuck"):
        time.sleep(600)
    token = int(os.environ["RINGSTEP_SHM_TOKEN"], 16)
    try:
        if not file.exists():
            raise ShmError("not there")
        shared = ShmFile.reopen(file)
        if shared.token != token:
            shared.close()
            raise ShmError("of another run")
    except ShmError:
        shared = ShmFile.create(file, token=token)
    os.write(int(sys.argv[sys.argv.index("--ready-fd") + 1]), b"ready\n")
    while not (folder / "die").exists():
        time.sleep(0.02)
    shared.close()
    sys.exit(7)


if __name__ == "__main__":
    main()

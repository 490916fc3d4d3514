"""What a run came to, from what its processes left in shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class Summary:
    """Of one launcher's node.

    Attributes:
        job: its name.
        job_id: at the controller; None where it was not registered.
        policy: of the coordinator; None where there was none.
        collectives: launched on this node's busiest process; None where nobody counted.
        decided: of those that are still on record, how many ran as decided.
        epochs: tables that collectives on record ran under.
    """

    job: str
    job_id: int | None = None
    policy: str | None = None
    collectives: int | None = None
    decided: int = 0
    epochs: int = 0

    def add(self, path: Path, token: int) -> None:
        """Read the shared-memory file of the run of this token, where it is there."""
        # numpy, which reads it, starts threads: only once somebody asks.
        from ringstep.hostlib.shm import Record, ShmError, ShmFile
        from ringstep.hostlib.shm_layout import RecordFlag

        try:
            file = ShmFile.open(path)
        except ShmError:
            return
        epochs: set[int] = set()
        with file:
            if file.token != token:
                return
            for ring in file.rings():
                records = [item for item in ring.poll() if isinstance(item, Record)]
                if not records:
                    continue
                launched: dict[int | None, int] = {}
                for record in records:
                    launched[record.comm] = max(launched.get(record.comm, 0), record.index + 1)
                    epochs.add(record.epoch)
                # Indices count what was overwritten too, but for communicators long gone.
                count = max(len(records), sum(launched.values()) if ring.lost else 0)
                self.collectives = max(self.collectives or 0, count)
                decided = sum(RecordFlag.DECIDED in record.flags for record in records)
                self.decided = max(self.decided, decided)
        self.epochs = len(epochs - {0})

    def text(self) -> str:
        """Return it as a line for people."""
        job_id = "not registered" if self.job_id is None else f"Job_ID {self.job_id}"
        words = [f"job {self.job}", job_id]
        if self.policy is None:
            words.append("no tuner")
        else:
            words.append(f"policy {self.policy}")
            if self.collectives is None:
                words.append("no collectives reported")
            else:
                words.append(f"{self.collectives} collectives a rank")
                words.append(f"{self.epochs} {'epoch' if self.epochs == 1 else 'epochs'} applied")
        return ", ".join(words)

    def data(self) -> dict[str, object]:
        """Return it for scripts, with stable keys."""
        return {
            "job": self.job,
            "job_id": self.job_id,
            "policy": self.policy,
            "collectives": self.collectives,
            "decided_on_record": self.decided,
            "epochs_applied": self.epochs,
        }

"""Drives the reference marker with the rows of a golden vector."""

from __future__ import annotations

from marker_vectors import EXPECTED_COLUMNS, STATE_COLUMNS, Packet, Settings

from ringstep.protocol.marker import Marker, MarkerParams, ProgressMode, Scope
from ringstep.protocol.rocev2 import CE, ECT0, ECT1, Opcode, is_data
from ringstep.protocol.tag import TagLayout


def params_of(text: dict[str, str]) -> MarkerParams:
    """Return the parameters of a job of a vector file."""
    return MarkerParams(
        k=int(text["k"]),
        tau_num=int(text["tau_num"]),
        tau_den=int(text["tau_den"]),
        t_win=int(text["t_win"]),
        n_sample=int(text["n_sample"]),
        n_warmup=int(text["n_warmup"]),
        alpha_max=int(text["alpha_max"]),
        q_gate=None if text["q_gate"] == "none" else int(text["q_gate"]),
        layout=TagLayout(int(text["job_bits"]), int(text["step_bits"])),
        mode=ProgressMode(text["mode"]),
        packets_per_step=int(text["packets_per_step"]),
        enabled=text["enabled"] == "1",
        generation=int(text["generation"]),
    )


class ReferenceJobs:
    """The markers of all jobs of a vector."""

    def __init__(self) -> None:
        self.markers: dict[int, Marker] = {}

    def take(self, settings: Settings, changed: list[tuple[int, str]]) -> None:
        """Register new jobs and change running ones."""
        for job in {job for job, _ in changed}:
            text = settings.jobs[job]
            if job in self.markers:
                self.markers[job].params = params_of(text)
            else:
                self.markers[job] = Marker(params_of(text), Scope(text["scope"]))

    def packet(self, settings: Settings, row: Packet) -> dict[str, int | None]:
        """Send the inputs of a row through; return its expected columns by name."""
        out: dict[str, int | None] = dict.fromkeys(EXPECTED_COLUMNS)
        ect = row.ecn in (ECT0, ECT1)
        out["mark"] = 0
        block = settings.blocks.get((row.job, row.port))
        marker = self.markers.get(row.job)
        if (
            marker is None
            or block is None
            or not TagLayout.is_tagged(row.sport)
            or not is_data(Opcode[row.opcode])
        ):
            out["ecn_out"] = CE if ect and row.red else row.ecn
            return out
        step = marker.params.layout.step_of(row.sport)
        decision = marker.on_packet(
            row.now_us, step, row.psn, row.is_last, ect, row.r, row.qdepth, bool(row.red), row.port
        )
        out["mark"] = int(decision.mark)
        out["ecn_out"] = CE if decision.ce else row.ecn
        out["progress"] = decision.progress
        if marker.params.mode is ProgressMode.ANCHORED:
            out["base"] = marker.anchors[step % 4].base
        out["block"] = block
        state = marker.block(row.port).as_dict()
        out |= {name: state[name] for name in STATE_COLUMNS}
        return out

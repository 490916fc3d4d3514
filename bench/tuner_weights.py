#!/usr/bin/env python3
"""Train the weights that come with the package, by the program's own commands.

Traces come from the fluid model (any cluster) and from the sweeps in docs/tuner/sweeps (the CPU
engine on real TCP links, the packet simulator), which docs/tuner.md says how to measure anew. Same
seeds, same traces; PyTorch makes the same weights of them on the same kind of machine.

    python bench/tuner_weights.py --out hostlib/dynamic/weights      # about 20 minutes on two cores
    python bench/tuner_weights.py --out /tmp/w --tiny                # a minute, to see it run
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
SWEEPS: Final = ROOT / "docs" / "tuner" / "sweeps"
KEPT: Final = ("detector.safetensors", "selector.safetensors", "detector.json", "selector.json")


@dataclass(frozen=True)
class Size:
    """How much is trained on."""

    fluid: int
    recorded: int
    calls: int
    detector_epochs: int
    selector_epochs: int


FULL: Final = Size(9000, 4500, 96, 10, 30)
TINY: Final = Size(60, 40, 48, 1, 1)


def commands(size: Size, sweeps: Sequence[Path], work: Path) -> list[list[str]]:
    """Return the commands, without ``ringstep tuner``, that make weights in ``work``."""
    found = []
    data = {"detector": 0.4, "selector": 1.0}
    for at, (network, reconfigured) in enumerate(data.items()):
        files = []
        for source, traces in (("fluid", size.fluid), ("recorded", size.recorded)):
            out = work / f"{network}-{source}.npz"
            more = [x for sweep in sweeps for x in ("--sweep", str(sweep))]
            found.append(
                ["traces", "generate", "--out", str(out), "--seed", str(31 + at),
                 "--traces", str(traces), "--calls", str(size.calls),
                 "--reconfigured", str(reconfigured), *(more if source == "recorded" else [])]
            )  # fmt: skip
            files += ["--data", str(out)]
        epochs = size.detector_epochs if network == "detector" else size.selector_epochs
        found.append(
            ["train", network, *files, "--out", str(work), "--seed", "1", "--epochs", str(epochs)]
        )
    return found


def _short(word: str, work: Path) -> str:
    return word.replace(f"{work}/", "").replace(f"{ROOT}/", "").replace(str(work), "weights")


CARD: Final = Path(__file__).with_name("tuner_weights_card.md")


def card(out: Path, made: Sequence[dict[str, Any]]) -> str:
    """Return the model card of the weights in a folder."""
    detector, selector = (
        json.loads((out / f"{n}.json").read_text()) for n in ("detector", "selector")
    )

    def metrics(found: dict[str, Any]) -> str:
        rows = {k: v for k, v in found["metrics"].items() if isinstance(v, int | float)}
        return "\n".join(f"| {k} | {v:.4g} |" for k, v in rows.items())

    parts = detector["data"]["header"].get("parts", [detector["data"]["header"]])
    words = [
        f"{part['traces']:,} traces of the fluid model" if part["source"] == "fluid"
        else f"{part['traces']:,} drawn from sweeps ({'; '.join(part['sweeps'])})"
        for part in parts
    ]  # fmt: skip
    return CARD.read_text().format(
        detector_bytes=detector["bytes"], selector_bytes=selector["bytes"],
        target=detector["parameters"]["target"], reward=selector["parameters"]["reward"],
        detector_seed=detector["parameters"]["seed"], selector_seed=selector["parameters"]["seed"],
        detector_epochs=detector["parameters"]["epochs"],
        selector_epochs=selector["parameters"]["epochs"],
        detector_calls=detector["data"]["calls"], selector_calls=selector["data"]["calls"],
        transitions=selector["metrics"]["transitions"],
        detector_digest=detector["data"]["digest"], selector_digest=selector["data"]["digest"],
        sources=", ".join(words), detector_metrics=metrics(detector),
        selector_metrics=metrics(selector),
        minutes=sum(each["seconds"] for each in made) / 60,
        commands="\n".join(each["command"] for each in made),
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for the weights")
    parser.add_argument("--sweep", type=Path, action="append", metavar="FILE",
                        help="sweeps instead of those in docs/tuner/sweeps")  # fmt: skip
    parser.add_argument("--tiny", action="store_true", help="a minute instead of twenty")
    parser.add_argument("--card", type=Path, metavar="FILE", help="write the model card there")
    parser.add_argument("--json", action="store_true", help="print what was made as JSON")
    options = parser.parse_args(arguments)
    sweeps = options.sweep or sorted(SWEEPS.glob("train-*.json"))
    if not sweeps:
        parser.error(f"no sweeps in {SWEEPS}")
    options.out.mkdir(parents=True, exist_ok=True)
    made = []
    with tempfile.TemporaryDirectory(prefix="ringstep-weights-") as folder:
        work = Path(folder)
        for command in commands(TINY if options.tiny else FULL, sweeps, work):
            start = time.monotonic()
            # In words that work elsewhere too: no folder of this machine.
            shown = shlex.join(["ringstep", "tuner", *(_short(word, work) for word in command)])
            print(shown, file=sys.stderr, flush=True)
            done = subprocess.run(
                [sys.executable, "-m", "ringstep.cli.main", "tuner", *command],
                check=False, stdout=sys.stderr,
            )  # fmt: skip
            if done.returncode != 0:
                return done.returncode
            made.append({"command": shown, "seconds": round(time.monotonic() - start, 1)})
        for name in KEPT:
            shutil.copyfile(work / name, options.out / name)
    sizes = {name: (options.out / name).stat().st_size for name in KEPT}
    if options.card is not None:
        options.card.write_text(card(options.out, made))
    if options.json:
        print(json.dumps({"commands": made, "bytes": sizes}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

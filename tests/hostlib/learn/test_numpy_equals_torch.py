"""What runs is what was trained: numpy and PyTorch agree within 1e-5."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs PyTorch: pip install 'ringstep[train]'")

from ringstep.hostlib.dynamic.detector import Detector, Memory  # noqa: E402
from ringstep.hostlib.dynamic.selector import Selector  # noqa: E402
from ringstep.hostlib.dynamic.weights import load, save  # noqa: E402
from ringstep.hostlib.learn.models import DetectorNet, SelectorNet, export  # noqa: E402
from ringstep.hostlib.shm_layout import Collective  # noqa: E402

TOLERANCE = 1e-5


@pytest.mark.parametrize("collective", list(Collective))
def test_detector(tmp_path: Path, collective: Collective) -> None:
    torch.manual_seed(int(collective))
    net = DetectorNet()
    save(tmp_path / "d", export(net, "", {}))
    weights = load(tmp_path / "d", "detector")
    net.fill(weights.tensors)
    x = np.random.default_rng(1).normal(0, 1, (1, 200, 11)).astype(np.float32)
    with torch.no_grad():
        logits, hidden, _ = net(torch.from_numpy(x), torch.tensor([int(collective)]))
    detector, memory = Detector(weights), Memory()
    for t in range(200):
        logit = detector.step(x[0, t], collective, memory)
        assert logit == pytest.approx(float(logits[0, t]), abs=TOLERANCE)
        np.testing.assert_allclose(memory.hidden, hidden[0, t].numpy(), atol=TOLERANCE)


def test_selector(tmp_path: Path) -> None:
    torch.manual_seed(7)
    net = SelectorNet()
    save(tmp_path / "s", export(net, "", {}))
    weights = load(tmp_path / "s", "selector")
    net.fill(weights.tensors)
    x = np.random.default_rng(2).normal(0, 1, (50, 153)).astype(np.float32)
    with torch.no_grad():
        expected = net(torch.from_numpy(x)).numpy()
    selector = Selector(weights)
    for i in range(50):
        np.testing.assert_allclose(
            selector.values(x[i, :128], x[i, 128:]), expected[:, i], atol=TOLERANCE
        )


def test_weights_survive_the_way_to_disk_and_back(tmp_path: Path) -> None:
    net, again = SelectorNet(), SelectorNet()
    weights = export(net, "abc", {"gamma": 0.5})
    save(tmp_path / "s", weights)
    again.fill(load(tmp_path / "s", "selector").tensors)
    for name, tensor in export(again, "", {}).tensors.items():
        np.testing.assert_array_equal(tensor, weights.tensors[name])

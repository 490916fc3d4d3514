from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ringstep.hostlib.dynamic import weights as w
from ringstep.hostlib.dynamic.weights import Weights, WeightsError, load, save


def test_weights_come_back_as_float16_rounds_them(
    tmp_path: Path, detector_weights: Weights
) -> None:
    save(tmp_path / "d.safetensors", detector_weights)
    found = load(tmp_path / "d.safetensors", "detector")
    for name, tensor in w.rounded(detector_weights.tensors).items():
        np.testing.assert_array_equal(found.tensors[name], tensor)
        assert found.tensors[name].dtype == np.float32
    assert found.params == detector_weights.params
    assert found.data == detector_weights.data


def test_both_networks_fit_into_a_megabyte(
    tmp_path: Path, detector_weights: Weights, selector_weights: Weights
) -> None:
    save(tmp_path / "d", detector_weights)
    save(tmp_path / "s", selector_weights)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1_000_000


@pytest.mark.parametrize("cut", [0, 7, 100, 5000, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, detector_weights: Weights, cut: int) -> None:
    path = tmp_path / "d.safetensors"
    save(path, detector_weights)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(WeightsError, match=r"d\.safetensors.*damaged"):
        load(path, "detector")


def test_flipped_bits_are_found(tmp_path: Path, detector_weights: Weights) -> None:
    path = tmp_path / "d.safetensors"
    save(path, detector_weights)
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data)
    with pytest.raises(WeightsError, match="not those that were written"):
        load(path, "detector")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no such file"):
        load(tmp_path / "none.safetensors", "detector")


def test_another_networks_weights_are_refused(tmp_path: Path, selector_weights: Weights) -> None:
    save(tmp_path / "s", selector_weights)
    with pytest.raises(WeightsError, match="kind is 'selector'"):
        load(tmp_path / "s", "detector")


@pytest.mark.parametrize(("name", "value"), [("FORMAT", "0"), ("SCHEMA", "abc")])
def test_weights_of_another_version_are_refused(
    tmp_path: Path,
    detector_weights: Weights,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(w, name, value)
        save(tmp_path / "d", detector_weights)
    with pytest.raises(WeightsError, match="this version uses"):
        load(tmp_path / "d", "detector")


def test_nan_and_wrong_shapes_are_not_written(tmp_path: Path, detector_weights: Weights) -> None:
    tensors = dict(detector_weights.tensors)
    tensors["head.2.bias"] = np.array([np.nan], np.float32)
    with pytest.raises(WeightsError, match=r"head\.2\.bias holds NaN"):
        save(tmp_path / "d", replace(detector_weights, tensors=tensors))
    tensors["head.2.bias"] = np.array([1e6], np.float32)
    with pytest.raises(WeightsError, match="float16"):
        save(tmp_path / "d", replace(detector_weights, tensors=tensors))
    tensors["head.2.bias"] = np.zeros(2, np.float32)
    with pytest.raises(WeightsError, match="must be"):
        save(tmp_path / "d", replace(detector_weights, tensors=tensors))
    del tensors["head.2.bias"]
    with pytest.raises(WeightsError, match="missing"):
        save(tmp_path / "d", replace(detector_weights, tensors=tensors))
    assert not list(tmp_path.iterdir())

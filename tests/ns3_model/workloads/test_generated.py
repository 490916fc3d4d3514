"""Models from layer shapes: published counts, bytes on the wire, splits, buckets and overlap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import ceil

import pytest

from ringstep_ns3.workloads import (
    Collective,
    Compute,
    Group,
    Kind,
    Model,
    ProgramOp,
    Training,
    WorkloadError,
    gpt,
    load_astra,
    program,
    resnet50,
    train,
    transformer,
    vgg16,
)

MODELS = [vgg16(), resnet50(), transformer(), gpt(layers=2)]


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        (vgg16(), 138_357_544),  # torchvision vgg16
        (resnet50(), 25_557_032),  # torchvision resnet50
        (gpt(), 124_439_808),  # GPT-2
        (gpt(layers=24, d_model=1024, heads=16), 354_823_168),  # GPT-2 medium
        (gpt(layers=48, d_model=1600, heads=25), 1_557_611_200),  # GPT-2 XL
        (transformer(), 63_082_496),
        (transformer(d_model=1024, d_ff=4096, heads=16), 214_245_376),
    ],
)
def test_parameters_are_counted_exactly(model: Model, parameters: int) -> None:
    assert model.parameters == parameters


def test_the_transformer_agrees_with_its_paper_to_three_percent() -> None:
    assert transformer().parameters == pytest.approx(65e6, rel=0.03)
    big = transformer(d_model=1024, d_ff=4096, heads=16)
    assert big.parameters == pytest.approx(213e6, rel=0.01)
    # torch.nn.Transformer() has no embedding and a LayerNorm of 1024 at each end.
    assert transformer().parameters - 37_000 * 512 + 2 * 1024 == 44_140_544


@pytest.mark.parametrize(("model", "macs"), [(vgg16(), 15.47e9), (resnet50(), 4.089e9)])
def test_work_agrees_with_published_multiply_adds(model: Model, macs: float) -> None:
    assert model.flops / 2 == pytest.approx(macs, rel=1e-3)


def test_gpt3_work_is_close_to_two_flops_per_parameter_and_token() -> None:
    model = gpt(layers=96, d_model=12288, heads=96, context=2048)
    assert model.parameters == pytest.approx(175e9, rel=0.005)
    assert model.flops / 2048 == pytest.approx(2 * model.parameters, rel=0.05)


def test_resnet_weights_are_those_of_the_published_file() -> None:
    ours = Counter(4 * layer.weights for layer in resnet50().layers)
    published = load_astra("resnet50").layers
    assert ours == Counter(layer.weight_gradient.bytes for layer in published)
    assert sum(ours.elements()) == 102_011_648


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("bucket_bytes", [0, 1 << 20, 25 << 20, 1 << 40])
@pytest.mark.parametrize("overlap", [True, False])
def test_every_gradient_is_reduced_once(model: Model, bucket_bytes: int, overlap: bool) -> None:
    made = train(model, Training(bucket_bytes=bucket_bytes, overlap=overlap))
    gradients = [op for op in made.operations if isinstance(op, Collective)]
    assert sum(op.bytes for op in gradients) == 4 * model.parameters
    assert all(op.bytes >= bucket_bytes for op in gradients[:-1])
    assert {op.kind for op in gradients} == {Kind.ALL_REDUCE}
    assert {op.group for op in gradients} == {Group.DATA}


def test_one_bucket_per_layer_comes_in_the_order_of_the_backward_pass() -> None:
    made = train(vgg16())
    labels = [op.label for op in made.operations if isinstance(op, Collective)]
    assert labels[:3] == ["fc8 gradient", "fc7 gradient", "fc6 gradient"]
    assert len(labels) == 16
    assert max(op.bytes for op in made.operations if isinstance(op, Collective)) == 4 * 102_764_544


def test_computation_follows_from_flops_batch_and_rate() -> None:
    fast = train(resnet50(), Training(batch=1, device_flops=1e12))
    forward = sum(
        op.ns
        for op in fast.operations
        if isinstance(op, Compute) and op.label.endswith("forward") and isinstance(op.ns, int)
    )
    assert forward == pytest.approx(resnet50().flops / 1e12 * 1e9, abs=54)
    # Backward costs twice the forward pass, less the input gradient of the first layer.
    first = resnet50().layers[0].flops
    total = (3 * resnet50().flops - first) / 1e12 * 1e9
    assert fast.total_compute_ns() == pytest.approx(total, abs=108)
    slow = train(resnet50(), Training(batch=8, device_flops=0.5e12))
    assert slow.total_compute_ns() == pytest.approx(16 * total, abs=108)


@pytest.mark.parametrize("split", [2, 4, 8])
def test_a_split_replica_shares_work_and_gradients(split: int) -> None:
    model = gpt(layers=2, heads=16, d_model=1024)
    whole, part = train(model), train(model, Training(model_parallel=split))
    assert part.total_compute_ns() == pytest.approx(whole.total_compute_ns() / split, rel=1e-3)
    expected = sum(
        4 * (ceil((layer.parameters - layer.replicated) / split) + layer.replicated)
        for layer in model.layers
    )
    assert part.total_bytes(Group.DATA) == expected
    # Two all_reduces per block forward, two backward, one for the embedding, one for the head.
    activations = [
        op for op in part.operations if isinstance(op, Collective) and op.group is Group.MODEL
    ]
    assert len(activations) == 4 * 2 + 2
    assert {op.bytes for op in activations} == {32 * 1024 * 1024 * 4}


def test_split_image_models_gather_activations_and_scatter_gradients() -> None:
    made = train(vgg16(), Training(model_parallel=2, batch=1))
    gathers = made.total_bytes(Group.MODEL, Kind.ALL_GATHER)
    scatters = made.total_bytes(Group.MODEL, Kind.REDUCE_SCATTER)
    assert gathers - scatters == 4 * 1000  # the output, gathered for the loss
    inputs = 2 * 64 * 224**2 - 64 * 224**2 + 64 * 112**2 + 128 * 112**2
    inputs += 128 * 56**2 + 2 * 256 * 56**2 + 256 * 28**2 + 2 * 512 * 28**2
    inputs += 3 * 512 * 14**2 + 25088 + 2 * 4096
    assert scatters == 4 * inputs


def test_a_split_must_divide_the_heads() -> None:
    with pytest.raises(WorkloadError, match="= 3 does not divide the 8 attention heads"):
        train(transformer(), Training(model_parallel=3))


Jct = Callable[..., int]


@pytest.fixture
def jct_ns(finish_times: Callable[..., list[int]]) -> Jct:
    def run(training: Training, collective_ns: int, iterations: int = 1) -> int:
        def cost(_: ProgramOp) -> int:
            return collective_ns

        made = train(vgg16(), training, iterations).in_order()
        return max(finish_times(program(made, 4), cost))

    return run


def test_overlap_hides_communication_behind_the_backward_pass(jct_ns: Jct) -> None:
    compute = train(vgg16()).total_compute_ns()
    short = 1000
    assert jct_ns(Training(overlap=False), short) == compute + 16 * short
    assert jct_ns(Training(overlap=True), short) == compute + short
    # Where communication dominates, only the computation before the first bucket shows.
    long = 10 * compute
    assert 16 * long < jct_ns(Training(), long) < 16 * long + compute


def test_waiting_by_layer_never_takes_longer_than_by_iteration(jct_ns: Jct) -> None:
    compute = train(vgg16()).total_compute_ns()
    for collective in (1000, compute // 16, compute):
        by_layer = jct_ns(Training(wait="layer"), collective, iterations=3)
        by_iteration = jct_ns(Training(wait="iteration"), collective, iterations=3)
        # The first layer's gradient is the last one reduced, and the first one needed.
        assert by_layer == by_iteration


def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(WorkloadError) as caught:
        Training(batch=0, device_flops=float("inf"), bucket_bytes=-1, wait="never")
    assert list(caught.value.problems) == [
        "batch = 0 must be 1 or more",
        "bucket_bytes = -1 must be 0 or more",
        "device_flops = inf must be a number above 0",
        'wait = \'never\' must be "layer" or "iteration"',
    ]
    with pytest.raises(WorkloadError, match="heads = 7 does not divide d_model = 512"):
        transformer(heads=7)
    with pytest.raises(WorkloadError, match="layers = 0 must be 1 or more"):
        gpt(layers=0)
    with pytest.raises(WorkloadError, match="length = 2048 is beyond context = 1024"):
        gpt(length=2048)

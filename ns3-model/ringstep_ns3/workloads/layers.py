"""Models as lists of layers: parameters, work and, for splitting, what has to be exchanged.

Parameter counts are exact and agree with the published ones (see each function). Work counts the
matrix products and convolutions only, a multiplication and an addition as 2; normalisation,
activation, pooling and softmax are left out, as is usual for such figures.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringstep_ns3.workloads.model import Kind, WorkloadError


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective over the ranks of one replica: ``elements`` per sample in its buffer."""

    kind: Kind
    elements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer, or a section of a Transformer, as one replica sees it.

    ``weights``: parameters in matrices and kernels; ``vectors``: biases and normalisation.
    ``replicated``: how many of the two every rank of a split replica holds in full.
    ``flops``: forward work per sample with parameters; ``plain_flops``: without (attention).
    ``before``, ``after``: exchanges around the forward pass of a split replica; ``backward``: the
    one after the input gradient. ``input_gradient``: False where nothing stands before the layer.
    """

    name: str
    weights: int
    vectors: int = 0
    replicated: int = 0
    flops: int
    plain_flops: int = 0
    before: Exchange | None = None
    after: Exchange | None = None
    backward: Exchange | None = None
    input_gradient: bool = True

    @property
    def parameters(self) -> int:
        """Weights and vectors together."""
        return self.weights + self.vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Layers in the order of the forward pass.

    ``heads``: attention heads, which a split must divide; 0: any split will do.
    """

    name: str
    layers: tuple[Layer, ...]
    heads: int = 0

    @property
    def parameters(self) -> int:
        """Trainable parameters of the whole model."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def flops(self) -> int:
        """Forward work per sample."""
        return sum(layer.flops + layer.plain_flops for layer in self.layers)


class _Convolutions:
    """Collects the layers of an image model; a split replica holds a share of the channels.

    Each layer needs its whole input (all_gather before it) and gives back its share of the
    input's gradient (reduce_scatter).
    """

    def __init__(self) -> None:
        self.layers: list[Layer] = []

    def convolution(
        self, name: str, channels: tuple[int, int], kernel: int, size: int, stride: int = 1
    ) -> None:
        """Add a convolution with bias over a square input of ``size``, padded to keep it."""
        self._add(name, channels, kernel, size, stride, vectors=channels[1])

    def normalised(
        self, name: str, channels: tuple[int, int], kernel: int, size: int, stride: int = 1
    ) -> None:
        """Add a convolution without bias and its batch normalisation."""
        self._add(name, channels, kernel, size, stride, vectors=2 * channels[1])

    def _add(
        self,
        name: str,
        channels: tuple[int, int],
        kernel: int,
        size: int,
        stride: int,
        vectors: int,
    ) -> None:
        into, out = channels
        weights = into * out * kernel * kernel
        first = not self.layers
        elements = into * size * size
        self.layers.append(
            Layer(
                name=name,
                weights=weights,
                vectors=vectors,
                flops=2 * weights * (size // stride) ** 2,
                before=None if first else Exchange(Kind.ALL_GATHER, elements),
                backward=None if first else Exchange(Kind.REDUCE_SCATTER, elements),
                input_gradient=not first,
            )
        )

    def dense(self, name: str, into: int, out: int, *, last: bool = False) -> None:
        """Add a fully connected layer with bias; the last one gathers its output for the loss."""
        self.layers.append(
            Layer(
                name=name,
                weights=into * out,
                vectors=out,
                flops=2 * into * out,
                before=Exchange(Kind.ALL_GATHER, into),
                after=Exchange(Kind.ALL_GATHER, out) if last else None,
                backward=Exchange(Kind.REDUCE_SCATTER, into),
            )
        )


def vgg16() -> Model:
    """Return VGG16 at 224 x 224: 138,357,544 parameters (arXiv:1409.1556, configuration D)."""
    net = _Convolutions()
    channels, size = 3, 224
    for block, (width, depth) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), 1):
        for number in range(1, depth + 1):
            net.convolution(f"conv{block}_{number}", (channels, width), 3, size)
            channels = width
        size //= 2
    net.dense("fc6", channels * size * size, 4096)
    net.dense("fc7", 4096, 4096)
    net.dense("fc8", 4096, 1000, last=True)
    return Model(name="vgg16", layers=tuple(net.layers))


def resnet50() -> Model:
    """Return ResNet-50 at 224 x 224: 25,557,032 parameters (arXiv:1512.03385, table 1).

    The stride of a stage is in its 3 x 3 convolution, as in torchvision: 4.09 G multiply-adds.
    """
    net = _Convolutions()
    net.normalised("conv1", (3, 64), 7, 224, 2)
    channels, size = 64, 56
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
        for block in range(blocks):
            stride = 2 if stage > 1 and block == 0 else 1
            name = f"layer{stage}.{block}"
            net.normalised(f"{name}.conv1", (channels, width), 1, size)
            net.normalised(f"{name}.conv2", (width, width), 3, size, stride)
            net.normalised(f"{name}.conv3", (width, 4 * width), 1, size // stride)
            if block == 0:
                net.normalised(f"{name}.downsample", (channels, 4 * width), 1, size, stride)
            channels, size = 4 * width, size // stride
    net.dense("fc", channels, 1000, last=True)
    return Model(name="resnet50", layers=tuple(net.layers))


def transformer(
    *,
    d_model: int = 512,
    d_ff: int = 2048,
    heads: int = 8,
    encoder_layers: int = 6,
    decoder_layers: int = 6,
    vocabulary: int = 37_000,
    length: int = 128,
) -> Model:
    """Return the original encoder-decoder Transformer (arXiv:1706.03762); the defaults are "base".

    Counted: one embedding matrix shared by source, target and output (section 3.4), projections
    with bias, two LayerNorms per encoder and three per decoder layer, none at the ends; positions
    are sinusoids. That makes 63,082,496 ("65 M" in table 3) and 214,245,376 for "big" (213 M).
    A sample is a pair of sequences of ``length`` tokens each.

    Raises:
        WorkloadError: a size below 1, or heads that do not divide ``d_model``.
    """
    _check_sizes(
        d_model=d_model,
        d_ff=d_ff,
        heads=heads,
        encoder_layers=encoder_layers,
        decoder_layers=decoder_layers,
        vocabulary=vocabulary,
        length=length,
    )
    tokens = length * d_model
    layers = [_embedding("embedding", vocabulary * d_model, 0, 2 * tokens)]
    for number in range(encoder_layers):
        layers.append(_attention(f"encoder{number}.self", d_model, length, length))
        layers.append(_feed_forward(f"encoder{number}.ff", d_model, d_ff, length))
    for number in range(decoder_layers):
        layers.append(_attention(f"decoder{number}.self", d_model, length, length))
        layers.append(_attention(f"decoder{number}.cross", d_model, length, length))
        layers.append(_feed_forward(f"decoder{number}.ff", d_model, d_ff, length))
    layers.append(_tied_head(d_model, vocabulary, length))
    return Model(name="transformer", layers=tuple(layers), heads=heads)


def gpt(
    *,
    layers: int = 12,
    d_model: int = 768,
    heads: int = 12,
    vocabulary: int = 50_257,
    context: int = 1024,
    length: int | None = None,
    name: str = "gpt",
) -> Model:
    """Return a decoder-only Transformer shaped like GPT-2; the defaults are its smallest.

    Counted as published: token and position embeddings, output tied to the token embedding,
    projections with bias, two LayerNorms per block and one at the end; the feed-forward part is
    4 times as wide. The defaults make 124,439,808. ``length`` tokens make a sample (default: the
    whole ``context``).

    Raises:
        WorkloadError: a size below 1, heads that do not divide ``d_model``, or a ``length`` beyond
            the context.
    """
    length = context if length is None else length
    _check_sizes(
        layers=layers,
        d_model=d_model,
        heads=heads,
        vocabulary=vocabulary,
        context=context,
        length=length,
    )
    if length > context:
        raise WorkloadError(f"length = {length} is beyond context = {context}; raise context")
    parts = [_embedding("embedding", vocabulary * d_model, context * d_model, length * d_model)]
    for number in range(layers):
        parts.append(_attention(f"block{number}.attention", d_model, length, length))
        parts.append(_feed_forward(f"block{number}.mlp", d_model, 4 * d_model, length))
    head = _tied_head(d_model, vocabulary, length, vectors=2 * d_model)
    return Model(name=name, layers=(*parts, head), heads=heads)


def _check_sizes(**sizes: int) -> None:
    problems = [f"{name} = {size} must be 1 or more" for name, size in sizes.items() if size < 1]
    if not problems and sizes["d_model"] % sizes["heads"]:
        problems.append(f"heads = {sizes['heads']} does not divide d_model = {sizes['d_model']}")
    if problems:
        raise WorkloadError(problems)


# Splitting follows Megatron-LM (arXiv:1909.08053, section 3): of two matrices in a row the first is
# split by columns, the second by rows, and one all_reduce in each direction joins the parts.


def _embedding(name: str, tokens: int, positions: int, elements: int) -> Layer:
    return Layer(
        name=name,
        weights=tokens + positions,
        replicated=positions,
        flops=0,
        after=Exchange(Kind.ALL_REDUCE, elements),
        input_gradient=False,
    )


def _attention(name: str, d_model: int, queries: int, keys: int) -> Layer:
    elements = queries * d_model
    return Layer(
        name=name,
        weights=4 * d_model * d_model,
        vectors=4 * d_model + 2 * d_model,
        # The bias of the output projection and the LayerNorm are whole on every rank.
        replicated=3 * d_model,
        flops=2 * d_model * d_model * (2 * queries + 2 * keys),
        plain_flops=2 * 2 * queries * keys * d_model,
        after=Exchange(Kind.ALL_REDUCE, elements),
        backward=Exchange(Kind.ALL_REDUCE, elements),
    )


def _feed_forward(name: str, d_model: int, d_ff: int, length: int) -> Layer:
    elements = length * d_model
    return Layer(
        name=name,
        weights=2 * d_model * d_ff,
        vectors=d_ff + d_model + 2 * d_model,
        replicated=3 * d_model,
        flops=2 * 2 * d_model * d_ff * length,
        after=Exchange(Kind.ALL_REDUCE, elements),
        backward=Exchange(Kind.ALL_REDUCE, elements),
    )


def _tied_head(d_model: int, vocabulary: int, length: int, vectors: int = 0) -> Layer:
    """Return the output layer; its matrix counts with the embedding, which it shares."""
    return Layer(
        name="head",
        weights=0,
        vectors=vectors,
        replicated=vectors,
        flops=2 * d_model * vocabulary * length,
        backward=Exchange(Kind.ALL_REDUCE, length * d_model),
    )

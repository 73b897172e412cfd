"""Networks as data: describe one of ours in a few plain values, and build it again from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import nn

from focusfl.models.embeddings import empty_encoder, encoder_config
from focusfl.models.mlp import SkipMlp, linear, mlp
from focusfl.models.named import own_network
from focusfl.models.resnet import Block, resnet18
from focusfl.models.task import shared_weights
from focusfl.models.text import TextClassifier
from focusfl.util.errors import InputError

Size = Annotated[int, Field(ge=1, le=10_000_000)]
MAX_LAYERS = 200  # of a network that is built from a file
Layers = Annotated[int, Field(ge=1, le=MAX_LAYERS)]
ShortText = Annotated[str, Field(max_length=30)]
NOT_PREDICTING = {  # what an encoder's configuration says about training, other heads and its origin
    *("_name_or_path", "architectures", "transformers_version", "dtype", "torch_dtype", "gradient_checkpointing"),
    *("id2label", "label2id", "problem_type", "tie_word_embeddings", "use_cache", "initializer_range"),
    *("bos_token_id", "eos_token_id", "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout"),
    *("attention_dropout", "classifier_dropout", "classifier_dropout_prob", "qa_dropout", "seq_classif_dropout"),
    *("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout"),
}


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    def activations(self, shape: Sequence[int]) -> int:
        """Return how many numbers a layer computes at once for an example of this shape, if not few."""
        return 0


class MlpSpec(_Spec):
    """`mlp(*sizes)`."""

    kind: Literal["mlp"] = "mlp"
    sizes: list[Size] = Field(min_length=2, max_length=MAX_LAYERS)

    def build(self) -> nn.Module:
        return mlp(*self.sizes)

    def __str__(self) -> str:
        return f"a multi-layer perceptron with layers of {', '.join(map(str, self.sizes))} units"


class SkipMlpSpec(_Spec):
    """`SkipMlp(*sizes)`."""

    kind: Literal["skip-mlp"] = "skip-mlp"
    sizes: list[Size] = Field(min_length=3, max_length=MAX_LAYERS)

    def build(self) -> nn.Module:
        return SkipMlp(*self.sizes)

    def __str__(self) -> str:
        return f"{MlpSpec(sizes=self.sizes)}, beside a linear model"


class LinearSpec(_Spec):
    """`linear(inputs, outputs, bias)`."""

    kind: Literal["linear"] = "linear"
    inputs: Size
    outputs: Size
    bias: bool

    def build(self) -> nn.Module:
        return linear(self.inputs, self.outputs, self.bias)

    def __str__(self) -> str:
        return f"a linear model with {self.inputs} inputs and {self.outputs} outputs"


class ResNet18Spec(_Spec):
    """`resnet18(classes, width, channels)`."""

    kind: Literal["resnet18"] = "resnet18"
    classes: Size
    width: Annotated[int, Field(ge=1, le=4096)]
    channels: Annotated[int, Field(ge=1, le=4096)]

    def build(self) -> nn.Module:
        return resnet18(self.classes, self.width, self.channels)

    def activations(self, shape: Sequence[int]) -> int:
        return self.width * math.prod(shape[-2:])

    def __str__(self) -> str:
        return f"a ResNet-18 of width {self.width} for {self.classes} classes"


class EncoderSpec(_Spec):
    """The configuration of an encoder like BERT, in the names of transformers; what is None has its default.

    Whatever else a configuration can say, such as where attention is implemented, comes from no file.
    """

    model_type: Literal["bert", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet", "albert", "electra"]
    pad_token_id: Annotated[int, Field(ge=0, le=10_000_000)]
    vocab_size: Size
    max_position_embeddings: Size
    type_vocab_size: Size | None = None
    hidden_size: Size | None = None
    intermediate_size: Size | None = None
    embedding_size: Size | None = None
    num_hidden_layers: Layers | None = None
    num_attention_heads: Size | None = None
    num_hidden_groups: Layers | None = None
    inner_group_num: Layers | None = None
    relative_attention_num_buckets: Size | None = None
    dim: Size | None = None
    hidden_dim: Size | None = None
    n_layers: Layers | None = None
    n_heads: Size | None = None
    hidden_act: ShortText | None = None
    activation: ShortText | None = None
    layer_norm_eps: Annotated[float, Field(gt=0, le=1)] | None = None
    position_embedding_type: Literal["absolute"] | None = None

    def config(self) -> dict[str, Any]:
        """Return the configuration for transformers."""
        return self.model_dump(exclude_none=True)


class TextSpec(_Spec):
    """`text_classifier`: the encoder's configuration; its weights are in the file."""

    kind: Literal["text-classifier"] = "text-classifier"
    encoder: EncoderSpec
    attention: Literal["sdpa", "eager"]
    classes: Size
    pooling: Literal["cls", "mean"]

    def build(self) -> nn.Module:
        encoder = empty_encoder(self.encoder.config(), self.attention)
        return TextClassifier(encoder, self.classes, self.pooling)

    def activations(self, shape: Sequence[int]) -> int:
        tokens, encoder = math.prod(shape), self.encoder
        heads = encoder.num_attention_heads or encoder.n_heads or 12
        return tokens * max(tokens * heads, encoder.intermediate_size or encoder.hidden_dim or 3072)

    def __str__(self) -> str:
        return f"a text classifier on a fine-tuned {self.encoder.model_type} encoder"


class OwnSpec(_Spec):
    """A network of the user's own, which only the user can build."""

    kind: Literal["own"] = "own"
    function: str = Field(max_length=1000)  # "module:function"; "" if it cannot be named
    structure: str = Field(max_length=20_000)  # torch's description, for people

    def build(self) -> nn.Module:
        raise InputError("the network is not one of focusfl's: pass it")

    def __str__(self) -> str:
        return f"a network of its owner ({self.function or 'not named'})"


NetworkSpec = MlpSpec | SkipMlpSpec | LinearSpec | ResNet18Spec | TextSpec | OwnSpec


def describe(
    network: nn.Module, made_by: object = None
) -> MlpSpec | SkipMlpSpec | LinearSpec | ResNet18Spec | TextSpec | OwnSpec:
    """Describe a network.

    Args:
        network: The network.
        made_by: The function that made it; the description names it if it is a module's, or was named as
            "module:function".

    Returns:
        The description of one of our networks, recognised by its structure; otherwise an `OwnSpec`.

    Example:
        >>> describe(mlp(64, 32, 10))
        MlpSpec(kind='mlp', sizes=[64, 32, 10])
        >>> describe(nn.Tanh()).kind
        'own'
    """
    for recognise in (_as_mlp, _as_skip_mlp, _as_resnet18, _as_text):
        spec = recognise(network)
        if spec is not None and _same(network, spec):
            return spec
    return OwnSpec(function=_name(made_by), structure=repr(network)[:20_000])


def _as_mlp(network: nn.Module) -> MlpSpec | LinearSpec | None:
    layers = list(network.children()) if type(network) is nn.Sequential else []
    linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
    if not linears:
        return None
    if len(linears) == 1:
        only = linears[0]
        return LinearSpec(inputs=only.in_features, outputs=only.out_features, bias=only.bias is not None)
    if len(linears) >= MAX_LAYERS:
        return None
    return MlpSpec(sizes=[linears[0].in_features, *(layer.out_features for layer in linears)])


def _as_skip_mlp(network: nn.Module) -> SkipMlpSpec | None:
    spec = _as_mlp(network.layers) if type(network) is SkipMlp else None
    return SkipMlpSpec(sizes=spec.sizes) if isinstance(spec, MlpSpec) else None


def _as_resnet18(network: nn.Module) -> ResNet18Spec | None:
    layers = list(network.children()) if type(network) is nn.Sequential else []
    if not any(isinstance(layer, Block) for layer in layers):
        return None
    first, last = layers[0], layers[-1]
    if not isinstance(first, nn.Conv2d) or not isinstance(last, nn.Linear):
        return None
    return ResNet18Spec(classes=last.out_features, width=first.out_channels, channels=first.in_channels)


def _as_text(network: nn.Module) -> TextSpec | None:
    if type(network) is not TextClassifier:
        return None
    config: Any = network.encoder.config
    said = config.to_dict()
    known = {k: v for k, v in said.items() if k in EncoderSpec.model_fields}
    try:
        encoder = EncoderSpec(**known)
        spec = TextSpec(
            encoder=encoder,
            attention=config._attn_implementation,
            classes=network.head.out_features,
            pooling=network.pooling,
        )
    except ValidationError:
        return None
    rebuilt = encoder_config(encoder.config()).to_dict()
    differs = {k for k in said if k not in NOT_PREDICTING and said[k] != rebuilt.get(k)}
    return None if differs else spec


def _same(network: nn.Module, spec: NetworkSpec) -> bool:
    """Whether the network that the description builds has the same layers, weights and hooks."""
    with torch.device("meta"):
        try:
            other = spec.build()
        except InputError:
            return False
    hooked = any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in network.modules())
    shapes = [{k: v.shape for k, v in shared_weights(n).items()} for n in (network, other)]
    kinds = [[type(m) for m in n.modules() if not isinstance(m, nn.Dropout)] for n in (network, other)]
    return not hooked and shapes[0] == shapes[1] and kinds[0] == kinds[1]


def _name(made_by: object) -> str:
    """Return "module:function" if this finds the function again, else ""."""
    if isinstance(made_by, partial) and made_by.func is own_network:
        return str(made_by.args[0])  # as the user named it
    module, name = getattr(made_by, "__module__", None), getattr(made_by, "__qualname__", "")
    if isinstance(made_by, nn.Module | partial) or not isinstance(module, str) or not callable(made_by):
        return ""
    return "" if module == "__main__" or "<" in name else f"{module}:{name}"

"""Networks as data: describe one of ours in a few plain values, and build it again from them."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from focusfl.models.embeddings import empty_encoder
from focusfl.models.mlp import linear, mlp
from focusfl.models.named import own_network
from focusfl.models.resnet import Block, resnet18
from focusfl.models.task import shared_weights
from focusfl.models.text import TextClassifier
from focusfl.util.errors import InputError

Size = Annotated[int, Field(ge=1, le=10_000_000)]
MAX_LAYERS = 200  # of a network that is built from a file


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class MlpSpec(_Spec):
    """`mlp(*sizes)`."""

    kind: Literal["mlp"] = "mlp"
    sizes: list[Size] = Field(min_length=2, max_length=MAX_LAYERS)

    def build(self) -> nn.Module:
        return mlp(*self.sizes)

    def __str__(self) -> str:
        return f"a multi-layer perceptron with layers of {', '.join(map(str, self.sizes))} units"


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

    def __str__(self) -> str:
        return f"a ResNet-18 of width {self.width} for {self.classes} classes"


class TextSpec(_Spec):
    """`text_classifier`: the encoder's configuration as transformers writes it; its weights are in the file."""

    kind: Literal["text-classifier"] = "text-classifier"
    encoder: dict[str, Any]
    classes: Size
    pooling: Literal["cls", "mean"]

    def build(self) -> nn.Module:
        return TextClassifier(empty_encoder(self.encoder), self.classes, self.pooling)

    def __str__(self) -> str:
        return f"a text classifier on a fine-tuned {self.encoder.get('model_type', 'text')} encoder"


class OwnSpec(_Spec):
    """A network of the user's own, which only the user can build."""

    kind: Literal["own"] = "own"
    function: str = Field(max_length=1000)  # "module:function"; "" if it cannot be named
    structure: str  # torch's description, for people

    def build(self) -> nn.Module:
        raise InputError("the network is not one of focusfl's: pass it")

    def __str__(self) -> str:
        return f"a network of its owner ({self.function or 'not named'})"


NetworkSpec = MlpSpec | LinearSpec | ResNet18Spec | TextSpec | OwnSpec


def describe(
    network: nn.Module, made_by: object = None
) -> MlpSpec | LinearSpec | ResNet18Spec | TextSpec | OwnSpec:
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
    for recognise in (_as_mlp, _as_resnet18, _as_text):
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
    return TextSpec(encoder=config.to_dict(), classes=network.head.out_features, pooling=network.pooling)


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

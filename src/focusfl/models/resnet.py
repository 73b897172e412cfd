"""ResNet-18 for 32 x 32 images (He et al. 2016; first layer 3 x 3 without pooling, as in their section 4.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two 3 x 3 convolutions with a shortcut past them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        shortcut = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)]
        # Checkpoints hold this name.
        self.past = nn.Sequential(*shortcut) if stride != 1 or inputs != outputs else nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(h)) + self.past(x))


def resnet18(classes: int = 10, width: int = 64, channels: int = 3) -> nn.Module:
    """Make a ResNet-18 for small images: four stages of two blocks, `width` to 8 x `width` channels.

    It has batch norm, so it runs on the serial engine.

    Args:
        classes: The number of classes.
        width: Channels of the first stage; 64 is the usual ResNet-18, 16 or 8 suit small machines.
        channels: Channels of an image.

    Returns:
        A network from [n, channels, H, W] to [n, classes].

    Example:
        >>> sum(p.numel() for p in resnet18().parameters())
        11173962
    """
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    inputs = width
    for stage in range(4):
        outputs = width * 2**stage
        layers += [Block(inputs, outputs, 1 if stage == 0 else 2), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))

"""ResNet-18 for 32 x 32 images (He et al. 2016, section 4.2 style stem: 3 x 3, no pooling)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two 3 x 3 convolutions and a way past them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        past = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)]
        self.past = nn.Sequential(*past) if stride != 1 or inputs != outputs else nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(h)) + self.past(x))


def resnet18(classes: int = 10, width: int = 64, channels: int = 3) -> nn.Module:
    """Four stages of two blocks, `width` to 8 x `width` channels; 11,173,962 parameters at width 64, 10 classes."""
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    inputs = width
    for stage in range(4):
        outputs = width * 2**stage
        layers += [Block(inputs, outputs, 1 if stage == 0 else 2), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))

"""What an agent could do without a model: predict the same for every example, as its training labels suggest.

For classes that are their shares among the agent's training labels, in regression the labels' mean. A model that is
not better has learned nothing for this agent, however high its accuracy.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from focusfl.models.task import Task

PRIOR = 0.5  # examples of each class that are added, so that a class without one is not impossible


class Constant(NamedTuple):
    """The scores of each agent's constant prediction on its own test data.

    Attributes:
        loss: [E].
        acc: The share of the class that is the most frequent one in training, [E]; None in regression.
        decidable: Whether the test labels differ, [E]: if they are all equal, no model can do much better.
    """

    loss: Tensor
    acc: Tensor | None
    decidable: Tensor

    def skill(self, loss: Tensor) -> Tensor:
        """Return 1 - loss / loss of the constant prediction, [E]; NaN where the test labels are all equal.

        In regression with squared error this is R^2 with the training mean in the place of the test mean.

        >>> Constant(torch.tensor([0.5, 0.5]), None, torch.tensor([True, False])).skill(torch.tensor([0.25, 0.1]))
        tensor([0.5000,    nan])
        """
        known = self.decidable & (self.loss > 0)
        return torch.where(known, 1 - loss.cpu() / self.loss, torch.nan)


def constant_prediction(y: Tensor, task: Task) -> Tensor:
    """Return the constant prediction made of labels y [n] or [n, L]: probabilities [C], or a value [1]."""
    if task.classes is None:
        return y.double().mean().reshape(1).to(y.dtype)
    if y.dim() == 2:
        return (y.sum(0) + PRIOR) / (len(y) + 2 * PRIOR)
    counts = torch.bincount(y.long(), minlength=task.classes) + PRIOR
    return counts / counts.sum()


def constant_scores(task: Task, known: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> Constant:
    """Score each agent's constant prediction on its own test data.

    Args:
        task: The network's task: its loss and its classes.
        known: The training labels of all agents, agent after agent, and their offsets [E + 1].
        test: The same of the test labels.
    """
    losses, accuracies, differ = [], [], []
    for mine, theirs in zip(_each(*known), _each(*test), strict=True):
        p = constant_prediction(mine, task)
        score = task.score(p.expand(len(theirs), len(p)), theirs)
        losses.append(score.loss.double().mean())
        accuracies.append(score.correct.double().mean())
        differ.append(bool((theirs != theirs[:1]).any()))
    loss, acc = torch.stack(losses).cpu(), torch.stack(accuracies).cpu()
    return Constant(loss, None if task.classes is None else acc, torch.tensor(differ))


def _each(y: Tensor, offsets: Tensor) -> list[Tensor]:
    return list(y.split(offsets.diff().tolist()))

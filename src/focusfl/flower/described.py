"""A deployment whose nodes have files of their own: what is found from all of them before training.

OUT/runs/NAME-seed0/description.json   how all nodes encode their data; a resumed run uses it again
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.serverapp import Grid

from focusfl.data.federation import default_model
from focusfl.data.own.description import Description
from focusfl.flower.protocol.describe import Describing
from focusfl.flower.protocol.description import from_text, to_text
from focusfl.flower.protocol.roster import Roster
from focusfl.flower.protocol.wire import Refused
from focusfl.models import losses
from focusfl.models.task import TargetScale
from focusfl.run import checkpoint
from focusfl.run.setup import Model
from focusfl.util import files, sealed
from focusfl.util.errors import InputError

if TYPE_CHECKING:
    from focusfl.flower.deployment import Deployment

FILE = "description.json"


def described(deployment: Deployment, grid: Grid, log: Callable[[str], None]) -> Deployment:
    """Return the deployment with what its nodes' data say: classes, labels, network, scale of the targets.

    Raises:
        InputError: The nodes' data cannot be used together, or the folder lacks the description of its run.
    """
    if deployment.reading is None:
        return deployment
    folder = deployment.folder
    stored = folder is not None and checkpoint.exists(folder)
    if folder is not None and stored and deployment.resume:
        return with_description(deployment, _read(folder / FILE))
    settings = deployment.settings
    roster = Roster(
        grid,
        deployment.algorithm,
        settings,
        deployment.reading.given_classes,
        deployment.agents,
        secrets.token_hex(16),
        log,
    )
    description = Describing(roster, deployment.reading).run()
    for line in remarks(description):
        log(line)
    if folder is not None and not stored:
        files.make_folder(folder)
        sealed.write_json(folder / FILE, {"description": to_text(description)})
    return with_description(deployment, description)


def with_description(deployment: Deployment, description: Description) -> Deployment:
    """Return the deployment whose nodes encode their data in this way."""
    return replace(
        deployment,
        model=network(deployment.model, description, deployment.hidden),
        classes=description.classes,
        labels=description.labels,
        description=to_text(description),
    )


def network(model: Model | None, description: Description, hidden: int | None) -> Model:
    """Return the network that the run names, or the default one for the nodes' examples."""
    if model is not None:
        return model
    shape, features = description.inputs.shape, 1
    for size in shape:
        features *= size
    if not shape:
        raise InputError('model: the nodes have texts, so name the network: model = "mlp:384,32,2"')
    return default_model(features, description.classes, hidden)


def target_scale(description: Description | None, loss: losses.LossOption) -> TargetScale | None:
    """Return the scale of a regression's targets: with a loss other than the squared error there is none."""
    if description is None or description.target is None:
        return None
    return TargetScale(*description.target) if losses.resolve(loss, description.classes).default else None


def remarks(description: Description) -> list[str]:
    """Say what was found, one sentence each."""
    inputs, lines = description.inputs, list[str]()
    if inputs.schema is not None:
        lines = inputs.schema.remarks()
        scaled = "scaled to mean 0 and deviation 1" if inputs.mean is not None else "not scaled (scale = false)"
        lines.append(f"{len(inputs.columns)} features, {scaled}")
    if description.labels:
        lines.append(f"classes: {', '.join(description.labels)}")
    return lines


def _read(path: Path) -> Description:
    try:
        text = sealed.strip_digest(files.read_json(path), path)["description"]
        return from_text(str(text))
    except (OSError, KeyError, Refused, sealed.Damaged) as error:
        hint = "copy it from the original folder of the run, or set out to another folder"
        raise InputError(f"{path}: the description of the nodes' data cannot be read: {hint}") from error

"""Damaged saved models: bytes as bad luck changes them, and content as a stranger would, with matching digests."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random

import torch

from focusfl.util import sealed

from . import damage, sound
from .harness import Fault, focusfl, half_written


def _model(rng: Random, folder: Path) -> tuple[Path, Path, str]:
    """A copy of a sound model, a file of new examples, and what the sound one predicts for it."""
    names = sorted(sound.finished().folder.glob("runs/*/model"))
    chosen = rng.choice(names)
    model = Path(shutil.copytree(chosen, folder / "model"))
    new = folder / "new.csv"
    new.write_text("b,a\n0.5,1\n-0.5,0.25\n")
    predicted = focusfl("predict", chosen, new, "--agent", "bern")
    assert predicted.code == 0, predicted
    return model, new, predicted.out


def damaged_model(rng: Random, folder: Path) -> list[Fault]:
    """Flipped bits, torn ends, a file missing or of another model: refused, or the same predictions."""
    model, new, expected = _model(rng, folder)
    path = rng.choice(sorted(model.iterdir()))
    how = rng.randrange(10)
    if how == 0:
        path.unlink()
    elif how == 1:
        other = rng.choice(sorted(sound.finished().folder.glob(f"runs/*/model/{path.name}")))
        path.write_bytes(other.read_bytes())
    else:
        path.write_bytes(damage.content(rng, path.read_bytes()))
    ended = focusfl("predict", model, new, "--agent", "bern")
    faults = ended.faults + half_written(folder, path, new)
    if ended.code == 0 and ended.out != expected:
        faults.append(Fault("silent change", f"{path.name}: other predictions"))
    return faults


def forged_model(rng: Random, folder: Path) -> list[Fault]:
    """Other values, with digests that match: refused or used, but no traceback, no hang, no code."""
    model, new, _ = _model(rng, folder)
    about = sealed.read_json(model / "model.json")
    tensors, header, _ = sealed.read_tensors(model / "weights.safetensors")
    how, name = rng.randrange(12), rng.choice(sorted(tensors))
    if how <= 4:
        about = damage.tree(rng, about)
    elif how == 5:
        kinds = (torch.int64, torch.float64, torch.bool, torch.bfloat16, torch.complex64, torch.float8_e4m3fn)
        tensors[name] = tensors[name].to(rng.choice(kinds))
    elif how == 6:
        shapes = (tensors[name][None], tensors[name].flatten(), torch.zeros(0), torch.tensor(1.0))
        tensors[name] = rng.choice(shapes)
    elif how == 7:
        values = (-1, 0, 99, 2**31, 3e38 if tensors[name].is_floating_point() else 2**62)
        tensors[name] = torch.full_like(tensors[name], rng.choice(values))
    elif how == 8:
        tensors[rng.choice((name.rpartition("/")[0], f"{name}/x"))] = torch.zeros(4)
    elif how == 9:
        about["agents"], about["results"] = [], None  # as a server's
        tensors = {k: v for k, v in tensors.items() if not k.startswith("agents/") and rng.random() < 0.9}
    elif how == 10:
        options = rng.choice([options for options in (about["params"], about["train"]) if options])
        options[rng.choice(sorted(options))] = rng.choice(
            (1e8, 10**8, "100000000", [10**8], -1, None, {}, "\ud800")
        )
    else:
        tensors[rng.choice(("server/x", "agents/y/z", "x", "/", "", "inputs/mean"))] = tensors.pop(name)
    text = damage.dumped(about)
    try:
        resealed = sealed.add_digest(json.loads(text))
    except (AttributeError, TypeError):  # no longer an object
        resealed = {"format": "focusfl-model"}
    (model / "model.json").write_text(json.dumps(resealed), encoding="utf-8", errors="surrogatepass")
    header |= {"about": str(resealed.get("digest", "")).removeprefix("sha256:"), "names": list(tensors)}
    sealed.write_tensors(model / "weights.safetensors", tensors, header)
    faults = []
    for words in (("predict", model, new, "--agent", "bern"), ("assign", model, new), ("show", model)):
        faults += focusfl(*words).faults
    return faults

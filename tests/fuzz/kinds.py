"""One function per kind of input. Each makes a damaged one in an empty folder, uses it, and returns the faults.

A file that carries a checksum or a digest must be refused, or give what the sound one gives: else it is a silent
change. Where the digest is taken away with the damage, as in files of earlier releases, or where the format has
none (a csv file), a change cannot be noticed, and only the other faults count.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import re
import shutil
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from focusfl.algorithms import ALGORITHMS
from focusfl.core.train import Train
from focusfl.data import DATA
from focusfl.run.experiment import SETTINGS

from . import damage, saved, sound
from .harness import Ended, Fault, focusfl, guarded, half_written

Kind = Callable[[Random, Path], list[Fault]]
KINDS: dict[str, Kind] = {}
CODE = re.compile(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)")  # in Markdown, where HTML is only text


def kind(function: Kind) -> Kind:
    KINDS[function.__name__.replace("_", "-")] = function
    return function


# --- experiments

NAMES = ("synthetic", "rotated-digits", "folder", "nothing", "", "label-noise", "free-riders", "dirichlet", "tiny")
METHODS = [*ALGORITHMS, "all", "qffl:q=0.1", "focus:M=2"]
WORDS = [*NAMES, *METHODS, "split", "tied", "clip", "trim", "agent", "exact", "serial", "cpu", "auto"]


def _options(table: str, target: Any) -> list[str]:
    return [f"{table}.{name}" for name in inspect.signature(target).parameters]


KEYS = [
    "name",
    "description",
    "data",
    "data.name",
    "algorithms",
    "seeds",
    "train",
    "shift",
    "params",
    "settings",
    "x",
]
KEYS += [
    *SETTINGS,
    *_options("train", Train),
    *_options("data", DATA["synthetic"]),
    *_options("data", DATA["folder"]),
]
KEYS += [key for name, method in ALGORITHMS.items() for key in _options(name, method)]
# what makes a run long or large stays small: the user may ask for it
GROWS = ("rounds", "steps", "epochs", "M", "E", "d", "n", "n_test", "hidden", "turns", "it", "limit", "outliers")


class Raw(str):
    """A value as it is written in TOML."""


STRANGE_TOML = r"""
2020-01-01 | 2020-01-01T10:00:00Z | 10:00:00 | 0x1F | 0o7 | 1_000 | inf | -nan | +1 | 1e999 | 01 | true | # | 1 2
| {a.b=1,a.c=2} | {a=1,a=2} | 'x | "x | "\u0000" | "\ud800" | [1,'a',[2.5]] | [[0,1],[2]] | [{kind=1}] | {0=1}
| {7=2,1=-1} | {x=1} | [0,0] | [-1] | [1.5] | [18446744073709551616] | [] | 18446744073709551616 | "~nobody/x"
"""
STRANGE_VALUES = [Raw(text.strip()) for text in STRANGE_TOML.split("|")]
LARGE_NUMBERS = ("0x1F", "1_000", "18446744073709551616")
STRANGE_VALUES += map(Raw, ("", "9" * 5000, "[" * 3000, "[" * 3000 + "]" * 3000, "{a=" * 300 + "1" + "}" * 300))


def option(rng: Random, key: str) -> Any:
    """Draw a value for a key: of its own kind, or any."""
    grows = key.rpartition(".")[2] in GROWS
    if rng.random() < 0.3:
        strange = rng.choice(STRANGE_VALUES)
        return Raw("3") if grows and strange in LARGE_NUMBERS else strange
    if rng.random() < 0.3:
        return rng.choice(WORDS)
    found = damage.value(rng)
    return found if not grows or not isinstance(found, int | float) or abs(found) < 8 else 3


def document(rng: Random) -> dict[str, Any]:
    """Draw a TOML document that is nearly right."""
    raw: dict[str, Any] = {"data": {"name": "synthetic", "E": 4, "outliers": 1, "n": 10, "n_test": 10}, "rounds": 1}
    raw |= {"algorithms": rng.sample(METHODS, 2), "seeds": [0], "train": {"steps": 1}}
    for _ in range(rng.randrange(3)):
        key = rng.choice(KEYS)
        table, _, name = key.rpartition(".")
        inner = raw.setdefault(table, {}) if table else raw
        if isinstance(inner, dict):
            inner[name] = option(rng, key)
    if rng.random() < 0.3:
        raw["shift"] = [{"kind": rng.choice(NAMES), "agents": option(rng, "agents"), "p": option(rng, "p")}]
    return raw


def as_toml(value: Any) -> str:
    if isinstance(value, Raw):
        return value
    if isinstance(value, dict):
        return "{" + ", ".join(f"{as_toml(str(k))} = {as_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value.encode(errors="replace").decode(), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, float):
        return repr(value)
    return "''" if value is None else json.dumps(value)


def fresh(out: Path, *words: object) -> list[Fault]:
    """Run a command that writes a new folder; if it refuses its input, it writes nothing."""
    ended = focusfl(*words, "--out", out)
    faults = ended.faults + half_written(out)
    if ended.code == 2 and out.exists():
        faults.append(Fault("half written", f"{sorted(p.name for p in out.iterdir())}: {ended.err[:200]}"))
    return faults


@kind
def toml(rng: Random, folder: Path) -> list[Fault]:
    lines = "".join(f"{as_toml(k)} = {as_toml(v)}\n" for k, v in document(rng).items())
    raw = damage.text(rng, lines) if rng.random() < 0.4 else lines.encode()
    (folder / "x.toml").write_bytes(raw)
    return fresh(folder / "out", "run", folder / "x.toml")


@kind
def set_options(rng: Random, folder: Path) -> list[Fault]:
    words: list[object] = ["compare", "--data", rng.choice(NAMES[:2] if rng.random() < 0.9 else NAMES)]
    words += ["--algorithms", rng.choice(METHODS), *sound.QUICK]
    for _ in range(rng.randrange(1, 3)):
        key = rng.choice(KEYS)
        text = as_toml(option(rng, key))
        if rng.random() < 0.3:
            text = damage.text(rng, text).decode(errors="surrogateescape").replace("\0", "")
        if rng.random() < 0.1:
            key = rng.choice(
                ("", ".", "..", "a.b.c.d", f"{key}.x", f"{key}.", f".{key}", key.upper(), "[", "__class__")
            )
        words += ["--set", f"{key}{rng.choice('=====:')}{text}".replace("\0", "")]
    for word in words[1:]:
        key, _, text = str(word).partition("=")
        if key.rpartition(".")[2] in GROWS and any(digit in text for digit in "3456789") and len(text) < 1000:
            return []  # what makes a run long: the user may ask for it
    return fresh(folder / "out", *words)


# --- data


def use_data(place: Path, folder: Path, like: Any = None) -> list[Fault]:
    """Train on a folder; results that are not those of the sound one are a silent change."""
    out = folder / "out"
    faults = fresh(out, *sound.train_on(place))
    if like is not None and not faults and (out / "results.json").exists():
        found = [{k: v for k, v in row.items() if k != "data"} for row in sound.rows(out)]
        if found != [{k: v for k, v in row.items() if k != "data"} for row in like]:
            faults.append(Fault("silent change", "other results"))
    return faults


def damaged_copy(rng: Random, folder: Path, suffix: str) -> tuple[Path, Path]:
    """Copy a sound folder; return it, and the file that is to be damaged."""
    place = Path(shutil.copytree(sound.data(suffix), folder / "data"))
    return place, rng.choice(sorted(place.rglob(f"*.{suffix}")))


@kind
def data_csv(rng: Random, folder: Path) -> list[Fault]:
    place, path = damaged_copy(rng, folder, "csv")
    if rng.random() < 0.5:
        path.write_bytes(damage.text(rng, path.read_text()))
    else:
        lines = [line.split(",") for line in path.read_text().splitlines()]
        cell = rng.choice(
            (*damage.NASTY_TEXT, *map(str, damage.NUMBERS), "9" * 5000, "y" * 200_000, "1e999", "٣", "0x1")
        )
        row = rng.randrange(len(lines))
        lines[row][rng.randrange(len(lines[row]))] = cell
        if rng.random() < 0.2:
            lines[row] = lines[row][: rng.randrange(4)] + lines[row][rng.randrange(3) :]
        end = rng.choice(("\n", "\r\n", "\r", "\n\n"))
        text = end.join(rng.choice((",", ",", ",", ";")).join(cells) for cells in lines)
        path.write_bytes(text.encode(errors="surrogateescape"))
    return use_data(place, folder)


@kind
def data_npz(rng: Random, folder: Path) -> list[Fault]:
    place, path = damaged_copy(rng, folder, "npz")
    if rng.random() < 0.5:
        path.write_bytes(damage.content(rng, path.read_bytes()))
        return use_data(place, folder, sound.trained("npz"))
    path.write_bytes(_strange_npz(rng))
    return use_data(place, folder)


def _strange_npz(rng: Random) -> bytes:
    held, raw = io.BytesIO(), io.BytesIO()
    compression = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    with zipfile.ZipFile(held, "w", compression) as archive:
        for name in rng.choice(
            (("x", "y"), ("x",), ("x", "y", "z"), ("x_train", "y_train", "x_test", "y_test"), ())
        ):
            raw = io.BytesIO()
            shape = tuple(
                rng.choice(((20, 2), (20,), (0, 2), (10**12, 2), (2**62, 4), (-1, 2), (), (20, 10**7), (1,) * 70))
            )
            kinds = ("<f8", "<i8", ">f4", "|O", "<U5", "|S3", "<c16", "<M8[s]", "|V8", "|b1", "<f2", "?!", "|i1")
            header = {"descr": rng.choice(kinds), "fortran_order": rng.choice((True, False, 1)), "shape": shape}
            if rng.random() < 0.2:
                header = damage.tree(rng, header)
            try:
                np.lib.format.write_array_header_1_0(raw, header)
            except Exception:
                raw.write(repr(header).encode(errors="replace"))
            raw.write(rng.choice((bytes(320), bytes(160), b"", b"\x80\x04N.", bytes(8 << 20))))
            archive.writestr(name + rng.choice((".npy", ".npy", ".npy", "", ".txt")), raw.getvalue())
    return held.getvalue()


@kind
def data_parquet(rng: Random, folder: Path) -> list[Fault]:
    place, path = damaged_copy(rng, folder, "parquet")
    if rng.random() < 0.6:
        path.write_bytes(damage.content(rng, path.read_bytes()))
    else:
        import datetime
        import decimal

        import pyarrow
        import pyarrow.parquet

        cells: tuple[Any, ...] = (None, 1, 1.5, "x", b"x", True, [1, 2], {"q": 1}, datetime.date(2020, 1, 1))
        cells += (decimal.Decimal("1.5"), datetime.datetime(2020, 1, 1), float("nan"), 2**62, "\x1b[31m", "")
        names = rng.choice(
            (("a", "b", "label"), ("a", "a", "label"), ("label",), (), ("text", "label"), ("a", "b", ""))
        )
        columns = [[rng.choice(cells)] * rng.choice((0, 20, 20, 20)) for _ in names]
        try:
            arrays = [pyarrow.array(column) for column in columns]
            pyarrow.parquet.write_table(pyarrow.Table.from_arrays(arrays, names=list(names)), path)
        except pyarrow.ArrowException:
            path.write_bytes(b"PAR1")
    return use_data(place, folder)


@kind
def data_images(rng: Random, folder: Path) -> list[Fault]:
    from PIL import Image

    place, path = damaged_copy(rng, folder, "png")
    if rng.random() < 0.5:
        path.write_bytes(damage.content(rng, path.read_bytes()))
        return use_data(place, folder, sound.trained("png"))
    mode, size = (
        rng.choice(("1", "L", "RGB", "RGBA", "P", "I;16", "CMYK", "LA")),
        rng.choice(((2, 2), (3, 2), (9, 9))),
    )
    form = rng.choice(("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"))
    try:
        Image.new(mode, size).save(path, form)
    except (OSError, KeyError, ValueError):
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + rng.randbytes(40))
    if rng.random() < 0.3:
        raw = bytearray(path.read_bytes())
        raw[16:24] = rng.choice((0, 1, 12_000, 2**31 - 1)).to_bytes(4, "big") * 2  # width and height of a PNG
        path.write_bytes(bytes(raw))
    if rng.random() < 0.3:
        path.rename(path.with_name(_file_name(rng)))
    return use_data(place, folder)


@kind
def data_layout(rng: Random, folder: Path) -> list[Fault]:
    place, path = damaged_copy(rng, folder, rng.choice(sound.SUFFIXES))
    where = rng.choice((path, place / "clusters.csv", place / f"new{path.suffix}", place / "sub" / path.name))
    where.parent.mkdir(exist_ok=True)
    how = rng.randrange(12)
    if how < 6 and where.exists():
        where.unlink()
    if how == 0:
        os.mkfifo(where)
    elif how == 1:
        where.symlink_to(
            rng.choice((where, where.parent, "nowhere", "/dev/zero", "/etc/passwd", place, path.parent))
        )
    elif how == 2:
        where.mkdir()
    elif how == 3:
        with socket.socket(socket.AF_UNIX) as listener:
            descriptor = os.open(where.parent, os.O_RDONLY)
            try:
                listener.bind(f"/proc/self/fd/{descriptor}/{where.name}"[:107])
            finally:
                os.close(descriptor)
    elif how == 4:
        where.write_bytes(b"")
    elif how == 5:
        for name in ("train", "test", "other")[: rng.randrange(4)]:
            (where.with_suffix("") / name).mkdir(parents=True, exist_ok=True)
            shutil.copy(rng.choice(list(sound.data("csv").iterdir())), where.with_suffix("") / name / "x.csv")
    elif how in (6, 7):
        path.rename(path.with_name(_file_name(rng) + rng.choice((path.suffix, path.suffix.upper(), ""))))
    elif how == 8:
        for other in sorted(place.iterdir())[rng.randrange(3) :]:
            shutil.rmtree(other) if other.is_dir() else other.unlink()
    elif how == 9:
        place = place.rename(place.with_name(_file_name(rng)))
    elif how == 10:
        where.write_bytes(damage.text(rng, (sound.data("csv") / "clusters.csv").read_text()))
    else:
        shutil.copy(rng.choice(list(sound.data("csv").iterdir())), where.with_name(f"{_file_name(rng)}.csv"))
    return use_data(place, folder)


def _file_name(rng: Random) -> str:
    name = rng.choice(
        (*damage.NASTY_TEXT, "train", "test", "clusters", "README", ".hidden", "con", "a b", "-rf", "~", "*")
    )
    return name.replace("/", "_").replace("\0", "_")[:100] or "_"


# --- what a run has written


def edit_json(rng: Random, path: Path) -> None:
    path.write_text(damage.dumped(damage.tree(rng, json.loads(path.read_text()))))


def remove_digests(folder: Path) -> None:
    """Take the digests away, as if an earlier release had written the files."""

    def bare(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: bare(v) for k, v in value.items() if k != "digest"}
        return [bare(v) for v in value] if isinstance(value, list) else value

    for path in folder.rglob("*.json"):
        path.write_text(damage.dumped(bare(json.loads(path.read_text()))))
    for path in folder.rglob("*.jsonl"):
        path.write_text(
            "".join(damage.dumped(bare(json.loads(line))) + "\n" for line in path.read_text().splitlines())
        )


def read_again(rng: Random, out: Path, *ours: Path, silent: bool) -> list[Fault]:
    """Make the report, or show the results again; what is accepted must say what the sound folder says."""
    if rng.random() < 0.7:
        ended = focusfl("report", out)
        faults = ended.faults + half_written(out, *ours)
        if ended.code == 0 and (
            raw := [page for page in sound.pages(out) if "<script>alert" in CODE.sub("", page)]
        ):
            faults.append(Fault("raw escape", f"HTML in {'report.html' if raw[0][:1] == '<' else 'report.md'}"))
        if silent and ended.code == 0 and sound.pages(out) != sound.reported() and not _says_what_is_missing(out):
            faults.append(Fault("silent change", f"{[path.name for path in ours]}: another page"))
        return faults
    ended = focusfl(*sound.finished().words, "--out", out, *rng.choice(((), ("--resume",), ("--json",))))
    faults = ended.faults + half_written(out, *ours)
    if silent and ended.code == 0 and sound.rows(out) != sound.rows(sound.finished().folder):
        faults.append(Fault("silent change", f"{[path.name for path in ours]}: other results"))
    return faults


def _says_what_is_missing(out: Path) -> bool:
    """A run without a row, or without a history, is as good as killed before it was written: the page says so."""
    markdown, page = sound.pages(out)
    return "Not computed yet" in markdown or "No history of the rounds was kept" in page


def _stored(rng: Random, out: Path, *patterns: str) -> Path:
    return rng.choice(sorted(path for pattern in patterns for path in out.glob(pattern)))


@kind
def results(rng: Random, folder: Path) -> list[Fault]:
    out = sound.finished().copy(folder)
    path = _stored(rng, out, "results.json", "runs/*/result.json")
    if rng.random() < 0.5:
        path.write_bytes(damage.content(rng, path.read_bytes()))
    else:
        edit_json(rng, path)
    return read_again(rng, out, path, silent=True)


@kind
def results_without_digest(rng: Random, folder: Path) -> list[Fault]:
    out = sound.finished().copy(folder)
    remove_digests(out)
    path = _stored(rng, out, "results.json", "runs/*/result.json")
    for _ in range(rng.randrange(1, 4)):
        edit_json(rng, path)
    if path.name == "results.json" and rng.random() < 0.5:  # both, as they are compared
        for run in out.glob("runs/*/result.json"):
            run.unlink()
    return read_again(rng, out, path, silent=False)


@kind
def settings(rng: Random, folder: Path) -> list[Fault]:
    out = sound.finished().copy(folder)
    path = rng.choice((out / "experiment.json", out / "data.json", out / "left-out.json"))
    if path.name == "left-out.json":
        path.write_text(damage.dumped({"fedma": "seed 0: diverged"}))
    if rng.random() < 0.3:
        path.write_bytes(damage.content(rng, path.read_bytes()))
    else:
        edit_json(rng, path)
    return read_again(rng, out, path, silent=False)


@kind
def history(rng: Random, folder: Path) -> list[Fault]:
    out = sound.finished().copy(folder)
    path = _stored(rng, out, "runs/*/history.jsonl")
    path.write_bytes(damage.content(rng, path.read_bytes()))
    return read_again(rng, out, path, silent=True)


@kind
def history_without_digest(rng: Random, folder: Path) -> list[Fault]:
    out = sound.finished().copy(folder)
    remove_digests(out)
    path = _stored(rng, out, "runs/*/history.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    if rng.random() < 0.2:
        lines[0]["dropped"] = {rng.choice(("0", "x", "-1", "1.5")): damage.value(rng)}
    for _ in range(rng.randrange(1, 3)):
        lines = damage.tree(rng, lines)
        lines = lines if isinstance(lines, list) else [lines]
    path.write_text("".join(damage.dumped(line) + "\n" for line in lines))
    return read_again(rng, out, path, silent=False)


@kind
def paper(rng: Random, folder: Path) -> list[Fault]:
    """The results of focusfl reproduce."""
    (out := folder / "results").mkdir()
    name = rng.choice(
        ("fair-mnist.small.json", "hard-cluster.small.json", "metric-time.small.json", "runtime.small.json")
    )
    stored = Path(__file__).parents[2] / "docs/results"
    page = json.loads((stored / name).read_text())
    page.pop("digest", None)
    if "rows" in page:
        page["rows"] = page["rows"][:3]
    for _ in range(rng.randrange(1, 3)):
        page = damage.tree(rng, page)
    (out / name).write_text(damage.dumped(page))
    ended = focusfl("report", out)
    return ended.faults + half_written(out, out / name)


def resume(out: Path, *ours: Path, silent: bool) -> list[Fault]:
    """Resume the killed experiment: it is refused, or ends with the results of the sound one."""
    ended: Ended = focusfl(*sound.killed().words, "--out", out, "--resume")
    faults = ended.faults + half_written(out, *ours)
    if silent and ended.code == 0 and sound.rows(out) != sound.resumed():
        faults.append(Fault("silent change", f"{[path.name for path in ours]}: other results"))
    return faults


@kind
def checkpoint(rng: Random, folder: Path) -> list[Fault]:
    out = sound.killed().copy(folder)
    path = _stored(rng, out, "runs/*/*checkpoint*.safetensors")
    path.write_bytes(damage.content(rng, path.read_bytes()))
    return resume(out, path, silent=True)


@kind
def checkpoint_without_digest(rng: Random, folder: Path) -> list[Fault]:
    out = sound.killed().copy(folder)
    path = _stored(rng, out, "runs/*/*checkpoint*.safetensors")
    with safe_open(path, framework="pt") as handle:
        metadata = dict(handle.metadata())
        tensors = {k: handle.get_tensor(k).clone() for k in handle.keys()}  # noqa: SIM118
    header = json.loads(metadata["focusfl"])
    header.pop("digest", None)
    name = rng.choice(sorted(tensors))
    how = rng.randrange(5)
    if how <= 1:
        header = damage.tree(rng, header)
    elif how == 2:
        tensors[name] = tensors[name].to(rng.choice((torch.int64, torch.float64, torch.bool)))
    elif how == 3:
        tensors[name] = rng.choice(
            (tensors[name][None], tensors[name].flatten(), torch.zeros(0), torch.tensor(1.0))
        )
    else:
        tensors[rng.choice(("server/x", "agents/y/z", "x", "/", ""))] = tensors.pop(name)
    save_file({k: v.contiguous() for k, v in tensors.items()}, path, metadata={"focusfl": json.dumps(header)})
    for other in _others(path):
        other.unlink()
    return resume(out, path, silent=False)


def _others(path: Path) -> list[Path]:
    """The checkpoints that would be taken in its place."""
    return [other for other in path.parent.glob("*checkpoint*.safetensors") if other != path]


@kind
def best_losses(rng: Random, folder: Path) -> list[Fault]:
    """Surrogates and examples of a finished run, in an experiment that has to be resumed."""
    out = sound.finished().copy(folder)
    path = _stored(rng, out, "surrogates/*.json", "surrogates/*.safetensors", "runs/*/examples.safetensors")
    if path.suffix == ".json" and rng.random() < 0.5:
        edit_json(rng, path)
    else:
        path.write_bytes(damage.content(rng, path.read_bytes()))
    for name in ("runs/fedavg-seed0/result.json", "runs/focus-seed1/result.json", "results.json"):
        (out / name).unlink()
    ended = focusfl(*sound.finished().words, "--out", out, "--resume")
    faults = ended.faults + half_written(out, path)
    if ended.code == 0 and sound.rows(out) != sound.rows(sound.finished().folder):
        faults.append(Fault("silent change", f"{path.suffix} of {path.parent.name}: other results"))
    return faults


kind(saved.damaged_model)
kind(saved.forged_model)


def case(name: str, seed: int, number: int, folder: Path) -> list[Fault]:
    """Run one case in an empty folder.

    Args:
        name: The kind.
        seed: Of the whole run.
        number: Of the case. The same seed, kind and number make the same case.
        folder: An empty folder.
    """
    faults, broken = guarded(lambda: KINDS[name](Random(f"{seed} {name} {number}"), folder))
    return broken or faults

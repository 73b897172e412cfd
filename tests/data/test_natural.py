"""Natural federations: found in a folder, pinned, scaled over the federation or by agent."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.data import need_natural

import focusfl as ff
from focusfl.data.sets.natural import NATURAL, content_digest
from focusfl.util.errors import InputError

AGENTS = {"heart": 4, "landmine": 29, "vowel": 15, "exam": 63, "parkinsons": 42}
CLASSES = {"heart": 2, "landmine": 2, "vowel": 11, "exam": None, "parkinsons": None}


def make(name: str, **options: Any) -> ff.Federation:
    need_natural(name)
    fed: ff.Federation = getattr(ff.data, name)(**options)
    return fed


@pytest.mark.parametrize("name", NATURAL)
def test_a_set_by_name_is_read_with_its_label_and_scaled(name: str) -> None:
    fed = make(name)
    x = fed.training.x.double()
    assert (fed.name, fed.E, fed.classes, fed.remarks()) == (name, AGENTS[name], CLASSES[name], [])
    assert x.mean(0).abs().max() < 1e-4
    assert torch.allclose(x.std(0, correction=0), torch.ones(x.shape[1]).double(), atol=1e-3)


@pytest.mark.parametrize("name", NATURAL)
def test_scaling_by_agent_gives_each_agent_mean_0_and_deviation_1(name: str) -> None:
    fed = make(name, scale_by="agent")
    for e in range(fed.E):
        x = fed.train(e).x.double()
        deviation = x.std(0, correction=0)
        assert x.mean(0).abs().max() < 1e-3
        assert (((deviation - 1).abs() < 1e-3) | (deviation == 0)).all()  # an agent's constant becomes 0
    assert fed.remarks(), "the user is told that new data must be scaled the same way"


def test_test_data_is_scaled_by_the_training_data_of_its_agent() -> None:
    raw = ff.data.folder(need_natural("exam"), label="normexam")
    fed = make("exam", scale_by="agent")
    x = raw.train(5).x
    expected = (raw.test(5).x[:, 0] - x[:, 0].mean()) / x[:, 0].std(correction=0)
    assert torch.allclose(fed.test(5).x[:, 0], expected, atol=1e-5)


def test_a_model_trained_on_features_scaled_by_agent_refuses_a_raw_table(tmp_path: Path) -> None:
    table = need_natural("heart") / "va" / "test.csv"
    ff.fit(ff.FedAvg(), make("heart"), rounds=1).save(tmp_path / "federation")
    assert len(ff.load(tmp_path / "federation").inputs.read(table).x) == 45
    with pytest.warns(UserWarning, match="own mean"):
        result = ff.fit(ff.FedAvg(), make("heart", scale_by="agent"), rounds=1)
    result.save(tmp_path / "agent")
    with pytest.raises(InputError, match="arrays"):
        ff.load(tmp_path / "agent").inputs.read(table)


def test_the_split_of_heart_does_not_depend_on_the_seed_but_that_of_the_others_does() -> None:
    assert make("heart", seed=0).fingerprint == make("heart", seed=1).fingerprint
    assert make("vowel", seed=0).fingerprint != make("vowel", seed=1).fingerprint


@pytest.mark.parametrize("name", NATURAL)
def test_where_it_is_missing_the_error_says_where_to_get_it_and_how_to_lay_it_out(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = NATURAL[name]
    for listed in ("", str(tmp_path)):
        monkeypatch.setenv("FOCUSFL_FROM", listed)
        with pytest.raises(InputError) as raised:
            getattr(ff.data, name)()
        wanted = (known.published, known.licence, known.label, "FOCUSFL_FROM", "data.path", listed)
        assert all(word in str(raised.value) for word in wanted)
    with pytest.raises(InputError, match="elsewhere"):
        getattr(ff.data, name)(path=str(tmp_path / "elsewhere"))


def test_a_path_may_be_the_folder_itself_or_one_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    root = need_natural("heart")
    monkeypatch.setenv("FOCUSFL_FROM", "")
    found = [ff.data.heart(path=str(path)).fingerprint for path in (root, root.parent, root.parents[1])]
    assert len(set(found)) == 1


def test_changed_files_are_refused_unless_the_user_accepts_them(tmp_path: Path) -> None:
    root = tmp_path / "vowel"
    shutil.copytree(need_natural("vowel"), root)
    (root / "README.md").write_text("not data")
    (root / ".DS_Store").write_text("not data")
    assert ff.data.vowel(path=str(root)).name == "vowel"
    file = root / "speaker03.csv"
    file.write_text(file.read_text().replace("-4.", "-5.", 1))
    with pytest.raises(InputError, match=r"data\.check=false"):
        ff.data.vowel(path=str(root))
    fed = ff.data.vowel(path=str(root), check=False)
    assert fed.name != "vowel"
    assert any("compared" in line for line in fed.remarks())


def test_the_pin_depends_on_names_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "train.csv").write_text("x")
    first = content_digest(tmp_path)
    (tmp_path / "a" / "train.csv").rename(tmp_path / "a" / "test.csv")
    second = content_digest(tmp_path)
    (tmp_path / "a" / "test.csv").write_text("y")
    assert len({first, second, content_digest(tmp_path)}) == 3


def test_the_command_line_checks_lists_and_compares_them(focusfl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    need_natural("heart")
    monkeypatch.setenv("COLUMNS", "300")
    code, out, _ = focusfl("data", "get", "heart")
    assert code == 0
    assert "CC BY 4.0" in out
    _, out, _ = focusfl("data", "list")
    assert [line.split()[0] for line in out.splitlines() if " yes " in line][-5:] == list(NATURAL)
    _, out, _ = focusfl("list", "data")
    assert all(f" {name} " in out for name in NATURAL)
    words = ("compare", "--data", "heart", "--algorithms", "fedavg", "--seeds", "0", "--rounds", "1")
    code, _, err = focusfl(*words, "--set", "data.scale_by=agent", "--out", "out")
    assert code == 0
    assert "switzerland" in err
    monkeypatch.setenv("FOCUSFL_FROM", "")
    code, _, err = focusfl("data", "get", "heart")
    assert code == 2
    assert "FLamby" in err

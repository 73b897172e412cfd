"""Use of a saved model, from Python and the command line: what a person who has only the docs would try."""

import csv
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from fuzz.harness import focusfl
from helpers.federations import make_ragged
from helpers.hospitals import train_hospitals, write_hospital
from helpers.own_method import FedMedian
from torch import nn

import focusfl as ff
from focusfl.cli.model import _assignment
from focusfl.core.tree import tree_map
from focusfl.run.saved.given_labels import named_labels
from focusfl.util.errors import InputError


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return train_hospitals(tmp_path_factory.mktemp("data") / "hospitals")


@pytest.fixture(scope="module")
def saved(result, tmp_path_factory):
    return result.save(tmp_path_factory.mktemp("saved") / "model")


def test_test_data_goes_into_predict_as_it_is(result, saved):
    """The accuracy of predict on fed.test is that of the run, although the network takes scaled values."""
    model, fed = ff.load(saved), result.setup.fed
    for e, name in enumerate(fed.agents):
        x, y = fed.test(e)
        right = (model.predict(name, x).argmax(1) == y).float().mean()
        assert float(right) == pytest.approx(float(result.acc[e]))
        assert torch.allclose(fed.scaled(x), fed.testing.of(e).x, atol=1e-5)
    assert 100 < float(fed.train(0).x[:, 1].mean()) < 140  # pressures, as in the file


def test_raw_values_are_those_of_the_files(result, tmp_path):
    scaled = train_hospitals(tmp_path / "h").setup.fed
    raw = ff.data.folder(tmp_path / "h", label="diagnosis", scale=False).with_validation(0.2, seed=0)
    for e in range(raw.E):
        for a, b in ((raw.train(e), scaled.train(e)), (raw.test(e), scaled.test(e))):
            assert torch.allclose(a.x, b.x, rtol=2e-7, atol=0) and torch.equal(a.y, b.y)


def test_all_files_of_a_model_may_be_read_by_the_same_people(saved, tmp_path):
    exported = ff.load(saved).export("bern", "safetensors", tmp_path / "bern.safetensors")
    (tmp_path / "plain").touch()
    modes = {path.stat().st_mode for path in [*saved.iterdir(), exported, tmp_path / "plain"]}
    assert len(modes) == 1


# --- which agent, which examples, which labels


def test_a_text_is_a_name_and_an_integer_a_number(saved, tmp_path):
    digits = train_hospitals(tmp_path / "digits", ("1", "2", "3", "10")).model
    assert digits.agents == ("1", "10", "2", "3")
    assert [digits.number(agent) for agent in ("1", 1, "10", np.int64(3))] == [0, 1, 1, 3]
    with pytest.raises(InputError, match="agent = '0'"):
        digits.number("0")
    model = ff.load(saved)
    assert model.number("2") == model.number(2) == model.number("elm") == 2
    with pytest.raises(InputError, match=r"agent = 4: there are agents 0 to 3"):
        model.number("4")


def test_a_wrong_call_says_what_the_right_one_is(saved):
    model, x = ff.load(saved), torch.tensor([[71.0, 150.0]])
    for agent in (x, x.numpy(), x.tolist(), 1.0, True, None):
        with pytest.raises(InputError, match=r"predict\('aarau', x\)"):
            model.predict(agent, "bern")
    with pytest.raises(InputError, match=r"found .new\.csv"):
        model.predict("bern", "new.csv")
    with pytest.raises(InputError, match=r"the class FedMedian: write FedMedian\(\)"):
        ff.load(saved, algorithm=FedMedian)
    with pytest.raises(InputError, match="algorithm: expected a method"):
        ff.load(saved, algorithm="focus")


def test_tables_of_any_library_are_taken(saved):
    arrow = pytest.importorskip("pyarrow")
    model = ff.load(saved)
    wanted = model.predict("bern", [[71.0, 150.0], [55.0, 100.0]])
    columns = {"id": ["a", "b"], "pressure": [150.0, 100.0], "age": [71.0, 55.0]}
    for table in (columns, arrow.table(columns), Frame(columns)):
        assert torch.equal(model.predict("bern", table), wanted)
    with pytest.raises(InputError, match="did you mean 'Presure'"):
        model.predict("bern", {"age": [1.0], "Presure": [2.0]})


class Frame:
    """A data frame as pandas and polars have it, as far as it matters here; without depending on either."""

    def __init__(self, columns):
        self.columns, self.cells = list(columns), columns

    def __getitem__(self, name):
        return np.array(self.cells[name])

    def __array__(self, dtype=None, copy=None):
        return np.array(list(self.cells.values()), dtype=object).T


def test_labels_may_be_a_list_an_array_or_a_column(saved):
    model, rng = ff.load(saved), np.random.default_rng(9)
    x = np.stack([rng.normal(60, 10, 40), rng.normal(120, 15, 40)], 1)
    words = ["ill" if pressure <= 120 else "well" for pressure in x[:, 1]]
    numbers = [["ill", "well"].index(word) for word in words]
    wanted = model.assign(x, torch.tensor(numbers)).pi
    objects = np.array(words, dtype=object)
    for y in (words, np.array(words), objects, Frame({"diagnosis": words}), numbers, np.array(numbers)):
        assert torch.equal(model.assign(x, y).pi, wanted)
    for bad, message in ((None, "empty"), ("", "empty"), ("il", "did you mean 'ill'"), (np.nan, "empty")):
        objects[3] = bad
        with pytest.raises(InputError, match=f"row 3.*{message}"):
            model.assign(x, objects)
    with pytest.raises(InputError, match=r"row 1.*label 7"):
        model.assign(x, [0, 7, *numbers[2:]])


@pytest.mark.parametrize("form", [list, np.array, torch.tensor, lambda y: Frame({"diagnosis": y})])
def test_truth_values_and_floats_do_not_stand_for_names_of_classes(saved, form):
    model, x = ff.load(saved), [[60.0, 130.0], [61.0, 110.0]]
    for bad in ([True, False], [1.0, 0.0]):
        with pytest.raises(InputError, match=r"row 0.*names.*ill, well"):
            model.assign(x, form(bad))
    assert model.assign(x, form([0, 1])).labelled


def test_numbers_stand_for_classes_that_are_called_like_them():
    assert named_labels([1.0, 2, True], ("1", "2"), 2) == [0, 1, 0]
    assert named_labels(np.array([[1, 0], [0, 1]], dtype=bool), ("a", "b"), 2).shape == (2, 2)
    with pytest.raises(InputError, match=r"row 1.*names"):
        named_labels(np.array(["1", 0.0], dtype=object), ("1", "2"), 2)
    assert named_labels([True, False], ("False", "True"), 2) == [1, 0]


def test_words_as_labels_of_a_federation_get_a_hint():
    words = [([[0.0], [1.0]], y) for y in (np.array(["well", "ill"]), np.array(["ill", "well"], dtype=object))]
    with pytest.raises(InputError, match=r"agent 0, y: the labels are words.*sorted"):
        ff.Federation.from_agents(words)
    with pytest.raises(InputError, match=r"agent 0, y: the labels are words"):
        ff.Federation.from_agents(words[::-1])


# --- names of columns, values that are new, labels in a table


@pytest.fixture(scope="module")
def clinic(tmp_path_factory):
    """A model whose columns are age, blood pressure and sex; sex is m or w."""
    root, rng = tmp_path_factory.mktemp("clinics") / "data", np.random.default_rng(0)
    root.mkdir()
    for name in ("aarau", "bern"):
        rows = [
            f"{a},{b},{'mw'[i % 2]},{'ill' if b > 120 else 'well'}"
            for i, (a, b) in enumerate(rng.normal([60, 120], [10, 15], (60, 2)).round(2))
        ]
        (root / f"{name}.csv").write_text("\n".join(["age,blood pressure,sex,diagnosis", *rows]) + "\n")
    fed = ff.data.folder(root, label="diagnosis")
    assert any("categories: sex" in line for line in fed.remarks())  # which is no warning in fit
    return ff.fit(ff.Focus(M=2), fed, rounds=1, bayes="none", validation=0).save(root.parent / "model")


def table(**changes):
    cells = {"age": [60.0, 70.0], "blood pressure": [120.0, 130.0], "sex": ["m", "w"]}
    return Frame({changes.pop(f"{name.split()[0]}_name", name): cell for name, cell in cells.items()} | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sex": ["x", "m"]}, ["'sex'", "not have: x"]),
        ({"age": [np.nan, np.nan]}, ["'age'", "all cells"]),
        ({"sex": [None, None]}, ["'sex'", "all cells"]),
        ({"age": [60.0, np.nan]}, ["'age'", "1 missing"]),
        ({"age_name": "AGE"}, ["'AGE' is read as 'age'"]),
    ],
)
def test_python_warns_about_what_the_command_line_says(clinic, changes, words):
    model, new = ff.load(clinic), table(**changes)
    for call in (lambda: model.predict("bern", new), lambda: model.assign(new)):
        with pytest.warns(UserWarning) as told:
            call()
        (warning,) = told
        assert warning.filename == __file__ and all(word in str(warning.message) for word in words)
    newcomer = model.assign(table())
    with pytest.warns(UserWarning, match=words[0]) as told:
        newcomer.predict(new)
    assert told[0].filename == __file__


def test_labels_in_a_table_are_used_in_python_as_on_the_command_line(clinic):
    model, words = ff.load(clinic), ["ill", "well"]
    labelled = model.assign(table(diagnosis=words))
    assert labelled.labelled and torch.equal(labelled.pi, model.assign(table(), words).pi)
    assert not model.assign(table()).labelled
    other = model.assign(table(diagnosis=["nonsense", "x"]), words)  # those that are passed count
    assert torch.equal(other.pi, labelled.pi)
    with pytest.raises(InputError, match=r"row 1.*'il'"):
        model.assign(table(diagnosis=["ill", "il"]))
    with pytest.warns(UserWarning, match="'Diagnosis' is read as"):
        assert model.assign(table(Diagnosis=words)).labelled


def test_names_of_columns_match_as_in_training(clinic, tmp_path):
    model = ff.load(clinic)
    wanted = model.predict("bern", table())
    with pytest.warns(UserWarning, match="'Blood_Pressure' is read as 'blood pressure'"):
        assert torch.equal(model.predict("bern", table(blood_name="Blood_Pressure", AGE=[1.0, 2.0])), wanted)
    with pytest.raises(InputError, match="no column age"):  # two are alike
        model.predict("bern", table(age_name="Age", AGE=[1.0, 2.0]))
    plain, other = tmp_path / "plain.csv", tmp_path / "other.csv"
    rows = "60,120,m,ill\n70,130,w,well\n"
    plain.write_text(f"age,blood pressure,sex,diagnosis\n{rows}")
    other.write_text(f"AGE,Blood-Pressure,sex,Diagnosis\n{rows}")
    for command in (("predict", "--agent", "bern"), ("assign",)):
        first, second = (focusfl(command[0], clinic, file, *command[1:]) for file in (plain, other))
        assert first.code == second.code == 0 and first.out == second.out, second.err
        assert "'AGE' is read as 'age'" in second.err and "is read as" not in first.err


def test_all_problems_of_a_new_file_are_told_at_once(clinic, tmp_path):
    new = tmp_path / "new.csv"
    new.write_text("years,blood pressure,sex\n60,high,m\n")
    ended = focusfl("predict", clinic, new, "--agent", "bern")
    assert ended.code == 2 and "no column age" in ended.err and "'high' is not a number" in ended.err, ended.err
    ended = focusfl("predict", clinic, tmp_path / "nope.csv", "--agent", "bern")
    assert ended.code == 2 and "no such file" in ended.err and "nope.csv" in ended.err


# --- the command line


def test_nothing_is_overwritten_unless_asked(saved, tmp_path):
    write_hospital(tmp_path / "gams.csv", 9)
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    for out in (saved, saved / "gams", saved / "model.json", saved.parent / "x" / ".." / "model"):
        for words in (
            ("assign", saved, tmp_path / "gams.csv", "--out", out),
            ("export", saved, out, "--agent", "elm"),
        ):
            ended = focusfl(*words, "--overwrite")
            assert ended.code == 2 and ("the model that is used" in ended.err or "a folder" in ended.err), ended.err
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
    file = tmp_path / "p.safetensors"
    for words in (
        ("assign", saved, tmp_path / "gams.csv", "--out", tmp_path / "gams"),
        ("export", saved, file, "--agent", "bern"),
        ("predict", saved, tmp_path / "gams.csv", "--agent", "bern", "--out", tmp_path / "p.csv"),
    ):
        assert focusfl(*words).code == 0
        again = focusfl(*words)
        assert again.code == 2 and "--overwrite" in again.err
        assert focusfl(*words, "--overwrite").code == 0
    ended = focusfl("export", saved, tmp_path, "--format", "safetensors", "--agent", "bern")
    assert ended.code == 2 and "a folder" in ended.err
    with pytest.raises(InputError, match="a folder"):
        ff.load(saved).export("bern", "safetensors", tmp_path)


def test_a_misspelt_label_column_is_not_taken_for_no_labels(saved, tmp_path):
    new = tmp_path / "gams.csv"
    write_hospital(new, 9, reverse=True, label="diagnose")
    ended = focusfl("assign", saved, new)
    assert ended.code == 2 and "no column 'diagnosis'; did you mean 'diagnose'?" in ended.err
    asked = focusfl("assign", saved, new, "--no-labels")
    assert asked.code == 0 and "without labels" in asked.out and "confidence decides" not in asked.err
    assert "not used: diagnose" in asked.err and "carried over" not in asked.err
    write_hospital(new, 9, label="")
    ended = focusfl("assign", saved, new)
    assert ended.code == 0 and "no label column 'diagnosis'" in ended.err and "confidence" in ended.err
    write_hospital(new, 9, reverse=True)
    labelled, without = focusfl("assign", saved, new), focusfl("assign", saved, new, "--no-labels")
    assert "with elm, flims" in labelled.out and labelled.err == ""
    assert "without labels" in without.out


def test_a_tie_is_no_cluster(result, saved):
    model = ff.load(saved)
    tied = {**model.server, "w": tree_map(lambda v: v[:1].expand(v.shape).clone(), model.server["w"])}
    newcomer = replace(model, server=tied).assign([[71.0, 150.0]], ["ill"])
    lines = _assignment(model, newcomer)
    assert lines[0].startswith("Cannot tell") and "belongs to cluster" not in lines[0]


def test_labels_that_cannot_be_read_are_named_with_their_row(saved, tmp_path):
    new = tmp_path / "gams.csv"
    for cell, message in (("", "empty"), ("il", "did you mean 'ill'")):
        new.write_text(f"age,pressure,diagnosis\n60,120,ill\n70,130,{cell}\n")
        ended = focusfl("assign", saved, new)
        assert ended.code == 2 and f"{new}, row 3" in ended.err and message in ended.err, ended.err


def test_cells_and_columns_get_advice_that_fits_predict(saved, tmp_path):
    new = tmp_path / "new.csv"
    for content, message in (
        ("age,pressure\n60,high\n", "'high' is not a number (correct it, or leave"),
        ('age,pressure\n60,"150,5"\n', "'150,5' is not a number (write decimals with a point)"),
        ("age,presure\n60,120\n", "no column pressure, which the model was trained on; did you mean 'presure'"),
    ):
        new.write_text(content)
        ended = focusfl("predict", saved, new, "--agent", "bern")
        assert ended.code == 2 and message in ended.err and "data.text" not in ended.err, ended.err


def test_a_folder_above_a_model_or_none_is_named(saved, tmp_path):
    run = tmp_path / "runs" / "focus-seed0"
    shutil.copytree(saved, run / "model")
    (tmp_path / "new.csv").write_text("age,pressure\n60,120\n")
    for place, message in (
        (run, f"there is one in {run / 'model'}"),
        (tmp_path, f"there is one in {run / 'model'}"),
        (tmp_path / "nowhere", "no such folder"),
        (run / "model" / "model.json", "a file; name the folder"),
    ):
        ended = focusfl("predict", place, tmp_path / "new.csv", "--agent", "bern")
        assert ended.code == 2 and message in ended.err, ended.err


def test_predictions_may_be_predicted_again_and_written_as_parquet(saved, tmp_path):
    new, out = tmp_path / "new.csv", tmp_path / "out.csv"
    new.write_text("id,age,pressure,prediction,p_ill\n7,71,150,well,0.1\n")
    ended = focusfl("predict", saved, new, "--agent", "bern", "--out", out)
    assert ended.code == 0 and "'prediction_before'" in ended.err and "the model of bern" in ended.err
    header, cells = csv.reader(out.read_text().splitlines())
    assert header == ["id", "prediction_before", "p_ill_before", "prediction", "p_ill", "p_well"]
    assert cells[:4] == ["7", "well", "0.1", "ill"]
    parquet = pytest.importorskip("pyarrow.parquet")
    assert focusfl("predict", saved, new, "--agent", "bern", "--out", tmp_path / "out.parquet").code == 0
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.column_names == header and table["p_ill"][0].as_py() == pytest.approx(float(cells[4]), abs=1e-6)
    ended = focusfl("predict", saved, new, "--agent", "bern", "--out", tmp_path / "out.npz")
    assert ended.code == 2 and "csv or parquet" in ended.err and not (tmp_path / "out.npz").exists()


def test_the_card_of_a_newcomer_says_that_it_did_not_train(saved, tmp_path):
    write_hospital(tmp_path / "gams.csv", 9, reverse=True, n=40)
    for words, message in (
        ((), "by its 40 labelled examples"),
        (("--no-labels",), "on its 40 examples without labels"),
    ):
        out = tmp_path / f"gams{len(words)}"
        assert focusfl("assign", saved, tmp_path / "gams.csv", "--out", out, "--name", "gams", *words).code == 0
        card = focusfl("show", out).out
        assert "for the agent gams" not in card and "The agent gams did not train" in card and message in card
        assert "Its labels are" in card and ("How sure" in card) == bool(words)
        assert ff.load(out).agents == ("gams",)


def test_code_of_the_owner_is_allowed_with_an_option_that_the_error_and_the_card_name(tmp_path):
    fed = make_ragged()
    save = ff.fit(FedMedian(), fed, rounds=1, bayes="none").save(tmp_path / "model")
    np.savez(tmp_path / "new.npz", x=fed.test(0).x)
    ended = focusfl("predict", save, tmp_path / "new.npz", "--agent", 0)
    assert ended.code == 2 and "--allow-code" in ended.err
    assert "focusfl assign MODEL newcomer.csv --allow-code" in (save / "README.md").read_text()


def test_an_own_loss_is_passed_in_python_or_left_out_on_the_command_line(tmp_path):
    fed = make_ragged()
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    save = ff.fit(ff.Focus(M=2), fed, rounds=1, loss=loss, bayes="none").save(tmp_path / "model")
    np.savez(tmp_path / "new.npz", x=fed.test(0).x, y=fed.test(0).y)
    ended = focusfl("assign", save, tmp_path / "new.npz")
    assert ended.code == 2 and "--no-labels" in ended.err and "loss=" in ended.err
    assert focusfl("assign", save, tmp_path / "new.npz", "--no-labels").code == 0
    assert ff.load(save, loss=loss).assign(*fed.test(0)).labelled

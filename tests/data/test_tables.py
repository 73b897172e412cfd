"""Tables as they are: separators, encodings, identifiers, dates, categories, missing cells."""

import csv
import warnings
from random import Random

import numpy as np
import pytest
import torch
from fuzz.harness import focusfl
from hypothesis import given
from hypothesis import strategies as st

import focusfl as ff
from focusfl.data.own.folder import folder
from focusfl.data.own.inputs import label_numbers
from focusfl.util.errors import InputError

GOOD = "a,b,label\n1,2.5,0\n3,4,1\n5,6,0\n"


def write(root, **files):
    """One csv file per agent, given as text or bytes."""
    root.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        raw = content if isinstance(content, bytes) else content.encode()
        (root / f"{name}.csv").write_bytes(raw)
    return root


def same(one, other):
    return one.fingerprint == other.fingerprint


# --- how files are written


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
@pytest.mark.parametrize("comma", [".", ","])
def test_other_separators_and_decimal_commas_are_read(tmp_path, delimiter, comma):
    plain = folder(write(tmp_path / "plain", x=GOOD, y=GOOD))
    other = GOOD.replace(",", delimiter).replace(".", comma)
    assert same(folder(write(tmp_path / "other", x=other, y=GOOD)), plain)


def test_a_comma_in_a_quoted_name_does_not_hide_the_semicolons(tmp_path):
    fed = folder(write(tmp_path, x='"age, years";label\n1,5;0\n2;1\n', y='"age, years",label\n1.5,0\n2,1\n'))
    assert fed.columns == ("age, years",) and same(folder(tmp_path), fed)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252", "latin-1"])
def test_encodings_are_found_and_guesses_are_told(tmp_path, encoding):
    text = "größe,label\n1,früh\n2,spät\n3,früh\n"
    fed = folder(write(tmp_path, x=text.encode(encoding), y=text))
    assert fed.columns == ("größe",) and fed.labels == ("früh", "spät")
    assert any("x.csv" in line and "UTF-8" in line for line in fed.remarks()) == (encoding in ("cp1252", "latin-1"))


def semicolons(cells, other="0,5", label="01" * 20):
    rows = [f"{cell};{other};{label[i]}" for i, cell in enumerate(cells)]
    return "\n".join(["dose;x;label", *rows]) + "\n"


@pytest.mark.parametrize(
    "cells, other, row",
    [
        (["991,3", "2,5", "1.182", "7"], "1", 4),  # decimal commas in the column
        (["3", "7", "8", "-1.182"], "0,5", 5),  # in another column of the file
        (["1.182", "2.500", "3.750", "7,5"], "1", 2),  # more words than numbers
    ],
)
def test_a_point_before_three_digits_is_refused_where_there_are_decimal_commas(tmp_path, cells, other, row):
    root = write(tmp_path, bern=semicolons(cells, other), chur="dose,x,label\n" + "5.5,1,0\n6.5,2,1\n" * 3)
    with pytest.raises(InputError, match=rf"bern.csv, row {row} .*'dose': '-?1.182'"):
        folder(root)
    assert folder(root, drop="dose").columns == ("x",)


@pytest.mark.parametrize("cells, other", [(["1.182", "0.5", "2", "3"], "0,5"), (["1.182", "2", "3", "4"], "1")])
def test_a_point_is_that_of_a_decimal_where_nothing_speaks_against_it(tmp_path, cells, other):
    content = semicolons(cells, other)
    fed = folder(write(tmp_path, a=content, b=content))
    assert min(abs(x - 1.182) for x in torch.cat([fed.train(0).x, fed.test(0).x])[:, 0].tolist()) < 1e-6


def test_thousands_in_new_data_and_in_labels_are_refused_too(tmp_path):
    plain = "dose,x,label\n" + "5.5,1,0\n6.5,2,1\n" * 3
    fed = folder(write(tmp_path / "h", a=plain, b=plain))
    new = write(tmp_path / "new", new=semicolons(["991,3", "1.182"])) / "new.csv"
    with pytest.raises(InputError, match=r"new.csv, row 3 .*'dose': '1.182'"):
        fed.inputs.read(new)
    amounts = semicolons([1, 2, 3], label=["991,3", "1.182", "2"])
    with pytest.raises(InputError, match=r"a.csv, row 3 .*'label': '1.182'"):
        folder(write(tmp_path / "i", a=amounts, b=amounts))


# --- all problems in one message


def test_all_problems_of_all_files_are_told_at_once(tmp_path):
    write(tmp_path, ok=GOOD, cut=GOOD + "5,", empty="", lable="a,b,lable\n1,2,0\n")
    with pytest.raises(InputError) as caught:
        folder(tmp_path)
    lines = str(caught.value).split("\n")
    assert lines[0].startswith("3 problems") and len(lines) == 4
    for name, words in (("cut", "row 5"), ("empty", "empty"), ("lable", "did you mean")):
        assert any(f"{name}.csv" in line and words in line for line in lines)
    ended = focusfl("compare", "--data", "folder", "--set", f"data.path={tmp_path}", "--out", tmp_path / "out")
    assert ended.code == 2 and ended.err == f"error: {caught.value}\n" and not ended.faults


def test_of_many_problems_the_first_are_told(tmp_path):
    write(tmp_path, **{f"a{e:02}": f"a,{'b' * (e + 2)},lable\n" for e in range(25)})
    with pytest.raises(InputError) as caught:
        folder(tmp_path)
    lines = str(caught.value).split("\n")
    assert lines[0].startswith("25 problems") and len(lines) == 22 and lines[-1].strip() == "and 5 more"


def test_one_problem_of_all_files_is_told_once(tmp_path):
    with pytest.raises(InputError, match=r"a.csv: no label column 'x'.*in 2 more files") as caught:
        folder(write(tmp_path, a=GOOD, b=GOOD, c=GOOD), label="x")
    assert "\n" not in str(caught.value)


# --- what the columns are


def table(**columns):
    """A csv file of columns, with commas."""
    rows = zip(*columns.values(), strict=True)
    return "\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n"


def kinds(fed):
    return {column.name: column.kind for column in fed.inputs.schema.columns}


def example(fed, **cells):
    """One new example as the network takes it, by feature."""
    return dict(zip(fed.columns, fed.inputs.tensor({k: [v] for k, v in cells.items()})[0].tolist(), strict=True))


N = 40
LABELS = [i % 2 for i in range(N)]


@pytest.mark.parametrize(
    "name, cells, kind",
    [
        ("x", range(N), "number"),
        ("x", [1.5, -2] * 20, "number"),
        ("x", [3] * N, "constant"),
        ("x", ["True", "false"] * 20, "number"),
        ("patient_id", range(N), "id"),
        ("PatientNr", range(N), "id"),
        ("patient_id", [0, 1] * 20, "number"),
        *((name, range(N), "id") for name in ("patnr", "patientid", "pid", "case no.", "nr")),
        *((name, range(N), "number") for name in ("kidney_no", "platelet_number", "number of visits", "paid")),
        ("patient_age", range(N), "number"),
        ("id", [i / 7 for i in range(N)], "number"),
        ("code", [f"P-{i}" for i in range(N)], "id"),
        ("mrn", [f"P-{i}" for i in range(N)], "id"),
        ("seen", [f"2024-01-{i % 28 + 1:02}" for i in range(N)], "date"),
        ("seen", [f"{i % 28 + 1}.1.2024" for i in range(N)], "date"),
        ("seen", [f"1/{i % 28 + 1}/2024 10:30" for i in range(N)], "date"),
        ("country", ["CH"] * N, "constant"),
        ("empty", ["NA", ""] * 20, "constant"),
        ("sex", ["f", "m"] * 20, "category"),
        ("ward", ["3", "3b"] * 20, "category"),
        ("remark", [f"remark {i // 2}" for i in range(N)], "category"),
        ("remark", [f"remark {i // 2}" for i in range(N)] * 2, "text"),
    ],
)
def test_what_a_column_is(tmp_path, name, cells, kind):
    n = len(list(cells))
    content = table(**{name: cells, "age": range(n), "label": [i % 2 for i in range(n)]})
    if kind == "text":
        content = table(remark=[f"word {i % 30}" for i in range(60)], age=range(60), label=[0, 1] * 30)
    fed = folder(write(tmp_path, a=content, b=content))
    assert kinds(fed)[name if kind != "text" else "remark"] == kind
    used = kind in ("number", "category")
    assert any(feature.split(" = ")[0] == name for feature in fed.columns) == used
    assert any("left out" in line and name in line for line in fed.remarks()) == (not used)


def test_a_complete_table_of_numbers_gives_the_tensors_it_always_gave(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 60, 3)) * [1, 1e-3, 1e6]
    for name, rows in zip("ab", x, strict=True):
        write(tmp_path, **{name: table(p=rows[:, 0], q=rows[:, 1], r=rows[:, 2], label=[0, 1] * 30)})
        np.savez(tmp_path / name, x=rows, y=[0, 1] * 30)
    (tmp_path / "npz").mkdir()
    for name in "ab":
        (tmp_path / f"{name}.npz").rename(tmp_path / "npz" / f"{name}.npz")
    (tmp_path / "csv").mkdir()
    for name in "ab":
        (tmp_path / f"{name}.csv").rename(tmp_path / "csv" / f"{name}.csv")
    for scale in (False, True):
        one, other = (folder(tmp_path / kind, scale=scale) for kind in ("csv", "npz"))
        assert torch.equal(one.training.x, other.training.x) and torch.equal(one.testing.x, other.testing.x)
        assert one.fingerprint == other.fingerprint
    assert one.columns == ("p", "q", "r") and one.remarks() == []


def test_missing_numbers_become_the_mean_of_the_training_data_and_are_marked(tmp_path):
    for name in "ab":
        write(tmp_path / name, train=table(x=[1, "NA", 3, "?"], y=[1, 2, 3, 4], label=[0, 1, 0, 1]))
        write(tmp_path / name, test=table(x=[100, "-"], y=["", 200], label=[0, 1]))
    fed = folder(tmp_path, scale=False)
    assert fed.columns == ("x", "x is missing", "y")
    assert fed.train(0).x.tolist() == [[1, 0, 1], [2, 1, 2], [3, 0, 3], [2, 1, 4]]
    assert fed.test(0).x.tolist() == [[100, 0, 2.5], [2, 1, 200]]
    assert any("missing" in line and "x" in line for line in fed.remarks())
    scaled = folder(tmp_path)
    assert scaled.mean.tolist() == [2, 0, 2.5] and scaled.training.x[:, 1].tolist() == [0, 1, 0, 1] * 2
    with pytest.raises(InputError, match=r"row 3 .*column 'x'"):
        folder(tmp_path, missing="refuse")


def test_categories_become_one_feature_per_value(tmp_path):
    content = table(sex=["f", "m", "f", "NA"], ward=[7, 9, 9, 7], label=[0, 1, 0, 1])
    fed = folder(write(tmp_path, a=content, b=content), categorical="ward")
    assert fed.columns == ("sex = f", "sex = m", "sex is missing", "ward = 7", "ward = 9")
    assert list(example(fed, sex="m", ward="7.0").values()) == [0, 1, 0, 1, 0]
    assert list(example(fed, sex=None, ward=9).values()) == [0, 0, 1, 0, 1]
    assert list(example(fed, sex="x", ward="B").values()) == [0, 0, 0, 0, 0]


def test_columns_can_be_dropped_and_kept(tmp_path):
    content = table(id=range(4), seen=["2024-01-01", "2024-02-01"] * 2, x=range(4), label=[0, 1] * 2)
    write(tmp_path, a=content, b=content)
    assert folder(tmp_path).columns == ("x",)
    kept = folder(tmp_path, drop=["x"], categorical=["seen"])
    assert kept.columns == ("seen = 2024-01-01", "seen = 2024-02-01")
    for options, message in (
        ({"drop": "y"}, r"data.drop.*'y'.*known"),
        ({"categorical": ["sen"]}, "data.categorical.*did you mean 'seen'"),
        ({"drop": "x"}, r"no column to learn from: id \(identifier\), seen \(date\)"),
        ({"missing": "guess"}, "data.missing = guess"),
        ({"target": "words"}, "data.target = words"),
    ):
        with pytest.raises(InputError, match=message):
            folder(tmp_path, **options)


def test_words_among_numbers_are_named_in_all_files(tmp_path):
    content = table(x=[1, 2, 3, "four"], y=[1, 2, "3_", 4], label=[0, 1] * 2)
    write(tmp_path, a=content, b=content.replace("four", "vier"), c=GOOD.replace("a,b", "x,y"))
    with pytest.raises(InputError) as caught:
        folder(tmp_path)
    lines = str(caught.value).split("\n")
    assert any("a.csv, row 5" in line and "'x': 'four'" in line for line in lines)
    assert any("b.csv, row 5" in line and "'x': 'vier'" in line for line in lines)
    assert any("a.csv, row 4" in line and "'y': '3_'" in line for line in lines)


def test_rows_without_a_label_are_left_out(tmp_path):
    gaps, complete = table(x=range(6), label=[0, 1, "", "NA", 1, 0]), table(x=range(4), label=[0, 1] * 2)
    fed = folder(write(tmp_path, a=gaps, b=complete), scale=False)
    assert sorted(torch.cat([fed.train(0).x, fed.test(0).x]).flatten().tolist()) == [0, 1, 4, 5]
    assert any("a.csv: 2 rows" in line for line in fed.remarks())


def test_agents_whose_numbers_say_little_are_named(tmp_path):
    one, both = table(x=range(60), label=[1] * 60), table(x=range(60), label=[0, 1] * 30)
    fed = folder(write(tmp_path, a=one, b=both, c=table(x=range(10), label=[0, 1] * 5)))
    said = [line for line in fed.remarks() if "one class" in line or "test examples" in line]
    assert [line.split()[-1] for line in said] == ["a", "c"]


def test_the_target_says_how_labels_are_read(tmp_path):
    content = table(x=range(6), label=[1, 2, 10, 1, 2, 10])
    write(tmp_path, a=content, b=content)
    assert folder(tmp_path).classes == 11 and folder(tmp_path, target="number").classes is None
    fed = folder(tmp_path, target="class")
    assert (fed.classes, fed.labels) == (3, ("1", "2", "10"))
    assert label_numbers([10, "2", 1.0], fed.labels, fed.classes) == [2, 1, 0]
    content = table(x=range(4), label=["ill", "well"] * 2)
    with pytest.raises(InputError, match="'ill' is not a number"):
        folder(write(tmp_path, a=content, b=content), target="number")


@pytest.mark.parametrize(
    "cells, said", [(range(N), True), ([*range(N - 1), 0], False), ([i + 0.5 for i in range(N)], False)]
)
def test_whole_numbers_that_all_differ_are_remarked_on(tmp_path, cells, said):
    content = table(fall=cells, label=LABELS)
    fed = folder(write(tmp_path, a=content, b=content, c=table(fall=[3] * 10, label=[0, 1] * 5)))
    assert any("data.drop=fall" in line for line in fed.remarks()) == said and fed.columns == ("fall",)
    assert ("data.drop=fall" in fed.describe()) == said


def test_few_whole_numbers_that_differ_are_not_remarked_on(tmp_path):
    content = table(fall=range(19), label=LABELS[:19])
    assert "data.drop" not in folder(write(tmp_path, a=content, b=content)).describe()


# --- scaling


def test_the_numbers_of_a_table_are_scaled_unless_told_not_to(tmp_path):
    content = table(x=[1, 3, 1, 3], sex=["f", "m", "m", "m"], label=[0, 1] * 2)
    for name in "ab":
        write(tmp_path / name, train=content, test=content)
    fed = folder(tmp_path)
    assert fed.columns == ("x", "sex = f", "sex = m")
    assert fed.training.x.tolist() == [[-1, 1, 0], [1, 0, 1], [-1, 0, 1], [1, 0, 1]] * 2
    assert fed.train("a").x.tolist() == folder(tmp_path, scale=False).training.x[:4].tolist()
    assert fed.inputs.tensor({"x": [5], "sex": ["f"]}).tolist() == [[3, 1, 0]]


def test_arrays_are_scaled_only_if_asked(tmp_path):
    x = np.array([[1.0], [3.0]])
    for name in "ab":
        np.savez(tmp_path / name, x_train=x, y_train=[0, 1], x_test=x, y_test=[0, 1])
    assert folder(tmp_path).training.x.flatten().tolist() == [1, 3, 1, 3]
    assert folder(tmp_path, scale=True).training.x.flatten().tolist() == [-1, 1, -1, 1]


@pytest.mark.parametrize("unit", [1e-30, 1e-3, 1e3, 1e30])
def test_the_unit_of_a_column_changes_nothing(tmp_path, unit):
    rng = np.random.default_rng(0)
    x = rng.normal(5, 1, 60)
    scaled = [
        folder(write(tmp_path / str(u), **dict.fromkeys("ab", table(x=x * u, label=[0, 1] * 30)))).training.x
        for u in (1, unit)
    ]
    assert torch.allclose(*scaled, atol=1e-5)


# --- for all tables

CELLS = st.one_of(
    st.none(), st.integers(-5, 5), st.floats(-10, 10), st.sampled_from(["", "NA", "a", "b", "ö", "2024-01-01", "7"])
)


@given(st.permutations(["id", "x", "sex", "seen"]), st.permutations(["id", "x", "sex", "seen"]))
def test_the_order_of_columns_changes_nothing(tmp_path_factory, one, other):
    columns = {"id": range(6), "x": [1, 2, "NA", 4, 5, 6], "sex": list("fmfmfm"), "seen": ["2024-01-01"] * 6}
    root = tmp_path_factory.mktemp("order")

    def read(first, second):
        orders = {"a": first, "b": second}
        files = {k: table(**{name: columns[name] for name in v}, label=[0, 1] * 3) for k, v in orders.items()}
        return folder(write(root, **files))

    plain, fed = read(list(columns), list(columns)), read(one, other)
    order = [fed.columns.index(name) for name in plain.columns]
    assert torch.equal(fed.training.x[:, order], plain.training.x)
    assert torch.equal(fed.testing.x[:, order], plain.testing.x)
    assert read(list(columns), other).fingerprint == plain.fingerprint


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    content = table(x=[1, "NA", 3, 4], sex=["f", "m", "f", "f"], label=[0, 1] * 2)
    return folder(write(tmp_path_factory.mktemp("mixed"), a=content, b=content))


@given(CELLS, st.one_of(st.none(), st.integers(-5, 5), st.floats(-10, 10), st.sampled_from(["", "NA", "?", "3"])))
def test_unknown_categories_and_missing_cells_never_raise(mixed, sex, x):
    assert mixed.inputs.tensor({"sex": [sex, "f"], "x": [x, 1]}).isfinite().all()


# --- five hospitals, from the files to predictions


def hospital(e, n=60, label=True):
    """Rows of a hospital as it keeps them."""
    rng = Random(e)
    for i in range(n):
        age, sex, pressure = rng.gauss(60, 10), rng.choice("fm"), rng.gauss(120, 15)
        ill = pressure > 120 or (e == 4 and label)
        pressure = "NA" if i % 9 == 4 else f"{pressure:.1f}"
        row = [f"H{e}-{i:04}", f"2024-03-{i % 28 + 1:02}", f"{age:.1f}", sex, pressure, "CH"]
        yield [*row, *(["ill" if ill else "well"] if label and i != 7 else [""] if label else [])]


HEAD = ["patient", "admitted", "age", "sex", "pressure", "country"]


def write_hospitals(root):
    root.mkdir()
    for e, name in enumerate(["aarau", "bern", "chur", "davos", "elm"]):
        delimiter, encoding = (";", "utf-8-sig") if e == 1 else (",", "utf-16") if e == 2 else (",", "utf-8")
        with (root / f"{name}.csv").open("w", newline="", encoding=encoding) as handle:
            rows = [[c.replace(".", ",") if e == 1 else c for c in row] for row in hospital(e)]
            csv.writer(handle, delimiter=delimiter).writerows([[*HEAD, "diagnosis"], *rows])


def test_five_hospitals_from_their_files_to_predictions(tmp_path):
    write_hospitals(tmp_path / "h")
    out, new = tmp_path / "out", tmp_path / "new.csv"
    options = [f"data.path={tmp_path / 'h'}", "data.label=diagnosis", "focus.M=2"]
    words = [word for option in options for word in ("--set", option)]
    words += ["--rounds", "5", "--seeds", "0", "--algorithms", "focus,fedavg", "--out", out]
    ended = focusfl("compare", "--data", "folder", *words)
    assert ended.code == 0 and not ended.faults, ended.err
    for line in ("numbers: age, pressure", "categories: sex (2)", "patient (identifier), admitted (date)"):
        assert line in ended.err, ended.err
    rows = [*hospital(9, 4, label=False)]
    rows[0][3], rows[1][4], rows[2][2] = "d", "", "?"
    new.write_text("\n".join(";".join(row) for row in [HEAD, *rows]))
    model = out / "runs/focus-seed0/model"
    ended = focusfl("predict", model, new, "--agent", "bern")
    assert ended.code == 0 and not ended.faults, ended.err
    assert "sex = d" in ended.err and "pressure (1)" in ended.err
    predicted = [*csv.DictReader(ended.out.splitlines())]
    assert [row["patient"] for row in predicted] == [row[0] for row in rows]
    trained = ff.load(model)
    frame = {name: [row[j] for row in rows] for j, name in enumerate(HEAD)}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        p = trained.predict("bern", frame)
    told = [str(w.message) for w in warned]
    assert any("'sex'" in line and "d" in line for line in told) and any("'age'" in line for line in told)
    assert [f"{v:.6f}" for v in p[:, 0].tolist()] == [row["p_ill"] for row in predicted]
    with pytest.raises(InputError, match="data frame or a dict"):
        trained.predict("bern", [[71.0, 150.0]])
    shown = focusfl("show", model)
    assert shown.code == 0 and "sex = f" in shown.out

"""Folders as people have them: the first command gives a result, or one message with everything that is wrong."""

import re
from random import Random

import pytest
import torch
from fuzz.harness import focusfl

import focusfl as ff
from focusfl.data.own.folder import folder
from focusfl.data.own.inputs import label_numbers
from focusfl.util.errors import InputError

SITES = ("aarau", "bern", "chur")


def rows(e, n=30, **columns):
    """A table of n patients: name -> cells; columns replace those there are, and None leaves one out."""
    rng = Random(e)
    table = {
        "age": [round(rng.gauss(60, 10), 1) for _ in range(n)],
        "sex": [rng.choice("fm") for _ in range(n)],
        "label": [rng.choice(["ill", "well"]) for _ in range(n)],
    }
    table |= {name: [cell(i) for i in range(n)] if callable(cell) else cell for name, cell in columns.items()}
    return {name: cells for name, cells in table.items() if cells is not None}


def text(table, mark=","):
    lines = [table.keys(), *zip(*table.values(), strict=True)]
    return "\n".join(mark.join(str(cell) for cell in line) for line in lines) + "\n"


def write(root, **files):
    """Files of the sites, as tables, text or bytes; the sites that are not given have a plain table."""
    root.mkdir(exist_ok=True)
    for e, name in enumerate(SITES):
        content = files.pop(name, rows(e))
        content = text(content) if isinstance(content, dict) else content
        (root / f"{name}.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert not files
    return root


def compare(root, *options):
    words = [word for option in (f"data.path={root}", *options) for word in ("--set", option)]
    words += ["--rounds", "1", "--seeds", "0", "--algorithms", "fedavg", "--out", root.parent / "out"]
    return focusfl("compare", "--data", "folder", *words)


def every(**columns):
    """All sites with these columns."""
    return {name: rows(e, **columns) for e, name in enumerate(SITES)}


WORKS = {  # files, and what the user is told
    "identifiers": (every(patient_id=lambda i: f"P{i}", nr=range(30)), r"left out: patient_id .*identifier.*nr"),
    "dates": (every(seen=lambda i: f"2024-01-{i % 28 + 1:02}"), r"left out: seen \(date\)"),
    "categories": (every(ward=lambda i: "ABC"[i % 3]), r"categories: sex \(2\), ward \(3\)"),
    "missing cells": (every(bmi=lambda i: ["NA", "", "?", 21.5][i % 4]), "missing cells: bmi"),
    "missing labels": (
        {"bern": rows(1, label=["ill", "well", "", "NA", " "] * 6)},
        "bern.csv: 18 rows without a label",
    ),
    "constants": (every(country=["CH"] * 30, year=[2024] * 30), r"left out: country \(one value\), year"),
    "semicolons": ({"bern": text(rows(1), ";").replace(".", ",")}, "numbers: age"),
    "sep= of Excel": ({"bern": "sep=;\r\n" + text(rows(1), ";").replace("\n", "\r\n")}, "numbers: age"),
    "a byte order mark": ({"bern": text(rows(1)).encode("utf-8-sig")}, "numbers: age"),
    "latin-1": (
        {
            n: text(rows(e, ort=lambda i: ["Zürich", "Genève"][i % 2])).encode("latin-1")
            for e, n in enumerate(SITES)
        },
        "aarau.csv: not UTF-8.*and in 2 more files",
    ),
    "UTF-16": ({"bern": text(rows(1)).encode("utf-16")}, "numbers: age"),
    "one site with one class": ({"bern": rows(1, label=["well"] * 30)}, "only one class .* bern"),
    "a site with few rows": ({"bern": rows(1, n=3)}, "fewer than 10 test .*bern"),
    "other order": ({"bern": dict(reversed(rows(1).items()))}, "numbers: age"),
    "other capital letters": (
        {"bern": {{"age": "Age ", "sex": "SEX", "label": "Label"}[k]: v for k, v in rows(1).items()}},
        r"bern.csv: 'Age' is read as 'age', 'SEX' is read as 'sex'",
    ),
    "labels in other spelling": (
        {"bern": rows(1, label=["Ill ", " WELL"] * 15)},
        r"one class: Ill, ill; WELL, well",
    ),
    "labels as pandas writes them": (
        {n: rows(e, label=[["0", "1"], ["0.0", "1.0"]][e == 1] * 15) for e, n in enumerate(SITES)},
        r"classes .*0 \(\d+\), 1 \(\d+\)",
    ),
    "labels + and -": (every(label=["+", "-"] * 15), r"classes .*\+ \(\d+\), - \(\d+\)"),
    "free text": (every(text=lambda i: f"came in with {i * i} complaints"), r"left out: text"),
    "an index": ({n: {"": range(30), **rows(e)} for e, n in enumerate(SITES)}, "column 1 has no name"),
}
WRONG = {  # the files, and for each problem a file and a word
    "a column twice": ({"bern": text(rows(1)).replace("age,sex", "age,age")}, [("bern", "'age'")]),
    "an empty file": ({"bern": ""}, [("bern", "empty")]),
    "a header alone": ({"bern": "age,sex,label\n"}, [("bern", "no examples")]),
    "one row": ({"bern": rows(1, n=1)}, [("bern", "1 example")]),
    "no labels": ({"bern": rows(1, label=[""] * 30)}, [("bern", "no row has a label")]),
    "a column less": ({"aarau": rows(0, sex=None)}, [("aarau", "lacks sex")]),
    "a column more": ({"bern": rows(1, bmi=range(30))}, [("bern", "data.drop=bmi")]),
    "a misspelt column": (
        {"bern": {"aeg" if k == "age" else k: v for k, v in rows(1).items()}, "chur": rows(2)},
        [("bern", "lacks age; only it has aeg")],
    ),
    "words among numbers": (
        {"bern": rows(1, age=["<0.5", "n.d.", *range(28)]), "chur": rows(2, age=["1'000", *range(29)])},
        [("bern", "row 2 .*'<0.5' is not a number.*n.d."), ("chur", "row 2 .*1'000")],
    ),
    "numbers that are all words": (every(dose=['"1,5"', '"2,25"'] * 15), [("aarau", "'dose': '1,5'.*1234.5")]),
    "words and numbers as labels": ({"bern": rows(1, label=[0, 1] * 15)}, [("aarau", "different kinds.*bern")]),
    "rows of another width": ({"bern": text(rows(1)) + "1\n1,2\n"}, [("bern", "row 32 .*1 more")]),
    "no header": ({"bern": "61.2,3,0\n50,2,1\n"}, [("bern", "first row")]),
}


@pytest.mark.parametrize("files, said", WORKS.values(), ids=WORKS)
def test_the_first_command_gives_a_result(tmp_path, files, said):
    ended = compare(write(tmp_path / "h", **files))
    assert ended.code == 0 and not ended.faults, ended.err
    assert re.search(said, ended.err), ended.err
    assert (tmp_path / "out/results.json").exists()


@pytest.mark.parametrize("files, problems", WRONG.values(), ids=WRONG)
def test_the_first_command_names_the_file_and_says_what_to_do(tmp_path, files, problems):
    told(compare(write(tmp_path / "h", **files)), problems)
    assert not (tmp_path / "out").exists()


def told(ended, problems):
    """Each problem has its line, and there are no others."""
    lines = ended.err.removeprefix("error: ").splitlines()
    assert ended.code == 2 and not ended.faults and len(lines) == len(problems) + (len(problems) > 1), ended.err
    for name, words in problems:
        assert any(f"{name}.csv" in line and re.search(words, line) for line in lines), (name, words, ended.err)


def test_several_traps_at_once_are_told_in_one_message(tmp_path):
    root = write(
        tmp_path / "h",
        aarau=rows(0, age=["?", "old", *range(28)], visit=range(30)),
        bern=text(rows(1)).replace("age,sex", "age,age"),
        chur=rows(2, label=None),
    )
    (root / "davos.csv").write_text("")
    (root / "elm.csv").write_text(text(rows(4, age=["n.d.", *range(29)])))
    (root / "flims.csv").write_text(text(rows(5, n=1)))
    (root / "gais.xlsx").write_text("")
    ended = compare(root)
    lines = ended.err.splitlines()
    assert ended.code == 2 and not ended.faults and lines[0].startswith("error: 8 problems"), ended.err
    for name, words in (
        ("aarau.csv", "row 3 .*'old' is not a number"),
        ("aarau.csv", "only it has visit"),
        ("bern.csv", "two columns"),
        ("chur.csv", "no label column"),
        ("davos.csv", "empty"),
        ("elm.csv", "row 2 .*n.d."),
        ("flims.csv", "1 example"),
        ("gais.xlsx", "save it as csv"),
    ):
        assert sum(name in line and re.search(words, line) is not None for line in lines) == 1, (
            name,
            words,
            ended.err,
        )


def test_what_the_messages_advise_helps(tmp_path):
    root = write(tmp_path / "h", aarau=rows(0, bmi=range(30)), bern=rows(1, sex=None))
    assert compare(root).code == 2
    assert compare(root, "data.drop='bmi,sex'").code == 0
    root = write(tmp_path / "i", **every(dose=['"1,5"', '"2,25"'] * 15))
    assert folder(root, drop="dose").columns == ("age", "sex = f", "sex = m")
    assert "dose = 1,5" in folder(root, categorical="dose").columns
    root = write(tmp_path / "j", **every(label=[-1, 1] * 15))
    with pytest.raises(InputError, match=r"data\.target=class"):
        folder(root)
    assert folder(root, target="class").labels == ("-1", "1")
    with pytest.raises(InputError, match=r"data\.drop: no column 'agee': did you mean 'age'"):
        folder(root, target="class", drop=["agee"])


def test_the_kinds_of_columns_are_shown_in_python_as_on_the_command_line(tmp_path):
    root = write(tmp_path / "h", **every(nr=range(30), country=["CH"] * 30))
    described = ff.data.folder(root).describe()
    for line in ("numbers: age", "categories: sex (2)", "left out: nr (identifier), country (one value)"):
        assert line in described
    ended = compare(root)
    assert all(f"note: {line}" in ended.err for line in described.splitlines()[1:])
    plain = write(tmp_path / "p", **every(sex=None))
    assert (
        "numbers: age" in ff.data.folder(plain).describe()
        and "note: numbers: age" in compare(plain, "seeds=[1]").err
    )


def test_spellings_of_labels_are_one_class_also_when_predicting(tmp_path):
    fed = folder(write(tmp_path / "h", bern=rows(1, label=["Ill ", " WELL"] * 15)))
    labels = torch.cat([fed.train("bern").y, fed.test("bern").y])
    assert fed.labels == ("ill", "well") and labels.bincount().tolist() == [15, 15]
    assert label_numbers(["ILL", "Well "], fed.labels, fed.classes) == [0, 1]


def test_spellings_that_one_file_has_both_are_two_classes_and_are_remarked_on(tmp_path):
    fed = folder(write(tmp_path / "h", bern=rows(1, label=["hid", "hId", "h  id"] * 10)))
    assert fed.labels == ("h  id", "hId", "hid", "ill", "well")
    assert any("hId, hid differ" in line for line in fed.remarks())


def test_one_word_as_the_label_of_everybody_is_refused(tmp_path):
    root = write(tmp_path / "h", **every(label=["ill"] * 30))
    with pytest.raises(InputError, match=rf"{root}: all labels are 'ill'.*nothing to learn"):
        folder(root)
    assert compare(root).code == 2


@pytest.mark.parametrize("label", [1, 2.5])
def test_one_number_as_the_label_of_everybody_is_remarked_on(tmp_path, label):
    described = folder(write(tmp_path / "h", **every(label=[label] * 30))).describe()
    assert f"all training labels are {label}" in described


def test_whole_numbers_that_may_be_amounts_are_remarked_on(tmp_path):
    root = write(tmp_path / "h", **every(label=lambda i: i * 37 % 25))
    fed = folder(root)
    assert any("25 different" in line and "data.target=number" in line for line in fed.remarks())
    assert fed.classes == 25 and folder(root, target="number").classes is None
    assert not any("data.target" in line for line in folder(root, target="class").remarks())
    few = folder(write(tmp_path / "i", **every(label=lambda i: i % 12)))
    assert not any("data.target" in line for line in few.remarks())


def test_whole_numbers_that_are_nearly_all_different_are_refused_as_classes(tmp_path):
    root = write(tmp_path / "h", **{name: rows(e, label=range(e, 900, 30)) for e, name in enumerate(SITES)})
    with pytest.raises(InputError, match=r"aarau.csv, row 2 .*label 0 .*different.*data\.target=number"):
        folder(root)
    assert folder(root, target="number").classes is None
    assert len(folder(root, target="class").labels) == 90


@pytest.mark.parametrize("written", ["1'{:03}", "CHF {}", '"0,{}"', "{} %"])
def test_labels_that_are_amounts_written_as_words_are_refused(tmp_path, written):
    root = write(tmp_path / "h", **every(label=lambda i: written.format(100 + i)))
    with pytest.raises(InputError, match=r"aarau.csv, row 2 .*look like numbers.*1234\.5"):
        folder(root)
    few = write(tmp_path / "i", **every(label=lambda i: written.format(100 + i % 3)))
    assert len(folder(few).labels) == 3


def test_columns_are_dropped_however_files_spell_them(tmp_path):
    names = dict(zip(SITES, ("AGE", "age", " Age"), strict=True))
    files = {n: {name if k == "age" else k: v for k, v in rows(0).items()} for n, name in names.items()}
    root = write(tmp_path / "h", **files)
    for spelling in ("age", "AGE", "aGe"):
        assert folder(root, drop=spelling).columns == ("sex = f", "sex = m")


def test_of_two_columns_spelled_alike_the_one_as_written_is_dropped(tmp_path):
    root = write(tmp_path / "h", **every(AGE=range(30)))
    assert "age" not in folder(root, drop="age").columns and "AGE" in folder(root, drop="age").columns


def test_the_label_that_is_not_there_is_asked_for(tmp_path):
    root = write(tmp_path / "h", **{n: text(rows(0)).replace("label", "ill") for n in SITES})
    with pytest.raises(InputError, match=r"no label column 'label'.*data\.label=NAME.*age, ill, sex") as caught:
        folder(root)
    assert "did you mean" not in str(caught.value)


def test_the_label_cannot_be_dropped(tmp_path):
    with pytest.raises(InputError, match=r"data\.drop: 'label' is the label"):
        folder(write(tmp_path / "h"), drop="label")


def test_without_a_path_the_option_is_named():
    ended = focusfl("compare", "--data", "folder")
    assert ended.code == 2 and not ended.faults and "--set data.path=DIR" in ended.err, ended.err


@pytest.mark.parametrize("cell", ["#N/A", "#NV", "none", "NULL"])
def test_what_programs_write_into_empty_cells_is_missing(tmp_path, cell):
    fed = folder(write(tmp_path / "h", **every(bmi=[cell, *range(29)])))
    assert "bmi is missing" in fed.columns


def test_none_is_a_class_among_words_and_missing_among_numbers(tmp_path):
    fed = folder(write(tmp_path / "h", **every(label=["none", "mild", "severe"] * 10)))
    assert fed.labels == ("mild", "none", "severe")
    assert folder(write(tmp_path / "i", **every(label=["none", 0, 1] * 10))).classes == 2


@pytest.mark.parametrize("cell", ["n.d.", "unknown", "--"])
def test_of_a_stray_word_among_numbers_the_user_is_told_to_leave_the_cell_empty(tmp_path, cell):
    with pytest.raises(InputError, match=r"row 2 .*'bmi'.*empty"):
        folder(write(tmp_path / "h", **every(bmi=[cell, *range(29)])))


def repeats(root):
    return [line for line in folder(root).remarks() if "rows" in line]


def test_rows_in_training_and_test_data_are_counted(tmp_path):
    root = write(
        tmp_path / "h",
        **{name: rows(e, n=150, bmi=lambda i, e=e: (i * 37 + e * 11) % 499) for e, name in enumerate(SITES)},
    )
    assert repeats(root) == []
    (root / "bern").mkdir()
    (root / "bern.csv").rename(root / "bern/train.csv")
    (root / "bern/test.csv").write_bytes((root / "bern/train.csv").read_bytes())
    assert any("bern (150 of 150)" in line and "too good" in line for line in repeats(root))


def test_rows_twice_in_a_file_and_files_of_two_agents_are_counted(tmp_path):
    plain = {name: rows(e, n=150, bmi=lambda i, e=e: (i * 37 + e * 11) % 499) for e, name in enumerate(SITES)}
    double = {k: v * 2 for k, v in plain["bern"].items()}
    assert any(
        "more than once: bern" in line for line in repeats(write(tmp_path / "h", **plain | {"bern": double}))
    )
    copied = repeats(write(tmp_path / "i", **plain | {"chur": plain["aarau"]}))
    assert any("aarau and chur (150 of 150)" in line for line in copied) and len(copied) == 1

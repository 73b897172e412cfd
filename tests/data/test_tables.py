"""Tables as they are: separators, encodings, all problems at once."""

import pytest
from fuzz.harness import focusfl

from focusfl.data.own.folder import folder
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

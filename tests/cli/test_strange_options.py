"""Options and files of options that no one would write by hand: one line, exit code 2, nothing written."""

import pytest

VALUES = {"digits": "9" * 5000, "brackets": "[" * 5000, "tables": "{a=" * 5000}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("key", ["rounds", "train.lr", "focus.M", "data.path", "x"])
def test_set_refuses_values_without_end(name, key, focusfl, tmp_path):
    code, _, err = focusfl("compare", "--set", f"{key}={VALUES[name]}")
    assert code == 2 and err.count("\n") == 1 and len(err) < 1000 and key in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", VALUES)
def test_a_file_refuses_values_without_end(name, focusfl, tmp_path):
    (tmp_path / "x.toml").write_text(f"rounds = {VALUES[name]}\n")
    code, _, err = focusfl("run", "x.toml")
    assert code == 2 and err.count("\n") == 1 and len(err) < 1000 and "x.toml" in err


def test_an_error_of_many_lines_is_one_and_has_no_escape_codes(focusfl, tmp_path):
    code, _, err = focusfl("compare", "--set", "data.path='a\x1b[31m'", "--set", "train.lr='\x1b[31m'")
    assert code == 2 and err.count("\n") == 1 and "\x1b" not in err
    code, _, err = focusfl("compare", "--data", "folder", "--set", "data.path=~nobody-of-this-name/x")
    assert code == 2 and err.count("\n") == 1 and "data.path" in err


def test_an_option_of_the_command_line_has_no_escape_codes_in_its_error(focusfl):
    code, _, err = focusfl("compare", "--bogus\x1b[31m\n\n")
    assert code == 2 and err.count("\n") == 1 and "\x1b" not in err


def test_data_in_a_folder_whose_name_is_not_utf8_are_used(focusfl, tmp_path):
    (place := tmp_path / "Z\udcfcrich").mkdir()
    for name in "ab":
        (place / f"{name}.csv").write_text("a,b,label\n" + "1,2,0\n3,4,1\n" * 5)
    words = ("--algorithms", "local", "--rounds", 1, "--seeds", 0)
    code, _, err = focusfl("compare", "--data", "folder", "--set", f"data.path={place}", *words)
    assert code == 0, err

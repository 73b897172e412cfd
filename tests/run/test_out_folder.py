"""A folder that holds files of somebody else is refused by everything that writes results."""

import pytest

import focusfl as ff
from focusfl.run.compare import compare
from focusfl.run.experiment import Experiment
from focusfl.run.sweep import Sweep, sweep
from focusfl.util.errors import InputError

RAW = {"data": "synthetic", "algorithms": ["fedavg"], "seeds": [0], "rounds": 1}
SILENT = {"progress": False, "note": lambda _: None}


def fit_there(out, overwrite=False):
    ff.fit(ff.FedAvg(), ff.data.synthetic(), rounds=1, out=out, bayes="none")


def compare_there(out, overwrite=False):
    compare(Experiment.parse(RAW), out, overwrite=overwrite, **SILENT)


def sweep_there(out, overwrite=False):
    sweep(Sweep(dict(RAW), {"train.lr": ["0.01"]}), out, jobs=1, overwrite=overwrite, **SILENT)


@pytest.mark.parametrize("write", [fit_there, compare_there, sweep_there])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_foreign_files_is_refused_and_left_as_it_is(tmp_path, write, overwrite):
    for name in ("a.csv", "b.csv", "runs", "z.txt"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match=r"not empty.*a\.csv, b\.csv, runs and 1 more"):
        write(tmp_path, overwrite=overwrite)
    shown = sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("."))
    assert shown == ["a.csv", "b.csv", "runs", "z.txt"] and (tmp_path / "runs").read_text() == "mine"


@pytest.mark.parametrize("write", [fit_there, compare_there])
def test_hidden_files_do_not_count(tmp_path, write):
    (tmp_path / ".DS_Store").write_text("")
    write(tmp_path)
    assert list(tmp_path.glob("res*.json"))


def test_overwrite_keeps_what_others_put_beside_an_experiment(tmp_path):
    compare_there(tmp_path)
    (tmp_path / "report.html").write_text("made of it")
    compare_there(tmp_path, overwrite=True)
    assert (tmp_path / "report.html").read_text() == "made of it" and (tmp_path / "results.json").exists()


@pytest.mark.filterwarnings("ignore:fewer than 10 test examples")
def test_a_run_of_fit_is_not_written_into_the_folder_of_its_data(tmp_path):
    for name in ("bern", "genf"):
        (tmp_path / f"{name}.csv").write_text("a,label\n" + "".join(f"{i},{i % 2}\n" for i in range(8)))
    fed = ff.data.folder(tmp_path)
    for out in (tmp_path, tmp_path / "run"):
        with pytest.raises(InputError, match="folder of the data"):
            ff.fit(ff.FedAvg(), fed, rounds=1, out=out)
    assert not (tmp_path / "run").exists()

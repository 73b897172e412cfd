"""The command line, as a user types it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from focusfl.algorithms import ALGORITHMS
from focusfl.data import DATA
from focusfl.run import checkpoint
from focusfl.util import files

FOCUSFL = [sys.executable, "-c", "from focusfl.cli import main; main()"]
KEYS = {
    *(
        "algorithm",
        "params",
        "data",
        "seed",
        "rounds",
        "engine",
        "avg_acc",
        "avg_loss",
        "faa",
        "agnostic_loss",
    ),
    *("loss", "acc", "excess_risk", "bayes", "pi", "clusters", "true_clusters", "ari", "seconds"),
}


QUICK = ("compare", "--data", "synthetic", "--rounds", "3", "--seeds", "0,1")


def test_resume_and_overwrite_exclude_each_other(focusfl):
    focusfl(*QUICK, "--out", "r")
    code, _, err = focusfl(*QUICK, "--out", "r", "--resume", "--overwrite")
    assert code == 2 and "--resume" in err and "--overwrite" in err


def test_a_page_that_cannot_be_written_is_an_input_error(focusfl):
    focusfl(*QUICK, "--out", "r")
    code, _, err = focusfl("report", "r", "--out", "nowhere/page.html")
    assert code == 2 and "nowhere/page.html" in err and "--resume" not in err


def test_the_method_that_diverged_is_named(focusfl):
    code, _, err = focusfl(*QUICK, "--algorithms", "fedavg,ditto:lam=1000", "--out", "r")
    assert code == 1 and "ditto:lam=1000, seed 0" in err and "diverged" in err


def test_results_inside_the_data_folder_are_refused_before_anything_is_written(focusfl, tmp_path):
    (tmp_path / "data").mkdir()
    for name in ("aarau", "bern"):
        lines = [f"{20 + i},{i % 2}" for i in range(20)]
        (tmp_path / f"data/{name}.csv").write_text("\n".join(["age,label", *lines]))
    before = sorted(tmp_path.rglob("*"))
    for out in ("data", "data/runs/a"):
        code, _, err = focusfl("compare", "--data", "folder", "--set", "data.path=data", "--out", out)
        assert code == 2 and err.startswith(f"error: {out}:") and "--out" in err
    assert sorted(tmp_path.rglob("*")) == before
    short = ("--rounds", "2", "--seeds", "0", "--out", "r")
    words = ("compare", "--data", "folder", "--set", "data.path=data")
    code, out, err = focusfl(*words, *short)
    assert code == 0 and "Agents: 0 aarau, 1 bern" in err and "data.scale" not in err
    assert focusfl("report", "r")[0] == 0
    assert all(
        "Agents: 0 aarau, 1 bern" in (tmp_path / "r" / name).read_text() for name in ("report.md", "report.html")
    )
    assert "only 2 rounds" in " ".join(out.split()) and "will do" not in out and "sufficient" not in out
    code, _, err = focusfl(*words, "--set", "data.scale=false", *short[:-1], "s")
    assert code == 0 and "column 'age'" in err and "data.scale" in err  # 16 of 20 train: about 29.5


def test_results_json_has_the_documented_keys_and_values(focusfl, tmp_path):
    code, out, _ = focusfl(*QUICK, "--algorithms", "focus,fedavg,local", "--set", "focus.M=2", "--out", "r")
    assert code == 0 and "FOCUS" in out and "FAA" in out and "excess risk" in out
    rows = json.loads((tmp_path / "r/results.json").read_text())
    assert [(r["algorithm"], r["seed"]) for r in rows] == [
        (a, s) for s in (0, 1) for a in ("focus", "fedavg", "local")
    ]
    for row in rows:
        assert row.keys() >= KEYS
        assert row["avg_acc"] is None and row["acc"] is None and row["rounds"] == 3 and row["data"] == "synthetic"
        assert all(len(row[k]) == 10 for k in ("loss", "excess_risk", "bayes", "clusters", "true_clusters"))
        assert row["faa"] == pytest.approx(max(row["excess_risk"]) - min(row["excess_risk"]), abs=1e-6)
        assert row["excess_risk"] == pytest.approx([a - b for a, b in zip(row["loss"], row["bayes"], strict=True)])
    assert rows[0]["params"]["M"] == 2 and len(rows[0]["pi"][0]) == 2 and rows[1]["pi"] is None


def test_json_is_results_json(focusfl, tmp_path):
    code, out, _ = focusfl(*QUICK, "--out", "r", "--json")
    assert code == 0 and json.loads(out) == json.loads((tmp_path / "r/results.json").read_text())


def test_classification_has_accuracies_and_takes_m_from_the_data(focusfl, tmp_path):
    code, _, _ = focusfl("compare", "--rounds", "2", "--seeds", "0", "--algorithms", "focus", "--out", "r")
    row = json.loads((tmp_path / "r/results.json").read_text())[0]
    assert code == 0 and row["data"] == "rotated-digits" and 0 <= row["avg_acc"] <= 1 and row["params"]["M"] == 3


def test_a_finished_folder_is_shown_again_and_another_experiment_refused(focusfl, tmp_path):
    assert focusfl(*QUICK, "--out", "r")[0] == 0
    before = (tmp_path / "r/results.json").read_bytes()
    code, out, err = focusfl(*QUICK, "--out", "r")
    assert code == 0 and "already" in err and "FOCUS" in out
    code, _, err = focusfl(*QUICK, "--out", "r", "--set", "train.lr=0.01")
    assert code == 2 and "another experiment" in err
    assert (tmp_path / "r/results.json").read_bytes() == before
    assert focusfl(*QUICK, "--out", "r", "--set", "train.lr=0.01", "--overwrite")[0] == 0
    assert (tmp_path / "r/results.json").read_bytes() != before


OWN_DATA = (*QUICK, "--data", "folder", "--set", "data.path=own", "--algorithms", "fedavg")


def write_own_data(tmp_path, label):
    (tmp_path / "own").mkdir(exist_ok=True)
    for name in ("a", "b"):
        (tmp_path / "own" / f"{name}.csv").write_text(f"x,label\n1,0\n2,1\n3,{label}\n")


@pytest.mark.parametrize("words", [(), ("--resume",)])
def test_data_that_have_changed_are_refused(words, focusfl, tmp_path):
    write_own_data(tmp_path, 0)
    assert focusfl(*OWN_DATA, "--out", "r")[0] == 0
    (tmp_path / "r/data.json").unlink()  # a folder of an older version
    assert focusfl(*OWN_DATA, "--out", "r")[0] == 0
    before = (tmp_path / "r/results.json").read_bytes()
    write_own_data(tmp_path, 1)
    code, _, err = focusfl(*OWN_DATA, "--out", "r", *words)
    assert code == 2 and "error: r:" in err and "changed" in err and "--overwrite" in err
    assert (tmp_path / "r/results.json").read_bytes() == before
    assert focusfl(*OWN_DATA, "--out", "r", "--overwrite")[0] == 0
    assert focusfl(*OWN_DATA, "--out", "r")[0] == 0


def test_other_true_clusters_are_other_data(focusfl, tmp_path):
    write_own_data(tmp_path, 0)
    assert focusfl(*OWN_DATA, "--out", "r")[0] == 0
    (tmp_path / "own/clusters.csv").write_text("agent,cluster\na,0\nb,1\n")
    code, _, err = focusfl(*OWN_DATA, "--out", "r")
    assert code == 2 and "changed" in err


@pytest.mark.parametrize("words", [(), ("--resume",), ("--overwrite",)])
def test_one_process_at_a_time_works_in_a_folder(words, focusfl, tmp_path):
    assert focusfl(*QUICK, "--out", "r")[0] == 0
    before = {path: path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file()}
    with files.lock(tmp_path / "r/.lock"):
        code, out, err = focusfl(*QUICK, "--out", "r", *words)
    assert code == 2 and "r is locked" in err and out == ""
    assert {path: path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file()} == before


def toml(tmp_path, text):
    (tmp_path / "mine.toml").write_text(text)
    return "run", "mine.toml"


GOOD = 'algorithms = ["fedavg"]\nseeds = [0]\nrounds = 2\n[data]\nname = "synthetic"\n'


def test_run_reads_a_file_and_applies_changes(focusfl, tmp_path):
    code, _, _ = focusfl(*toml(tmp_path, GOOD), "--set", "seeds=[4]", "--set", "data.E=4", "--out", "r")
    rows = json.loads((tmp_path / "r/results.json").read_text())
    assert code == 0 and [r["seed"] for r in rows] == [4] and len(rows[0]["loss"]) == 4


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--algorithms", "fedavgg"], "did you mean 'fedavg'"),
        (["--data", "syntetic"], "did you mean 'synthetic'"),
        (["--algorithms", ""], "algorithms"),
        (["--seeds", "a"], "--seeds a"),
        (["--seeds", "-1"], "seeds"),
        (["--seeds", ""], "seeds"),
        (["--rounds", "0"], "rounds = 0"),
        (["--engine", "gpu"], "engine = 'gpu'"),
        (["--set", "focus.M=0"], "focus.M = 0"),
        (["--set", "focus.M=two"], "focus.M = 'two'"),
        (["--set", "focus.m=2"], "'focus.m': did you mean 'M'"),
        (["--set", "train.lr=-0.1"], "lr = -0.1"),
        (["--set", "train.lr=nan"], "lr = nan"),
        (["--set", "train.learning=1"], "'train.learning'"),
        (["--set", "data.E=1"], "data.E = 1"),
        (["--set", "data.E=0"], "data.E = 0"),
        (["--set", "data.n=0"], "data.n = 0"),
        (["--set", "nonsense"], "key=value"),
        (["--set", "rounds=3\nfoo=4"], "key=value"),
        (["--set", "bayes=true"], "bayes"),
        (["--set", "data.seed=-1"], "data.seed"),
        (["--set", "data.sigma=nan"], "data.sigma"),
        (["--seeds", "0,0"], "seeds = [0, 0]"),
        (["--algorithms", "focus,focus"], "algorithms = ['focus', 'focus']"),
        (["--rounds", "abc"], "--rounds"),
        (["--bogus"], "--bogus"),
        (["--data", "rotated-digits", "--set", "bayes=exact"], "bayes = 'exact'"),
        (["--set", "device=cuda"], "device = 'cuda'"),
        (["--set", "fraction=0"], "fraction = 0"),
        (["--set", "focus=3"], "focus = 3"),
        (["--set", "timeout=0"], "timeout = 0"),
        (["--set", "rouns=3"], "did you mean 'rounds'"),
    ],
)
def test_bad_input_gets_one_line_and_nothing_is_written(words, expected, focusfl, tmp_path):
    code, out, err = focusfl(*QUICK, *words, "--out", "r")
    assert code == 2 and expected in err and out == ""
    assert len(err.strip().splitlines()) == 1 and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD + "n_tests = 5\n", "'data.n_tests': did you mean 'n_test'"),
        ("algoritms = ['focus']\n" + GOOD, "'algoritms': did you mean 'algorithms'"),
        ("algorithms = [", "TOML"),
        ("algorithms = ['focus']", "data is missing"),
        (GOOD + "[focus]\nM = 0\n", "focus.M = 0"),
        (GOOD + "[train]\nlr = 'fast'\n", "train.lr = 'fast'"),
    ],
)
def test_bad_toml_names_the_file_and_the_key(text, expected, focusfl, tmp_path):
    code, _, err = focusfl(*toml(tmp_path, text), "--out", "r")
    assert code == 2 and "mine.toml: " in err and expected in err and len(err.strip().splitlines()) == 1
    assert not (tmp_path / "r").exists()


def test_missing_and_unwritable_places(focusfl, tmp_path):
    code, _, err = focusfl("run", "nowhere.toml")
    assert code == 2 and "nowhere.toml" in err
    code, _, err = focusfl("run", "demoo")
    assert code == 2 and "did you mean 'demo'" in err
    (tmp_path / "taken").write_text("a file")
    for place in ("taken", "taken/below", "/proc/focusfl"):
        code, _, err = focusfl(*QUICK, "--out", place)
        assert code == 2 and place in err and len(err.strip().splitlines()) == 1
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/results.json").write_text("[]")
    code, _, err = focusfl(*QUICK, "--out", "foreign")
    assert code == 2 and "foreign" in err and "results.json" in err


def test_more_clusters_than_agents_gets_a_note(focusfl):
    code, _, err = focusfl(*QUICK, "--set", "focus.M=12", "--out", "r")
    assert code == 0 and "note: " in err and "M = 12" in err and "10 agents" in err


def test_a_damaged_checkpoint_is_named(focusfl, tmp_path):
    assert focusfl(*QUICK, "--out", "r")[0] == 0
    (tmp_path / "r/runs/focus-seed0/result.json").unlink()
    code, _, err = focusfl(*QUICK, "--out", "r")
    assert code == 2 and "unfinished" in err and "--resume" in err
    path = tmp_path / "r/runs/focus-seed0" / checkpoint.NAME
    path.write_bytes(path.read_bytes()[:60])
    code, _, err = focusfl(*QUICK, "--out", "r", "--resume")
    assert code == 2 and str(path.relative_to(tmp_path)) in err and len(err.strip().splitlines()) == 1


def test_results_json_is_written_again_and_an_invalid_result_refused(focusfl, tmp_path):
    assert focusfl(*QUICK, "--out", "r")[0] == 0
    whole = (tmp_path / "r/results.json").read_bytes()
    (tmp_path / "r/results.json").unlink()
    assert focusfl(*QUICK, "--out", "r", "--resume")[0] == 0
    assert (tmp_path / "r/results.json").read_bytes() == whole
    (tmp_path / "r/runs/focus-seed0/result.json").write_text("{}")
    code, _, err = focusfl(*QUICK, "--out", "r", "--resume")
    assert code == 2 and "r/runs/focus-seed0/result.json" in err


def test_divergence_is_exit_code_1(focusfl):
    code, _, err = focusfl(*QUICK, "--set", "train.lr=1e9", "--rounds", "20", "--out", "r")
    assert code == 1 and "diverged" in err and "Traceback" not in err


def test_a_full_disk_keeps_what_was_written(focusfl, tmp_path, monkeypatch):
    assert focusfl(*QUICK, "--seeds", "0", "--out", "r")[0] == 0
    (tmp_path / "r/runs/fedavg-seed0/result.json").unlink()
    finished = (tmp_path / "r/runs/focus-seed0/result.json").read_bytes()
    write = files.write

    def full(path, fill):
        if path.name == "result.json":
            raise OSError(28, "No space left on device")
        write(path, fill)

    monkeypatch.setattr(files, "write", full)
    code, _, err = focusfl(*QUICK, "--seeds", "0", "--out", "r", "--resume")
    assert code == 1 and "No space left" in err and "--resume" in err
    assert (tmp_path / "r/runs/focus-seed0/result.json").read_bytes() == finished
    monkeypatch.undo()


@pytest.mark.parametrize("what", ["algorithms", "data", "experiments"])
def test_list(what, focusfl):
    code, out, _ = focusfl("list", what)
    assert code == 0
    names = {"algorithms": ["focus", "fedavg", "local"], "data": list(DATA), "experiments": ["demo"]}[what]
    assert all(name in out for name in names)
    assert focusfl("list", "nothing")[0] == 2


def test_help_and_errors_do_not_import_torch():
    heavy = "[name for name in ('torch', 'numpy', 'sklearn', 'pydantic', 'flwr') if name in sys.modules]"
    for words, code, expected in ((["--help"], 0, "compare"), (["compare", "--bogus"], 2, "--bogus")):
        script = f"import sys, atexit; atexit.register(lambda: print('HEAVY', {heavy})); "
        script += f"sys.argv = {['focusfl', *words]}; from focusfl.cli import main; main()"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
        assert done.returncode == code and expected in done.stdout + done.stderr and "HEAVY []" in done.stdout


def test_defaults_are_readable_in_help(focusfl):
    code, out, _ = focusfl("reproduce", "--help")
    assert code == 0 and "[default: results]" in " ".join(out.split()) and "\\" not in out


# --- a real process, killed and interrupted

LONG = [
    *FOCUSFL,
    "compare",
    "--data",
    "synthetic",
    "--seeds",
    "0",
    "--rounds",
    "150",
    "--set",
    "checkpoint_every=4",
]


def wait_for_round(folder, t, process):
    path = folder / "runs/focus-seed0/history.jsonl"
    for _ in range(3000):
        if path.exists() and path.read_text().count("\n") >= t:
            return
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    raise AssertionError("the run never got there")


def start(folder, *extra):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        [*LONG, "--out", str(folder), *extra], env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes
    )


def without_seconds(folder):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in files.read_json(folder / "results.json")]


@pytest.fixture(scope="module")
def never_killed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "r"
    process = start(folder)
    assert process.communicate(timeout=300) and process.returncode == 0
    return folder


def same_bits(a, b):
    assert without_seconds(a) == without_seconds(b)
    for cell in ("focus-seed0", "fedavg-seed0"):
        path = f"runs/{cell}/{checkpoint.NAME}"
        assert (a / path).read_bytes() == (b / path).read_bytes()


@pytest.mark.slow
def test_killed_in_a_random_round_and_resumed_gives_the_same_bits(never_killed, tmp_path):
    folder = tmp_path / "r"
    process = start(folder)
    wait_for_round(folder, int.from_bytes(os.urandom(2), "big") % 90 + 1, process)
    process.send_signal(signal.SIGKILL)
    assert process.wait(timeout=30) == -signal.SIGKILL
    process.communicate()
    assert not (folder / "runs/focus-seed0/result.json").exists()
    process = start(folder, "--resume")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    same_bits(never_killed, folder)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_finishes_the_round_and_says_how_to_resume(number, never_killed, tmp_path):
    folder = tmp_path / "r"
    process = start(folder)
    wait_for_round(folder, 5, process)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "--resume" in err and "Traceback" not in err
    command = err.strip().splitlines()[-1].split("focusfl ")[1].split()
    resumed = subprocess.run([*FOCUSFL, *command], capture_output=True, text=True, timeout=300)
    assert resumed.returncode == 0, resumed.stderr
    same_bits(never_killed, folder)


def test_all_runs_every_method_and_reports_those_that_cannot(focusfl, tmp_path):
    code, out, _ = focusfl(
        "compare", "--data", "synthetic", "--rounds", 2, "--seeds", 0, "--algorithms", "all", "--out", "r"
    )
    assert code == 0
    rows = json.loads((tmp_path / "r/results.json").read_text())
    ran, left_out = {row["method"] for row in rows}, json.loads((tmp_path / "r/left-out.json").read_text())
    assert ran | left_out.keys() == set(ALGORITHMS) and left_out.keys() == {"pfnm", "fedma"}
    assert "fully connected" in left_out["pfnm"] and "PFNM" in out
    code, out, _ = focusfl(
        "compare", "--data", "synthetic", "--rounds", 2, "--seeds", 0, "--algorithms", "all", "--out", "r"
    )
    assert code == 0 and "PFNM" in out  # shown again, nothing run
    code, _, err = focusfl(*QUICK, "--algorithms", "fedavg,pfnm", "--out", "other")
    assert code == 2 and "fully connected" in err and not (tmp_path / "other").exists()


def test_options_after_a_name_give_variants_of_a_method(focusfl, tmp_path):
    words = (*QUICK, "--algorithms", "qffl:q=0.1,qffl:q=10,fedavg", "--set", "qffl.q=3", "--out", "r")
    code, out, _ = focusfl(*words)
    assert code == 0 and "q-FFL q=0.1" in out and "q-FFL q=10" in out
    rows = json.loads((tmp_path / "r/results.json").read_text())
    assert [(r["method"], r["params"].get("q")) for r in rows[:3]] == [
        ("qffl:q=0.1", 0.1),
        ("qffl:q=10", 10.0),
        ("fedavg", None),
    ]
    for wrong, hint in (
        ("qffl:p=1", "qffl.p"),
        ("qffl:q=x", "qffl.q"),
        ("qffl:q", "key=value"),
        ("all,fedavg", "all"),
    ):
        code, _, err = focusfl(*QUICK, "--algorithms", wrong, "--out", "other")
        assert code == 2 and hint in err and len(err.splitlines()) == 1


@pytest.mark.slow
def test_with_all_a_method_that_diverges_is_left_out_and_the_others_continue(focusfl, tmp_path):
    words = (
        "--data",
        "synthetic",
        "--rounds",
        3,
        "--seeds",
        "0,1",
        "--algorithms",
        "all",
        "--set",
        "ditto.lam=1e30",
    )
    code, out, _ = focusfl("compare", *words, "--out", "r")
    assert code == 0 and "Ditto" in out and "diverged" in out
    assert "seed 0" in json.loads((tmp_path / "r/left-out.json").read_text())["ditto"]
    rows = json.loads((tmp_path / "r/results.json").read_text())
    assert {r["method"] for r in rows} == set(ALGORITHMS) - {"pfnm", "fedma", "ditto"}
    code, _, err = focusfl("compare", *words, "--out", "r")
    assert code == 0 and "already" in err
    code, _, err = focusfl(*QUICK, "--algorithms", "ditto", "--set", "ditto.lam=1e30", "--out", "other")
    assert code == 1 and "diverged" in err


@pytest.mark.slow
def test_a_method_that_diverges_with_a_later_seed_has_no_row(focusfl, tmp_path, monkeypatch):
    """Local, the last method, diverges with the second seed: the row of its first seed is removed too."""
    real = ALGORITHMS["local"].local

    def local(self, server, state, agent):
        state, upload = real(self, server, state, agent)
        bad = torch.nan if agent.seed == 1 else 1.0
        return {"w": {k: v * bad for k, v in state["w"].items()}}, upload

    monkeypatch.setattr(ALGORITHMS["local"], "local", local)
    words = ("--data", "synthetic", "--rounds", 2, "--seeds", "0,1", "--algorithms", "all", "--engine", "serial")
    code, out, _ = focusfl("compare", *words, "--out", "r")
    assert code == 0 and "Local" in out
    rows = json.loads((tmp_path / "r/results.json").read_text())
    assert "local" not in {row["method"] for row in rows}
    assert "seed 1" in json.loads((tmp_path / "r/left-out.json").read_text())["local"]


def test_if_every_method_diverges_that_is_the_error(focusfl):
    words = ("--data", "synthetic", "--rounds", 3, "--seeds", 0, "--algorithms", "all", "--set", "train.lr=1e30")
    for _ in range(2):  # also when the command is repeated
        code, _, err = focusfl("compare", *words, "--out", "r")
        assert code == 1 and "every method failed" in err


def test_options_of_a_method_that_does_not_run_are_noted(focusfl):
    code, _, err = focusfl(*QUICK, "--algorithms", "fedavg", "--set", "qffl.q=3", "--out", "r")
    assert code == 0 and "note: " in err and "qffl" in err


def test_a_list_after_a_name_keeps_its_commas(focusfl, tmp_path):
    algorithms = "hardcluster:M=2:clusters=[0, 0, 0, 0, 0, 1, 1, 1, 1, 1],fedavg"
    assert focusfl(*QUICK, "--algorithms", algorithms, "--out", "r")[0] == 0
    rows = json.loads((tmp_path / "r/results.json").read_text())
    assert [row["algorithm"] for row in rows[:2]] == ["hardcluster", "fedavg"]
    assert rows[0]["clusters"] == [0] * 5 + [1] * 5


def test_hard_cluster_resumes_with_the_clusters_of_a_killed_run(focusfl, tmp_path):
    words = ("--data", "synthetic", "--rounds", 12, "--seeds", 0, "--algorithms", "hardcluster")
    assert focusfl("compare", *words, "--out", "whole")[0] == 0
    assert focusfl("compare", *words, "--out", "cut")[0] == 0
    folder = tmp_path / "cut/runs/hardcluster-seed0"
    trained = (folder / "first" / checkpoint.NAME).stat().st_mtime_ns
    for name in ("result.json", checkpoint.NAME, "history.jsonl"):
        (folder / name).unlink()
    assert focusfl("compare", *words, "--out", "cut", "--resume")[0] == 0
    one, other = (json.loads((tmp_path / d / "results.json").read_text())[0] for d in ("whole", "cut"))
    assert one["loss"] == other["loss"] and one["params"] == other["params"]
    assert (folder / "first" / checkpoint.NAME).stat().st_mtime_ns == trained  # FOCUS was not run again


def test_report_writes_markdown(focusfl, tmp_path):
    assert focusfl(*QUICK, "--algorithms", "focus,afl", "--out", "r")[0] == 0
    code, out, _ = focusfl("report", "r")
    assert code == 0 and out.strip() == "r/report.html" and "<table" in (tmp_path / "r/report.html").read_text()
    page = (tmp_path / "r/report.md").read_text()
    rows = json.loads((tmp_path / "r/results.json").read_text())
    mean = sum(r["faa"] for r in rows if r["algorithm"] == "afl") / 2
    line = next(line for line in page.splitlines() if line.startswith("| AFL | 0"))
    assert f"{mean:.4f} ±" in line.split("|")[3]
    assert "| AFL | of each agent: loss (a number); sums: theta, lam; keeps of each agent: lam |" in page
    code, _, err = focusfl("report", "nowhere")
    assert code == 2 and "results.json" in err


def test_report_shows_a_data_path_that_is_not_utf8(focusfl, tmp_path):
    assert focusfl(*QUICK, "--out", "r")[0] == 0
    experiment = files.read_json(tmp_path / "r/experiment.json")
    experiment["data"]["path"] = os.fsdecode(b"h\xf4pitaux")
    files.write_json(tmp_path / "r/experiment.json", experiment)
    assert focusfl("report", "r")[0] == 0
    assert r"h\xf4pitaux" in (tmp_path / "r/report.html").read_text()


def test_report_writes_nothing_but_its_page_and_report_md(focusfl, tmp_path):
    assert focusfl(*QUICK, "--out", "r")[0] == 0
    for name in ("README.md", "notes.md"):
        (tmp_path / name).write_text("mine")
    assert focusfl("report", "r", "--out", "README.html")[0] == 0
    assert "<table" in (tmp_path / "README.html").read_text()
    assert "| FOCUS |" in (tmp_path / "r/report.md").read_text()
    code, _, err = focusfl("report", "r", "--out", "notes.md")
    assert code == 2 and "--out notes.md" in err and ".html" in err
    assert all((tmp_path / name).read_text() == "mine" for name in ("README.md", "notes.md"))


def test_list_algorithms_says_what_the_server_sees(focusfl):
    code, out, _ = focusfl("list", "algorithms")
    assert code == 0
    for name, kind in ALGORITHMS.items():
        assert f"{name}  {kind.name}" in out
    entries = {name: out.split(f"{name}  {kind.name}.")[1] for name, kind in ALGORITHMS.items()}
    seen = {name: text.split("the server sees:")[1].split("paper:")[0] for name, text in entries.items()}
    sums_alone = {name for name, text in seen.items() if "of each agent" not in text}
    assert sums_alone == {*("fedavg", "qffl", "ditto", "fedprox", "ifca", "fedem", "fedsoft", "local")}
    assert "keeps of each agent: k" in seen["hardcluster"]

"""The command line, as a user types it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from focusfl import checkpoint, cli, files
from focusfl.data import DATA

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


@pytest.fixture
def focusfl(monkeypatch, capsys, tmp_path):
    """Run in this process, in an empty folder; gives (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["focusfl", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        said = capsys.readouterr()
        return stopped.value.code, said.out, said.err

    return call


QUICK = ("compare", "--data", "synthetic", "--rounds", "3", "--seeds", "0,1")


def test_compare_keeps_its_contract(focusfl, tmp_path):
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


def test_classification_has_accuracies_and_m_from_the_data(focusfl, tmp_path):
    code, _, _ = focusfl("compare", "--rounds", "2", "--seeds", "0", "--algorithms", "focus", "--out", "r")
    row = json.loads((tmp_path / "r/results.json").read_text())[0]
    assert code == 0 and row["data"] == "rotated-digits" and 0 <= row["avg_acc"] <= 1 and row["params"]["M"] == 3


def test_a_finished_folder_is_shown_again_and_another_experiment_refused(focusfl, tmp_path):
    assert focusfl(*QUICK, "--out", "r")[0] == 0
    before = (tmp_path / "r/results.json").read_bytes()
    code, out, err = focusfl(*QUICK, "--out", "r")
    assert code == 0 and "holds this experiment already" in err and "FOCUS" in out
    code, _, err = focusfl(*QUICK, "--out", "r", "--set", "train.lr=0.01")
    assert code == 2 and "another experiment" in err
    assert (tmp_path / "r/results.json").read_bytes() == before
    assert focusfl(*QUICK, "--out", "r", "--set", "train.lr=0.01", "--overwrite")[0] == 0
    assert (tmp_path / "r/results.json").read_bytes() != before


def toml(tmp_path, text):
    (tmp_path / "mine.toml").write_text(text)
    return "run", "mine.toml"


GOOD = 'algorithms = ["fedavg"]\nseeds = [0]\nrounds = 2\n[data]\nname = "synthetic"\n'


def test_run_takes_a_file_and_changes(focusfl, tmp_path):
    code, _, _ = focusfl(*toml(tmp_path, GOOD), "--set", "seeds=[4]", "--set", "data.E=4", "--out", "r")
    rows = json.loads((tmp_path / "r/results.json").read_text())
    assert code == 0 and [r["seed"] for r in rows] == [4] and len(rows[0]["loss"]) == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--algorithms", "fedavgg"], "did you mean 'fedavg'"),
        (["--data", "syntetic"], "did you mean 'synthetic'"),
        (["--algorithms", ""], "algorithms"),
        (["--seeds", "a"], "--seeds a"),
        (["--seeds", "-1"], "seeds"),
        (["--seeds", ""], "seeds"),
        (["--rounds", "0"], "rounds"),
        (["--engine", "gpu"], "engine"),
        (["--set", "focus.M=0"], "focus.M = 0"),
        (["--set", "focus.M=two"], "focus.M = 'two'"),
        (["--set", "focus.m=2"], "unknown key 'focus.m': did you mean 'M'"),
        (["--set", "train.lr=-0.1"], "lr = -0.1"),
        (["--set", "train.lr=nan"], "lr = nan"),
        (["--set", "train.learning=1"], "unknown key 'train.learning'"),
        (["--set", "data.E=1"], "data.E = 1"),
        (["--set", "data.E=0"], "data.E = 0"),
        (["--set", "data.n=0"], "data.n = 0"),
        (["--set", "nonsense"], "expected key=value"),
        (["--set", "rounds=3\nfoo=4"], "expected key=value"),
        (["--set", "bayes=true"], "bayes"),
        (["--set", "data.seed=-1"], "data.seed"),
        (["--set", "data.sigma=nan"], "data.sigma"),
        (["--seeds", "0,0"], "each one once"),
        (["--algorithms", "focus,focus"], "each one once"),
        (["--rounds", "abc"], "--rounds"),
        (["--bogus"], "--bogus"),
        (["--data", "rotated-digits", "--set", "bayes=exact"], "bayes = 'exact'"),
        (["--set", "device=cuda"], "device = 'cuda'"),
        (["--set", "fraction=0"], "fraction"),
        (["--set", "rouns=3"], "did you mean 'rounds'"),
    ],
)
def test_bad_input_gets_one_line_and_nothing_is_written(words, said, focusfl, tmp_path):
    code, out, err = focusfl(*QUICK, *words, "--out", "r")
    assert code == 2 and said in err and out == ""
    assert len(err.strip().splitlines()) == 1 and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD + "n_tests = 5\n", "mine.toml: unknown key 'data.n_tests': did you mean 'n_test'"),
        ("algoritms = ['focus']\n" + GOOD, "mine.toml: unknown key 'algoritms': did you mean 'algorithms'"),
        ("algorithms = [", "mine.toml: not TOML"),
        ("algorithms = ['focus']", "mine.toml: data is missing"),
        (GOOD + "[focus]\nM = 0\n", "mine.toml: focus.M = 0"),
        (GOOD + "[train]\nlr = 'fast'\n", "mine.toml: train.lr = 'fast'"),
    ],
)
def test_bad_toml_names_the_file_and_the_key(text, said, focusfl, tmp_path):
    code, _, err = focusfl(*toml(tmp_path, text), "--out", "r")
    assert code == 2 and said in err and len(err.strip().splitlines()) == 1
    assert not (tmp_path / "r").exists()


def test_missing_and_unwritable_places(focusfl, tmp_path):
    code, _, err = focusfl("run", "nowhere.toml")
    assert code == 2 and "nowhere.toml: no such file" in err
    code, _, err = focusfl("run", "demoo")
    assert code == 2 and "did you mean 'demo'" in err
    (tmp_path / "taken").write_text("a file")
    for place in ("taken", "taken/below", "/proc/focusfl"):
        code, _, err = focusfl(*QUICK, "--out", place)
        assert code == 2 and place in err and len(err.strip().splitlines()) == 1
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/results.json").write_text("[]")
    code, _, err = focusfl(*QUICK, "--out", "foreign")
    assert code == 2 and "something else" in err


def test_more_clusters_than_agents_gets_a_note(focusfl):
    code, _, err = focusfl(*QUICK, "--set", "focus.M=12", "--out", "r")
    assert code == 0 and "note: M = 12 clusters for 10 agents" in err


def test_a_damaged_checkpoint_is_named(focusfl, tmp_path):
    assert focusfl(*QUICK, "--out", "r")[0] == 0
    (tmp_path / "r/runs/focus-seed0/result.json").unlink()
    code, _, err = focusfl(*QUICK, "--out", "r")
    assert code == 2 and "unfinished: --resume" in err
    path = tmp_path / "r/runs/focus-seed0" / checkpoint.NAME
    path.write_bytes(path.read_bytes()[:60])
    code, _, err = focusfl(*QUICK, "--out", "r", "--resume")
    assert code == 2 and str(path.relative_to(tmp_path)) in err and len(err.strip().splitlines()) == 1


def test_results_json_is_made_again_and_a_strange_result_refused(focusfl, tmp_path):
    assert focusfl(*QUICK, "--out", "r")[0] == 0
    whole = (tmp_path / "r/results.json").read_bytes()
    (tmp_path / "r/results.json").unlink()
    assert focusfl(*QUICK, "--out", "r", "--resume")[0] == 0
    assert (tmp_path / "r/results.json").read_bytes() == whole
    (tmp_path / "r/runs/focus-seed0/result.json").write_text("{}")
    code, _, err = focusfl(*QUICK, "--out", "r", "--resume")
    assert code == 2 and "not the result of a run" in err


def test_divergence_is_exit_code_1(focusfl):
    code, _, err = focusfl(*QUICK, "--set", "train.lr=1e9", "--rounds", "20", "--out", "r")
    assert code == 1 and "diverged" in err and "Traceback" not in err


def test_a_full_disk_keeps_what_was_written(focusfl, tmp_path, monkeypatch):
    assert focusfl(*QUICK, "--seeds", "0", "--out", "r")[0] == 0
    (tmp_path / "r/runs/fedavg-seed0/result.json").unlink()
    kept = (tmp_path / "r/runs/focus-seed0/result.json").read_bytes()
    write = files.write

    def full(path, fill):
        if path.name == "result.json":
            raise OSError(28, "No space left on device")
        write(path, fill)

    monkeypatch.setattr(files, "write", full)
    code, _, err = focusfl(*QUICK, "--seeds", "0", "--out", "r", "--resume")
    assert code == 1 and "No space left" in err and "--resume" in err
    assert (tmp_path / "r/runs/focus-seed0/result.json").read_bytes() == kept
    monkeypatch.undo()


@pytest.mark.parametrize("what", ["algorithms", "data", "experiments"])
def test_list(what, focusfl):
    code, out, _ = focusfl("list", what)
    assert code == 0
    names = {"algorithms": ["focus", "fedavg", "local"], "data": list(DATA), "experiments": ["demo"]}[what]
    assert all(name in out for name in names)
    assert focusfl("list", "nothing")[0] == 2


def test_help_and_errors_do_not_import_torch():
    code = "import sys; sys.argv = ['focusfl', '--help']; from focusfl.cli import app; "
    code += "app(standalone_mode=False); assert 'torch' not in sys.modules and 'sklearn' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "compare" in done.stdout


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_finishes_the_round_and_says_how_to_go_on(number, never_killed, tmp_path):
    folder = tmp_path / "r"
    process = start(folder)
    wait_for_round(folder, 5, process)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "--resume" in err and "Traceback" not in err
    command = err.strip().splitlines()[-1].split("To go on: focusfl ")[1].split()
    resumed = subprocess.run([*FOCUSFL, *command], capture_output=True, text=True, timeout=300)
    assert resumed.returncode == 0, resumed.stderr
    same_bits(never_killed, folder)

"""Code of the user's own: what is found where, what is said if it is not, and what is never imported."""

import subprocess
import sys

import pytest

from focusfl.util import plugins
from focusfl.util.errors import InputError


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def install(folder, name, entry_points):
    """Put a package's metadata into a folder, as pip does."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


def test_modules_and_packages_of_the_current_folder_and_their_neighbours_are_found(here):
    (here / "neighbour_of_own.py").write_text("VALUE = 7\n")
    (here / "own_package").mkdir()
    (here / "own_package" / "part.py").write_text("from neighbour_of_own import VALUE\n")
    assert plugins.load_object("own_package.part:VALUE") == 7
    assert str(here) not in sys.path


@pytest.mark.parametrize(
    ("text", "content", "words"),
    [
        ("absent_module:Name", None, ["no module 'absent_module'"]),
        ("absent_module.part:Name", None, ["no module 'absent_module'"]),
        ("broken_a:Name", "Nam = 1\n", ["broken_a.py", "no 'Name'", "'Nam'"]),
        ("broken_b:Name", "\n\nraise ValueError('why')\n", ["broken_b.py, line 3", "ValueError: why"]),
        ("broken_c:Name", "\nx = (\n", ["broken_c.py, line 2", "SyntaxError"]),
        ("broken_d:Name", "import absent_module\n", ["broken_d.py, line 1", "absent_module"]),
        ("broken_e:Name", "import sys\nsys.exit(3)\n", ["broken_e.py, line 2", "SystemExit"]),
        ("broken_f", "", ["module:name"]),
        ("../broken_f:Name", "", ["module:name"]),
    ],
)
def test_what_cannot_be_loaded_is_one_sentence_that_names_the_place(here, text, content, words):
    if content is not None and text.isidentifier() is False and "/" not in text:
        (here / f"{text.partition(':')[0]}.py").write_text(content)
    with pytest.raises(InputError) as error:
        plugins.load_object(text)
    assert all(word in str(error.value) for word in [text, *words])


def test_entry_points_are_listed_without_loading_and_loaded_by_name(here, monkeypatch):
    site = here / "site"
    site.mkdir()
    (site / "plugin_module.py").write_text("def gap(p, y):\n    return 0.5\n")
    install(site, "plugin", "[focusfl.metrics]\ngap = plugin_module:gap\nbad = plugin_module:none\n")
    monkeypatch.syspath_prepend(str(site))
    assert plugins.entry_points("focusfl.metrics") == ["bad", "gap"]
    assert plugins.entry_points("focusfl.data") == []
    assert "plugin_module" not in sys.modules
    (here / "plugin_module.py").write_text("raise ValueError('not the installed one')\n")
    assert plugins.entry_point("focusfl.metrics", "gap")(None, None) == 0.5
    with pytest.raises(InputError, match=r"did you mean 'gap'"):
        plugins.entry_point("focusfl.metrics", "gab")
    with pytest.raises(InputError, match=r"bad, an entry point .* no 'none'"):
        plugins.entry_point("focusfl.metrics", "bad")


def test_two_packages_with_an_entry_point_of_one_name_are_refused(here, monkeypatch):
    for name in ("first", "second"):
        (here / name).mkdir()
        install(here / name, name, f"[focusfl.data]\nsame = {name}_module:make\n")
        monkeypatch.syspath_prepend(str(here / name))
    with pytest.raises(InputError, match="several"):
        plugins.entry_point("focusfl.data", "same")


def test_nothing_is_imported_unless_it_is_named(here):
    """A comparison of other methods loads neither the current folder's modules nor installed entry points."""
    (here / "plugin_module.py").write_text("raise ValueError('loaded')\n")
    (here / "typing_extensions.py").write_text("raise ValueError('loaded')\n")  # a name that others import
    groups = ("algorithms", "data", "metrics")
    install(here, "plugin", "".join(f"[focusfl.{group}]\nx = plugin_module:X\n" for group in groups))
    code = (
        f"import sys; sys.path.append({str(here)!r})\n"  # as an installed package would be
        "from focusfl.cli.app import app\n"
        "app(['list', 'algorithms'], standalone_mode=False)\n"
        "app('compare --data synthetic --algorithms fedavg --seeds 0 --rounds 1'.split(), standalone_mode=False)\n"
        "app(['report', next(iter(__import__('glob').glob('runs/*')))], standalone_mode=False)\n"
        "assert 'plugin_module' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "x  From an installed package" in done.stdout

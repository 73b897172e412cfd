"""Data frames of agents: columns and rows are matched by name, and columns that are no numbers are named."""

from datetime import date

import numpy as np
import pytest

import focusfl as ff
from focusfl.util.errors import InputError

make = ff.Federation.from_agents


class Frame:
    """A data frame as pandas has it, as far as it matters here; its cells are read-only, too."""

    def __init__(self, index=None, **columns):
        self.columns = list(columns)
        self.cells = {name: np.asarray(cells) for name, cells in columns.items()}
        self.index = range(len(self)) if index is None else index

    def __len__(self):
        return len(next(iter(self.cells.values())))

    def __getitem__(self, name):
        return self.cells[name]

    def __array__(self, dtype=None, copy=None):
        return np.array([*self.cells.values()], dtype).T


class Series:
    """A column of a data frame with the names of its rows."""

    def __init__(self, cells, index):
        self.cells, self.index = np.asarray(cells), index
        self.cells.flags.writeable = False

    def __len__(self):
        return len(self.cells)

    def __array__(self, dtype=None, copy=None):
        return self.cells


def frame(order="ab", index=None, **more):
    cells = {"a": [1.0, 2.0], "b": [3, 4]} | more
    return Frame(index, **{name: cells[name] for name in [*order, *more]})


def test_columns_are_matched_by_name():
    pairs = [(frame(), [0, 1]), (frame("ba"), [0, 1])]
    fed = make(pairs, test=pairs[::-1], validation=[pairs[1], pairs[1]])
    for rows in (fed.training, fed.testing, fed.validation):
        assert rows.x.tolist() == [[1, 3], [2, 4]] * 2
    several = make([(frame(), Frame(p=[0, 1], q=[1, 1])), (frame(), Frame(q=[1, 1], p=[0, 1]))], test=0.5)
    assert several.classes == 2 and not several.all_rows.y[:, 1].eq(0).any()


@pytest.mark.parametrize("kind", ["training", "test", "validation"])
def test_other_columns_are_refused_by_name(kind):
    good, bad = (frame(), [0, 1]), (Frame(a=[1.0, 2.0], c=[3.0, 4.0]), [0, 1])
    given = {"agents": [good, good], "test": [good, good], "validation": [good, good]}
    given["agents" if kind == "training" else kind] = [good, bad]
    with pytest.raises(InputError, match=r"agent 1.*lacks b.*only it has c"):
        make(given.pop("agents"), **given)


def test_two_columns_of_one_name_are_refused():
    twice = frame()
    twice.columns = ["a", "a"]
    with pytest.raises(InputError, match=r"agent 0, x.*same name"):
        make([(twice, [0, 1]), (frame(), [0, 1])])


def test_labels_are_matched_by_the_names_of_rows():
    other = (frame(index=["r", "s"]), Series([0, 1], ["s", "r"]))
    fed = make([(frame(), [0, 1]), other], test=[(frame(), [0, 1]), other])
    assert fed.train(1).y.tolist() == fed.test(1).y.tolist() == [1, 0]
    for index in (["r", "t"], ["r", "r"]):
        with pytest.raises(InputError, match=r"agent 1.*index of y.*to_numpy"):
            make([(frame(), [0, 1]), (frame(index=["r", "s"]), Series([0, 1], index))])
    same = (frame(index=["r", "r"]), Series([0, 1], ["r", "r"]))
    assert make([same, same], test=0.5).E == 2


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        (["m", "w"], "text, such as 'm'"),
        (np.array(["m", 1.0], dtype=object), "text, such as 'm'"),
        (np.array(["2024-01-01", "2024-01-02"], dtype="datetime64[D]"), "dates"),
        (np.array([1, date(2024, 1, 2)], dtype=object), "2024-01-02"),
    ],
)
def test_columns_that_are_no_numbers_are_named(cells, found):
    for pairs in ([(frame(sex=cells), [0, 1])] * 2, [(frame(sex=[0, 1]), [0, 1]), (frame(sex=cells), [0, 1])]):
        with pytest.raises(InputError, match=r"agent \d, x, column 'sex'") as refused:
            make(pairs)
        assert found in str(refused.value) and "focusfl.data.folder" in str(refused.value)


def test_text_and_dates_in_arrays_are_named_too():
    words = np.array([[1.0, "m"], [2.0, "w"]], dtype=object)
    dates = np.array([["2024-01-01"]] * 2, dtype="datetime64[D]")
    for x, found in ((words, "column 1.*'m'"), (dates, "dates")):
        with pytest.raises(InputError, match=f"agent 0, x.*{found}.*focusfl.data.folder"):
            make([(x, [0, 1])] * 2)
    truth = frame(sex=np.array([True, False], dtype=object))
    assert make([(truth, [0, 1])] * 2, test=0.5).training.x.shape == (2, 3)

"""Files that are no data: each is refused by name, at once, before it is unpacked or waited for."""

import io
import os
import signal
import socket
import zipfile

import numpy as np
import pytest
from PIL import Image

from focusfl.data.own.folder import folder
from focusfl.data.own.node import read_own_data
from focusfl.util.errors import InputError

GOOD = "a,b,label\n1,2,0\n3,4,1\n"


@pytest.fixture(autouse=True)
def no_hang():
    """Reading a pipe waits for a writer: a test that waits fails."""

    def stop(*_):
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def place(tmp_path):
    """A folder with one good agent."""
    (tmp_path / "a.csv").write_text(GOOD)
    return tmp_path


def refused(place, message, **options):
    with pytest.raises(InputError, match=message) as caught:
        folder(place, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", ["csv", "npz", "parquet"])
def test_a_pipe_a_socket_and_a_folder_are_not_waited_for(place, suffix, monkeypatch):
    path = place / f"b.{suffix}"
    os.mkfifo(path)
    refused(place, rf"b\.{suffix}.*regular")
    path.unlink()
    monkeypatch.chdir(place)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path.name)
        refused(place, rf"b\.{suffix}.*regular")
    path.unlink()
    path.mkdir()
    refused(place, rf"b\.{suffix}|b:")


def test_pipes_elsewhere_in_the_folder_are_not_waited_for(place):
    (place / "b.csv").write_text(GOOD)
    os.mkfifo(place / "clusters.csv")
    refused(place, r"clusters\.csv.*regular")
    (place / "clusters.csv").unlink()
    (place / "c").mkdir()
    os.mkfifo(place / "c" / "data.csv")
    refused(place, r"c.*data\.csv")


def test_a_node_does_not_wait_for_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "mine.csv")
    with pytest.raises(InputError, match=r"mine\.csv.*regular"):
        read_own_data(tmp_path / "mine.csv")


def test_links_in_a_circle_and_to_nothing_are_refused(place):
    (place / "b.csv").symlink_to(place / "c.csv")
    refused(place, r"b\.csv.*nowhere")
    (place / "c.csv").symlink_to(place / "b.csv")
    refused(place, r"b\.csv.*nowhere")


def test_a_home_of_nobody_is_refused():
    refused("~nobody-of-this-name/x", "nobody-of-this-name.*data.path")


# --- archives


def npz(path, header=None, size=160, **arrays):
    """An npz file with arrays of zeros; `header` replaces what x says of itself, `size` is the bytes it has."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("x", "y"):
            head = io.BytesIO()
            says = {"descr": "<f8", "fortran_order": False, "shape": (10, 2) if name == "x" else (20,)}
            np.lib.format.write_array_header_1_0(head, says | ((header or {}) if name == "x" else {}))
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                member.write(head.getvalue())
                for begin in range(0, size, 10**7):
                    member.write(bytes(min(10**7, size - begin)))


def test_an_array_that_claims_more_than_there_is_allocates_nothing(place):
    npz(place / "b.npz", {"shape": (10**12, 2)})
    refused(place, r"b\.npz.*10{12}.*160")
    npz(place / "b.npz", {"shape": (2**62, 2**62)})
    refused(place, r"b\.npz")
    npz(place / "b.npz", {"shape": (-10, -2)})
    refused(place, r"b\.npz")


def test_a_small_file_that_unpacks_to_much_is_refused_before_it_is_unpacked(place, monkeypatch):
    npz(place / "b.npz", {"shape": (5_000_000, 2)}, size=80_000_000)
    assert (place / "b.npz").stat().st_size < 2e5
    monkeypatch.setattr(zipfile.ZipFile, "open", None)
    refused(place, r"b\.npz.*160 MB.*100.*data\.max_mb", max_mb=100)  # x and y


def test_the_limit_of_unpacking_is_an_option(tmp_path):
    for name in "ab":
        np.savez_compressed(tmp_path / f"{name}.npz", x=np.zeros((50_000, 3)), y=np.arange(50_000) % 2)
    refused(tmp_path, r"a\.npz.*data\.max_mb", max_mb=1)
    assert folder(tmp_path, max_mb=2).E == 2
    refused(tmp_path, r"data\.max_mb", max_mb=0)
    with pytest.raises(InputError, match="max_mb"):
        read_own_data(tmp_path / "a.npz", max_mb=1)


def test_a_parquet_file_of_one_value_repeated_is_measured_before_it_is_read(tmp_path):
    import pyarrow
    import pyarrow.parquet

    for name in "ab":
        table = pyarrow.table({"x": np.zeros(200_000), "label": np.zeros(200_000, dtype=int)})
        pyarrow.parquet.write_table(table, tmp_path / f"{name}.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 1e5
    refused(tmp_path, r"a\.parquet.*data\.max_mb", max_mb=3)
    assert folder(tmp_path, max_mb=4).E == 2


def test_a_flipped_bit_in_an_image_or_an_archive_is_noticed(tmp_path):
    for agent in "ab":
        for label in "xy":
            (tmp_path / agent / label).mkdir(parents=True)
            Image.fromarray(np.arange(64, dtype="uint8").reshape(8, 8)).save(tmp_path / agent / label / "1.png")
    path = tmp_path / "a" / "x" / "1.png"
    assert folder(tmp_path).E == 2
    sound = path.read_bytes()
    for bit in range(8 * 8, 8 * len(sound)):
        raw = bytearray(sound)
        raw[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(raw))
        try:
            read = folder(tmp_path)
        except InputError as error:
            assert "1.png" in str(error)
        else:
            path.write_bytes(sound)
            assert read.fingerprint == folder(tmp_path).fingerprint


# --- text


def test_text_in_another_encoding_is_refused(place):
    for encoding in ("utf-16-le", "utf-32", "utf-32-le"):
        (place / "b.csv").write_bytes(GOOD.encode(encoding))
        refused(place, r"b\.csv")
    (place / "b.csv").write_text("a,b,label\n1,2,ill\0\n3,4,well\n")
    refused(place, r"b\.csv, row 2.*NUL")


def test_names_with_escape_codes_are_read_and_are_shown_without(place):
    (place / "b\x1b]0;title\x07.csv").write_text(GOOD)
    (place / "c\n\u202ed.csv").write_text(GOOD)
    agents = folder(place).agents
    assert agents == ("a", "b\\x1b]0;title\\x07", "c\\n\\u202ed")
    lines = "".join(f"{name},{i}\n" for i, name in enumerate(agents))
    (place / "clusters.csv").write_text(f"agent,cluster\n{lines}")
    assert folder(place).clusters.tolist() == [0, 1, 2]

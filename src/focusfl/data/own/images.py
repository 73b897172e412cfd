"""Read one folder of images, with one sub-folder per class."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from focusfl.data.own.contents import FileContents, describe_shape, optional_package
from focusfl.data.own.entries import SUFFIXES, visible_entries
from focusfl.util.errors import InputError
from focusfl.util.files import visible

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")
# Pillow's name for what the pixels hold -> what they are converted to.
PIXEL_MODES = {"1": "L", "L": "L", "LA": "L", "RGB": "RGB", "RGBA": "RGB", "P": "RGB", "CMYK": "RGB"}


def read_images(folder: Path, root: Path) -> FileContents:
    """Read a folder with one sub-folder of images per class: x is [n, C, H, W] in 0..1."""
    files, x = _image_files(folder, root), []
    Image = optional_package("PIL.Image", folder, "images")
    for file in files:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # remarks of Pillow on metadata ...
                warnings.simplefilter("error", Image.DecompressionBombWarning)  # ... but not on a huge image
                with Image.open(file, formats=("PNG", "JPEG")) as image:
                    image.verify()  # the checksums of a PNG, which decoding ignores
                with Image.open(file, formats=("PNG", "JPEG")) as image:
                    mode = PIXEL_MODES.get(image.mode)
                    pixels = np.asarray(image.convert(mode))
        except Exception as error:  # invalid bytes can make Pillow raise anything
            raise InputError(f"{file}: cannot be read as an image: {error}") from error
        if mode is None:
            expected = "expected grey or RGB with 8 bits per channel"
            raise InputError(f"{file}: pixels of kind {image.mode}; {expected}")
        x.append(pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, 2, 0))
        if x[-1].shape != x[0].shape:
            sizes = f"{describe_shape(x[-1])}, but {files[0]}: {describe_shape(x[0])}"
            raise InputError(f"{file}: {sizes}; all images need the same size and colours")
    stack = np.asarray(x, np.float32)
    stack /= 255
    places = [file.relative_to(folder) for file in files]
    return FileContents(folder, "images", stack, [visible(file.parent.name) for file in files], places)


def _image_files(folder: Path, root: Path) -> list[Path]:
    files: list[Path] = []
    for group in visible_entries(folder, root):
        if not group.is_dir():
            allowed = f"one file ({', '.join(SUFFIXES)}), train and test, or a folder of images per class"
            raise InputError(f"{group}: unexpected; an agent has {allowed}")
        files += visible_entries(group, root)
    for file in files:
        if file.suffix.lower() not in IMAGE_SUFFIXES or not file.is_file():
            raise InputError(f"{file}: unexpected; expected images ({', '.join(IMAGE_SUFFIXES)})")
    return files

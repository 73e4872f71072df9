"""`PackedFolderDataset`: torchvision's ImageFolder for packed folders.

Missing classes and files raise `FileNotFoundError`. A damaged file raises an `FFRecordError`, and a
file that Pillow cannot decode raises Pillow's error with the archive and the path in front.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Bytes
from ffrecord.archive.folder import PackedFolder
from ffrecord.records.fingerprints import Fingerprinting, combined
from ffrecord.torch.assembler import OnError, check_on_error
from ffrecord.torch.dataset import Dataset

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ffrecord.remote.options import RemoteOptions

Function: TypeAlias = Callable[[Any], Any]

NOWHERE = -1  # in place of a record number: a symlink whose target is not in the archive
IMG_EXTENSIONS = (
    ".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp",
)  # fmt: skip


def pil_loader(data: Bytes) -> Any:
    """Decode the bytes of an image file to an RGB `PIL.Image.Image`."""
    try:
        from PIL import Image
    except ImportError:
        raise ImportError(
            "PackedFolderDataset needs Pillow to decode images, and Pillow is not installed; "
            "run: pip install pillow, or pass your own decoder as loader="
        ) from None
    with Image.open(io.BytesIO(data.data)) as image:
        return image.convert("RGB")


class PackedFolderDataset(Dataset[tuple[Any, Any]]):
    """A dataset with one `(sample, class)` pair for each file of a packed folder.

    The classes are the top folders, sorted by name. A class has all files below its folder, in the
    order of torchvision's ImageFolder.

    Args:
        archive: the path or URL of a packed folder, or an open `PackedFolder`.
        loader: a function from a file's bytes (a uint8 array) to a sample. By default Pillow
            decodes an RGB image.
        transform: a function that is applied to every sample.
        target_transform: a function that is applied to every class number.
        extensions: the endings of the files to use. None means all files.
        is_valid_file: a function that takes a path and returns True for a file to use. It
            replaces `extensions`.
        allow_empty: allow classes without files.
        root: the folder inside the archive that holds the class folders.
        check_data: verify the checksum of every file.
        on_error: how a loader treats a sample that cannot be read or decoded, as for `Dataset`.
        remote: options for URLs, as for `FileReader`.
    """

    def __init__(
        self,
        archive: str | os.PathLike[str] | PackedFolder,
        loader: Callable[[Bytes], Any] = pil_loader,
        transform: Function | None = None,
        target_transform: Function | None = None,
        *,
        extensions: str | Sequence[str] | None = IMG_EXTENSIONS,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
        root: str = "",
        check_data: bool = True,
        on_error: OnError = "raise",
        **remote: Unpack[RemoteOptions],
    ) -> None:
        self.folder = (
            archive
            if isinstance(archive, PackedFolder)
            else PackedFolder(archive, check_data, **remote)
        )
        self.root = root.strip("/")
        self.loader = loader
        self.transform = transform
        self.target_transform = target_transform
        self.extensions = None if is_valid_file is not None else extensions
        self.is_valid_file = is_valid_file
        self.allow_empty = allow_empty
        self.on_error = check_on_error(on_error)
        self.classes = self._find_classes()
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        paths, self._targets = self._find_files()
        self._records = self._find_records(paths)
        self.__dict__["_paths"] = paths

    # ---- samples -------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, indices: Any) -> Any:  # always a list: `_takes_any_key` wraps this
        records = self._records[indices]
        for missing in (records == NOWHERE).nonzero()[0].tolist():
            self.folder.record(self._paths[indices[missing]])  # raises the error of opening it
        data = self.folder.archive.read_records(records, lambda k: self._paths[indices[k]])
        targets = self._targets[indices].tolist()
        return [self._sample(*each) for each in zip(data, targets, indices, strict=True)]

    def _sample(self, data: Bytes, target: Any, index: int) -> tuple[Any, Any]:
        try:
            sample = self.loader(data)
        except OSError as error:
            if error.errno is None:  # Pillow's error: truncated, or not an image
                where = f"{self.folder.archive.path}: {self._paths[index]}"
                error.args = (f"{where}: {error}",)
            raise
        if self.transform is not None:
            sample = self.transform(sample)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return sample, target

    def prefetch(self, indices: list[int]) -> None:
        records = self._records[indices]
        if (records != NOWHERE).all():
            self.folder.reader.prefetch(records)

    # ---- ImageFolder's attributes --------------------------------------------------------

    @functools.cached_property
    def samples(self) -> list[tuple[str, int]]:
        """The path in the archive and the class number of every file."""
        return list(zip(self._paths, self.targets, strict=True))

    @property
    def imgs(self) -> list[tuple[str, int]]:
        """Same as `samples`. ImageFolder has this second name too."""
        return self.samples

    @functools.cached_property
    def targets(self) -> list[int]:
        """The class number of every file."""
        targets: list[int] = self._targets.tolist()
        return targets

    def fingerprint_by(self, of: Fingerprinting) -> str:
        chosen = hashlib.sha256(self._records.tobytes() + self._targets.tobytes())
        return combined(self.folder.reader.fingerprint, chosen.hexdigest(), *self.classes)

    # ---- the search for classes and files ------------------------------------------------

    @functools.cached_property
    def _paths(self) -> list[str]:
        return self._find_files()[0]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the paths. There may be millions, and workers rarely need them."""
        state = dict(self.__dict__)
        for derived in ("_paths", "samples", "targets"):
            state.pop(derived, None)
        return state

    def _find_classes(self) -> list[str]:
        classes = sorted(map(str, self.folder.list(self.root, list_file=False)))
        if not classes:
            raise FileNotFoundError(
                f"{self._where()}: contains no folders, and each class needs one; if the class "
                "folders are further down, pass their parent folder as root="
            )
        return classes

    def _find_files(self) -> tuple[list[str], npt.NDArray[np.int64]]:
        """Return the path and the class number of every file of the dataset."""
        paths: list[str] = []
        counts = []
        for name in self.classes:
            before = len(paths)
            top = f"{self.root}/{name}" if self.root else name
            for path, _, files in sorted(self.folder.walk(top, followlinks=True)):
                whole = [f"{path}/{file}" for file in sorted(files)]
                paths += whole if self._counts is None else filter(self._counts, whole)
            counts.append(len(paths) - before)
        missing = [name for name, count in zip(self.classes, counts, strict=True) if not count]
        if missing and not self.allow_empty:
            names = ", ".join(map(repr, missing))
            raise FileNotFoundError(
                f"{self._where()}: no usable files in the class folders {names}; choose other "
                "files with extensions= or is_valid_file=, pass the parent folder of the class "
                "folders as root=, or pass allow_empty=True"
            )
        return paths, np.repeat(np.arange(len(counts)), counts)

    def _find_records(self, paths: list[str]) -> npt.NDArray[np.int64]:
        """Return the record number of every file.

        It is `NOWHERE` for a symlink whose target is missing or outside the archive. Reading such a
        symlink fails, as it does on disk.
        """
        with contextlib.suppress(OSError):
            return self.folder.records(paths)
        records = np.full(len(paths), NOWHERE, np.int64)
        for number, path in enumerate(paths):
            with contextlib.suppress(OSError):
                records[number] = self.folder.record(path)
        return records

    @property
    def _counts(self) -> Callable[[str], bool] | None:
        """A function that returns True for the paths to use, or None if all are used."""
        if self.is_valid_file is not None:
            return self.is_valid_file
        if self.extensions is None:
            return None
        chosen = [self.extensions] if isinstance(self.extensions, str) else self.extensions
        endings = tuple(ending.lower() for ending in chosen)
        return lambda path: path.lower().endswith(endings)

    def _where(self) -> str:
        path = self.folder.archive.path
        return f"{path}, folder {self.root}" if self.root else path

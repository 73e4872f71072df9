"""`PackedFolderDataset`: a packed folder of classes, as torchvision's ImageFolder has it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Bytes
from ffrecord.archive.folder import PackedFolder
from ffrecord.records.fingerprints import Fingerprinting, combined
from ffrecord.torch.assembler import OnError, check_on_error
from ffrecord.torch.dataset import Dataset

Function: TypeAlias = Callable[[Any], Any]

NOWHERE = -1
IMG_EXTENSIONS = (
    ".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp",
)  # fmt: skip


def pil_loader(data: Bytes) -> Any:
    """An image file's bytes as an RGB image of Pillow's."""
    try:
        from PIL import Image
    except ImportError:
        raise ImportError(
            "PackedFolderDataset decodes images with Pillow: pip install pillow, or give a loader"
        ) from None
    with Image.open(io.BytesIO(data.data)) as image:
        return image.convert("RGB")


class PackedFolderDataset(Dataset[tuple[Any, Any]]):
    """(sample, class) of every file in a packed folder, batch-wise.

    The classes are the folders at the top, sorted; their files, in all folders below them, come
    in the order that torchvision's ImageFolder gives them.

    Args:
        archive: a packed folder's path, or an open `PackedFolder`.
        loader: makes a sample of a file's bytes, which come as a uint8 array; an image by default.
        transform: applied to every sample.
        target_transform: applied to every class number.
        extensions: which files count, by the end of their names; None: all of them.
        is_valid_file: decides by a file's path instead.
        allow_empty: whether a class may have no file.
        root: the folder inside the archive that has the classes.
        on_error: as `Dataset` has it.
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
    ) -> None:
        self.folder = (
            archive if isinstance(archive, PackedFolder) else PackedFolder(archive, check_data)
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

    def __getitem__(self, indices: Any) -> Any:  # a list here, for callers any key
        records = self._records[indices]
        for missing in (records == NOWHERE).nonzero()[0].tolist():
            self.folder.record(self._paths[indices[missing]])  # raises what opening it would
        data = self.folder.archive.read_records(records, lambda k: self._paths[indices[k]])
        targets = self._targets[indices].tolist()
        return [self._sample(*each) for each in zip(data, targets, indices, strict=True)]

    def _sample(self, data: Bytes, target: Any, index: int) -> tuple[Any, Any]:
        try:
            sample = self.loader(data)
        except OSError as error:
            if error.errno is None:  # Pillow's, of bytes that are no image, or not all of one
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
        """The path in the archive and the class of every file."""
        return list(zip(self._paths, self.targets, strict=True))

    @property
    def imgs(self) -> list[tuple[str, int]]:
        """The same, under the name that ImageFolder has for it."""
        return self.samples

    @functools.cached_property
    def targets(self) -> list[int]:
        """The class of every file."""
        targets: list[int] = self._targets.tolist()
        return targets

    def fingerprint_by(self, of: Fingerprinting) -> str:
        chosen = hashlib.sha256(self._records.tobytes() + self._targets.tobytes())
        return combined(self.folder.reader.fingerprint, chosen.hexdigest(), *self.classes)

    # ---- inside --------------------------------------------------------------------------

    @functools.cached_property
    def _paths(self) -> list[str]:
        return self._find_files()[0]

    def __getstate__(self) -> dict[str, Any]:
        """Without the paths, of which there may be millions: workers have no use for them."""
        state = dict(self.__dict__)
        for derived in ("_paths", "samples", "targets"):
            state.pop(derived, None)
        return state

    def _find_classes(self) -> list[str]:
        classes = sorted(map(str, self.folder.list(self.root, list_file=False)))
        if not classes:
            raise FileNotFoundError(f"{self._where()}: no folder in it, so there are no classes")
        return classes

    def _find_files(self) -> tuple[list[str], npt.NDArray[np.int64]]:
        """The path and the class of every file that counts."""
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
            raise FileNotFoundError(
                f"{self._where()}: no file that counts in {', '.join(map(repr, missing))}; "
                "see extensions, is_valid_file and allow_empty"
            )
        return paths, np.repeat(np.arange(len(counts)), counts)

    def _find_records(self, paths: list[str]) -> npt.NDArray[np.int64]:
        """The record of every file; NOWHERE for a symlink that leads out of the archive, or to
        nothing, which fails when it is read, as it would on disk."""
        with contextlib.suppress(OSError):
            return self.folder.records(paths)
        records = np.full(len(paths), NOWHERE, np.int64)
        for number, path in enumerate(paths):
            with contextlib.suppress(OSError):
                records[number] = self.folder.record(path)
        return records

    @property
    def _counts(self) -> Callable[[str], bool] | None:
        """Whether a path is one of the dataset's; None if all are."""
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

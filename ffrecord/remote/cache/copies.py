"""The copies of a reader's objects, and the local files that the engine for disks reads."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from ffrecord.aliases import Bytes, Ints, Mask
from ffrecord.disk.source import SourceSet
from ffrecord.remote.cache.copy import Copy


class Copies:
    """Copies of objects, one for each file of a reader; None for a file without a copy."""

    def __init__(self, each: Sequence[Copy | None]) -> None:
        self._each = tuple(each)
        self._whole = np.zeros(len(each), bool)
        self._place = np.cumsum([copy is not None for copy in each], dtype=np.int64) - 1
        self._files: SourceSet | None = None
        self._files_are_whole = False

    @property
    def are_used(self) -> bool:
        """True if at least one file has a copy."""
        return len(self._place) > 0 and int(self._place[-1]) >= 0

    @property
    def bytes_there(self) -> int:
        """Bytes that the copies have."""
        return sum(copy.bytes_there for copy in self._each if copy is not None)

    def have(self, file: Ints | None, begin: Ints, end: Ints, *, checked: bool) -> Mask | None:
        """Return a mask of the ranges that the copies have; None if they have none.

        Unless `checked`, all blocks of a range are verified first.
        """
        if not self.are_used:
            return None
        if file is None:
            file = np.zeros(len(begin), np.int64)
        mask = self._whole[file] if checked else np.zeros(len(begin), bool)
        if mask.all():
            return mask
        for number in _different(file[~mask]):
            copy = self._each[number]
            if copy is not None:
                rows = (file == number).nonzero()[0]
                mask[rows] = copy.has_each(begin[rows], end[rows], verified=not checked)
                self._whole[number] = copy.is_whole
        return mask if mask.any() else None

    def expect(self, file: Ints | None, begin: Ints, end: Ints) -> Mask | None:
        """Return a mask of the ranges whose blocks are there or on their way; None for none."""
        if not any(copy is not None and copy.expects_any for copy in self._each):
            return None
        if file is None:
            file = np.zeros(len(begin), np.int64)
        mask = np.zeros(len(begin), bool)
        for number in _different(file):
            copy = self._each[number]
            if copy is not None and copy.expects_any:
                rows = (file == number).nonzero()[0]
                mask[rows] = copy.expects_each(begin[rows], end[rows])
        return mask if mask.any() else None

    def places(self, file: Ints | None) -> Ints | None:
        """Return the numbers of files among `local`."""
        return file if file is None else self._place[file]

    @property
    def local(self) -> SourceSet:
        """The copies as local files.

        Whole copies are opened once more, because pieces around records are read from those only.
        """
        is_whole = bool(self._whole.all())
        if self._files is None or is_whole > self._files_are_whole:
            copies = [copy for copy in self._each if copy is not None]
            files = SourceSet([copy.open_path for copy in copies], direct=True)
            for source in files.each:
                os.pread(source.fd, 1, 0)  # the question below needs a page that was just read
            files.ask_about_the_cache()
            if is_whole:
                files.use_pieces(None)
            files.keeps = copies  # they have the locks against holes
            self._files, self._files_are_whole = files, is_whole
        return self._files

    def read_one(self, file: int, memory: Bytes, offset: int) -> bool:
        """Fill `memory` with a range of a whole copy; return False if the copy is not whole."""
        if not self._whole[file]:
            copy = self._each[file]
            self._whole[file] = copy is not None and copy.is_whole
            if not self._whole[file]:
                return False
        self.local.read_one(int(self._place[file]), memory, offset)
        return True

    def give_up(self, error: Exception) -> None:
        """Use none of the copies any more."""
        for copy in self._each:
            if copy is not None:
                copy.give_up(error)


def _different(files: Ints) -> list[int]:
    """Return the different numbers of files. (`np.unique` loads numpy.ma, which takes 15 ms.)"""
    found: list[int] = np.bincount(files).nonzero()[0].tolist()
    return found

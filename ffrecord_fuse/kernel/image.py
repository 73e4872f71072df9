"""Build the EROFS image of an archive: names, attributes, and where the contents are.

The kernel must never parse bytes that come out of an archive. So the archive's index is checked
first, as for every use, and all numbers of the image are computed here. The image is planned as
columns, and written piece by piece: a million files take about 200 MB of memory and a second.

The parts of an image, in order:

    head | inodes | inodes with data behind them | folders | long symlinks | xattrs | ends of shards

The kernel reads whole blocks, and fails at the end of a device that ends within a block. So the
bytes after the last whole block of each shard are copied into the image. This needs extents. In the
layout of chunks no file may reach into such a block.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Bytes, Ints
from ffrecord.archive.archive import Archive
from ffrecord.format import erofs
from ffrecord.format.erofs import INODE, DataLayout, Layout
from ffrecord.records.reader import table_of
from ffrecord_fuse.filesystem import Ownership
from ffrecord_fuse.kernel import ranges
from ffrecord_fuse.kernel.folders import Folders, Subtree
from ffrecord_fuse.kernel.xattrs import Xattrs

PIECE = 1 << 16  # inodes, blocks or extents that are computed at once
PIECE_BYTES = 4 << 20  # bytes that are written at once
EXTENT = 128 << 10
"""Bytes of an extent. The kernel reads an extent as a whole. Whole files are read fastest with
128 KiB; longer extents would make random reads slower."""
FIRST_INODE = 2 * erofs.SLOT  # inode number 2: tools take 0 for "no inode", and 1 for bad blocks

Write: TypeAlias = "Callable[[Bytes | bytes, int], None]"


@dataclass(frozen=True, slots=True)
class Devices:
    """The files of an archive: their descriptors and their sizes."""

    fds: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, archive: Archive) -> Devices:
        sources = table_of(archive.reader).require_files().each
        sizes = []
        for number, source in enumerate(sources):
            size, end = source.size(), int(archive.reader.get_offsets(number)[-1])
            if size < end:  # otherwise extents would lead to bytes that are not the file's
                source.read_bytes(end - 1, 1)  # raises TruncatedError
            sizes.append(max(size, end))
        return cls(tuple(source.fd for source in sources), tuple(sizes))


class Image:
    """The plan of an image. `write` writes it to a file.

    Args:
        archive: the archive to show.
        layout: the way to list the contents of files; `CHUNKS` needs an archive that is aligned.
        ownership: the owners and permissions to show, and the folder to show as the root.
    """

    def __init__(self, archive: Archive, layout: Layout, ownership: Ownership) -> None:
        self._index = archive.index
        self._table = table_of(archive.reader)
        self._layout = layout
        self._ownership = ownership
        self.devices = Devices.of(archive)
        self._ends = np.array([size // layout.block * layout.block for size in self.devices.sizes])
        self._tree = Subtree.of(archive.index, ownership.root)
        self._folders = Folders(archive.index, self._tree, layout.block)
        self._xattrs = Xattrs(archive.index)
        self._head = erofs.head_size(len(self.devices.sizes))
        self._plan()

    # ---- plan --------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Choose where the data of every inode is, and give everything its place.

        The columns have a row for each inode of the archive. Places of inodes count from the end
        of the head.
        """
        tree = self._tree
        inodes = self._index.tables.inodes
        self._format = np.empty(len(self._index), np.uint8)
        self._data = np.zeros(len(self._index), np.uint32)
        self._size = inodes["length"].astype(np.int64)
        self._size[tree.folders] = self._folders.sizes
        taken = np.empty(len(tree.inodes), np.int64)  # bytes of each inode and its payload
        for low, high in ranges.up_to(PIECE, len(taken)):
            taken[low:high] = self._taken(tree.inodes[low:high])
        is_inline = self._format[tree.inodes] == DataLayout.INLINE
        if is_inline[0]:  # the root must be the first inode, because its number has 16 bits
            is_inline[0] = False
            taken[0] -= self._size[tree.inodes[0]]
            self._format[tree.inodes[0]] = DataLayout.PLAIN
        self._place = np.zeros(len(self._index), np.int64)
        self._plan_plain(tree.inodes[~is_inline], taken[~is_inline])
        end = self._plan_inline(tree.inodes[is_inline], taken[is_inline])
        self._plan_data(self._head + end)

    def _plan_plain(self, inodes: Ints, taken: Ints) -> None:
        """Give inodes without data behind them their places."""
        slots = _aligned(taken, erofs.SLOT)
        until = FIRST_INODE + np.cumsum(slots)
        self._plain = inodes
        self._place[inodes] = until - slots
        self._plain_end = int(until[-1])

    def _plan_inline(self, inline: Ints, taken: Ints) -> int:
        """Give inodes with data behind them their places; return the end of all inodes.

        Each gets a slot. The size of a slot is a power of two, so that none crosses the end of a
        block.
        """
        end = self._whole(self._plain_end)
        self._inline = []
        slot = 2 * INODE.itemsize
        while len(inline):
            fits = taken <= slot
            some, inline, taken = inline[fits], inline[~fits], taken[~fits]
            self._place[some] = end + slot * np.arange(len(some))
            self._inline.append((slot, end, some))
            end = self._whole(end + slot * len(some))
            slot *= 2
        return end

    def _plan_data(self, end: int) -> None:
        """Give folders, long symlinks, extended attributes and ends of shards their blocks."""
        tree, block = self._tree, self._layout.block
        rows = (self._format[tree.folders] == DataLayout.PLAIN).nonzero()[0]
        blocks = self._folders.blocks_of[rows]
        self._blocks = ranges.numbers(self._folders.first_block[rows], blocks)
        self._blocks_at = end
        self._data[tree.folders[rows]] = end // block + np.cumsum(blocks) - blocks
        end += block * len(self._blocks)
        is_long = self._is(self._plain, stat.S_IFLNK)
        self._long_symlinks = self._plain[is_long]
        for inode in self._long_symlinks.tolist():
            self._data[inode] = end // block
            end += self._whole(int(self._size[inode]))
        self._xattrs_at = end
        end += self._whole(self._xattrs.size)
        self._tails_at = end
        if self._layout is erofs.EXTENTS:
            end += block * len(self.devices.sizes)
        self.blocks = end // block
        self._first_blocks = np.array(
            erofs.first_blocks(self._layout, self.blocks, self.devices.sizes)
        )

    def _is(self, inodes: Ints, kind: int) -> npt.NDArray[np.bool_]:
        tables = self._index.tables
        mode = tables.attributes["mode"][tables.inodes["attributes"][inodes]]
        is_it: npt.NDArray[np.bool_] = (mode & np.uint32(0o170000)) == kind
        return is_it

    def _whole(self, size: int) -> int:
        return self._layout.blocks(size) * self._layout.block

    def _taken(self, inodes: Ints) -> Ints:
        """Choose where the data of inodes is; return the bytes of each inode and its payload."""
        size = self._size[inodes]
        taken = INODE.itemsize + self._xattrs.sizes(inodes)
        inline = taken + size
        fits = (inline <= self._layout.block) & (size > 0)
        is_file = self._is(inodes, stat.S_IFREG)
        self._format[inodes] = np.where(fits, DataLayout.INLINE, DataLayout.PLAIN)
        rows = (is_file & (size > 0)).nonzero()[0]
        files = inodes[rows]
        self._format[inodes[is_file]] = DataLayout.PLAIN
        self._format[files] = self._layout.files
        found = np.where(fits & ~is_file, inline, taken)
        if self._layout is erofs.EXTENTS:
            begin, width = self._list_of(taken[rows], files)
            found[rows] = begin + width * _Extents(self, files).count
            self._data[files] = -(-size[rows] // self._layout.block)
        else:
            found[rows] = _aligned(taken[rows], 8) + 8 * _chunks(size[rows])
            self._data[files] = erofs.ONE_CHUNK
        return found

    def _list_of(self, taken: Ints, files: Ints) -> tuple[Ints, Ints]:
        """Return where the list of extents begins after its inode, and the size of an extent."""
        width = np.where(self._size[files] < erofs.SMALL_FILE, 16, 32)
        return _aligned(_aligned(taken, 8) + erofs.EXTENTS_HEADER, width), width

    def place_of(self, files: Ints) -> tuple[Ints, Ints]:
        """Return the device of each file, and the offset of the file in it."""
        return self._table.places(self._index.tables.inodes["data"][files].astype(np.int64))

    # ---- bytes -------------------------------------------------------------------------------

    def write(self, fd: int) -> None:
        """Write the image to an empty file."""
        os.ftruncate(fd, self.size)

        def write(what: Bytes | bytes, at: int) -> None:
            left = memoryview(what.data if isinstance(what, np.ndarray) else what)
            while left:
                done = os.pwrite(fd, left, at)
                left, at = left[done:], at + done

        places = erofs.Places(
            inodes=len(self._tree.inodes), root=FIRST_INODE // erofs.SLOT,
            meta=self._head // self._layout.block, xattrs=self._xattrs_at // self._layout.block,
            end=self.blocks,
        )  # fmt: skip
        write(erofs.head(self._layout, places, self.devices.sizes), 0)
        self._numbers = self._place // erofs.SLOT
        self._write_plain(write)
        for slot, at, inodes in self._inline:
            step = max(1, PIECE_BYTES // slot)
            for low, high in ranges.up_to(step, len(inodes)):
                write(self._slots(inodes[low:high], slot), self._head + at + slot * low)
        step = PIECE_BYTES // self._layout.block
        for low, high in ranges.up_to(step, len(self._blocks)):
            places_in = self._layout.block * np.arange(high - low)
            out = np.zeros(self._layout.block * (high - low), np.uint8)
            self._folders.write(out, places_in, self._blocks[low:high], self._numbers)
            write(out, self._blocks_at + self._layout.block * low)
        for inode in self._long_symlinks.tolist():
            write(self._index.target(inode), int(self._data[inode]) * self._layout.block)
        for piece, at in self._xattrs.shared(PIECE_BYTES):
            write(piece, self._xattrs_at + at)
        if self._layout is erofs.EXTENTS:
            self._write_tails(write)

    @property
    def size(self) -> int:
        """The size of the image: whole pages, which the kernel reads."""
        size = self.blocks * self._layout.block
        return -(-size // erofs.HEAD) * erofs.HEAD

    def left_out(self) -> list[bytes]:
        """Return the names of extended attributes that are too large for an image."""
        return [self._xattrs.name(row) for row in self._xattrs.left_out.tolist()]

    def _write_plain(self, write: Write) -> None:
        """Write the inodes without data behind them."""
        inodes = self._plain
        places = self._place[inodes]
        low = 0
        while low < len(inodes):
            begin = int(places[low])
            high = max(low + 1, int(np.searchsorted(places, begin + PIECE_BYTES)))
            end = int(places[high]) if high < len(inodes) else self._plain_end
            out = np.zeros(end - begin, np.uint8)
            some, at = inodes[low:high], places[low:high] - begin
            self._put_inodes(out, at, some)
            self._put_lists(out, at, some)
            write(out, self._head + begin)
            low = high

    def _slots(self, inodes: Ints, slot: int) -> Bytes:
        """Return folders and symlinks whose data is behind their inodes."""
        out = np.zeros(slot * len(inodes), np.uint8)
        at = slot * np.arange(len(inodes))
        self._put_inodes(out, at, inodes)
        data_at = at + INODE.itemsize + self._xattrs.sizes(inodes)
        is_folder = self._is(inodes, stat.S_IFDIR)
        rows = np.searchsorted(self._tree.folders, inodes[is_folder])
        if len(rows):
            blocks = self._folders.first_block[rows]
            self._folders.write(out, data_at[is_folder], blocks, self._numbers)
        symlinks = self._index.tables.inodes[inodes[~is_folder]]
        begin, length = symlinks["data"].astype(np.int64), symlinks["length"].astype(np.int64)
        ranges.copy(out, data_at[~is_folder], self._index.tables.texts, begin, length)
        return out

    def _put_inodes(self, out: Bytes, at: Ints, inodes: Ints) -> None:
        rows = np.zeros(len(inodes), INODE)
        mode, links, uid, gid, _, mtime = self._ownership.columns(self._index, inodes)
        if self._ownership.keeper is not None and inodes[0] == self._tree.inodes[0]:
            mode[0], uid[0] = stat.S_IFDIR | 0o500, self._ownership.keeper
        rows["format"] = self._format[inodes]
        rows["xattrs"] = self._xattrs.words(inodes)
        rows["mode"], rows["links"] = mode, links
        rows["uid"], rows["gid"] = uid, gid
        rows["size"], rows["data"] = self._size[inodes], self._data[inodes]
        rows["number"] = self._numbers[inodes]
        rows["seconds"], rows["nanoseconds"] = np.divmod(mtime, 10**9)
        halves, target = rows.view("V32"), out.view("V32")
        target[at // 32], target[at // 32 + 1] = halves[::2], halves[1::2]
        self._xattrs.put(out, at + INODE.itemsize, inodes)

    def _put_lists(self, out: Bytes, at: Ints, inodes: Ints) -> None:
        """Write the lists of extents or chunks behind their inodes."""
        rows = (self._format[inodes] == self._layout.files).nonzero()[0]
        files, at = inodes[rows], at[rows]
        taken = INODE.itemsize + self._xattrs.sizes(files)
        if self._layout is erofs.CHUNKS:
            self._put_chunks(out, at + _aligned(taken, 8), files)
            return
        begin, width = self._list_of(taken, files)
        extents = _Extents(self, files)
        header = erofs.extents_header(extents.count, width == 32)
        out.view("<u8")[(at + _aligned(taken, 8)) // 8] = header
        for kind in (erofs.EXTENT, erofs.LONG_EXTENT):
            which = (width == kind.itemsize).nonzero()[0]
            extents.put(out.view(kind), (at + begin)[which] // kind.itemsize, which)

    def _put_chunks(self, out: Bytes, at: Ints, files: Ints) -> None:
        count = _chunks(self._size[files])
        device, begin = self.place_of(files)
        rows = np.zeros(int(count.sum()), erofs.CHUNK)
        number = ranges.numbers(np.zeros(len(files), np.int64), count)
        rows["device"] = np.repeat(device + 1, count)
        first = np.repeat(begin // self._layout.block, count)
        rows["block"] = first + (number << (erofs.CHUNK_BITS - self._layout.block_bits))
        out.view(erofs.CHUNK)[ranges.numbers(at // 8, count)] = rows

    def _write_tails(self, write: Write) -> None:
        """Copy the bytes after the last whole block of each device."""
        block = self._layout.block
        for number, source in enumerate(self._table.require_files().each):
            end, size = int(self._ends[number]), self.devices.sizes[number]
            write(source.read_bytes(end, size - end), self._tails_at + block * number)


class _Extents:
    """The extents of files. The last one may be in the image: the end of a shard."""

    def __init__(self, image: Image, files: Ints) -> None:
        self._image = image
        self._size = image._size[files]
        self._device, self._begin = image.place_of(files)
        # Bytes of each file in whole blocks of its device; the others are in the image.
        self._cut = np.clip(image._ends[self._device] - self._begin, 0, self._size)
        self._whole = -(-self._cut // EXTENT)
        self.count = self._whole + (self._cut < self._size)

    def put(self, out: npt.NDArray[np.void], at: Ints, which: Ints) -> None:
        """Write the extents of some files to their rows in `out`."""
        image, block = self._image, self._image._layout.block
        until = np.cumsum(self.count[which])
        for low, high in ranges.up_to(PIECE, int(until[-1]) if len(until) else 0):
            number = np.arange(low, high)
            row = np.searchsorted(until, number, side="right")
            file = which[row]
            number -= until[row] - self.count[file]
            in_image = number == self._whole[file]
            offset = np.where(in_image, self._cut[file], number * EXTENT)
            end = np.where(in_image, self._size[file], np.minimum(offset + EXTENT, self._cut[file]))
            device = self._device[file]
            position = self._begin[file] + offset
            moved = image._tails_at + block * device - image._ends[device]
            firsts = image._first_blocks[device] * block
            extents = np.zeros(high - low, out.dtype)
            extents["length"], extents["offset"] = end - offset, offset
            extents["position"] = position + np.where(in_image, moved, firsts)
            out[at[row] + number] = extents


def _chunks(size: Ints) -> Ints:
    return -(-size >> erofs.CHUNK_BITS)


def _aligned(position: Ints, unit: Ints | int) -> Ints:
    aligned: Ints = -(-position // unit) * unit
    return aligned

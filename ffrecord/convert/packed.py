"""Writing a packed folder from entries in any order that has a hard link after its file.

Contents become records as they come; the index, which is made at the end, says what they are
called. So a tar is packed while it is read. What is kept in memory is the names and attributes.
"""

from __future__ import annotations

import stat
from array import array
from dataclasses import dataclass, field

import numpy as np

from ffrecord.checksum import crc32, crc32_joined
from ffrecord.convert.paths import parts
from ffrecord.convert.shapes import Entry, Files, Options, Written
from ffrecord.errors import ConversionError
from ffrecord.index.build import Tree, Xattrs
from ffrecord.index.layout import BLOCK, LARGEST_XATTR, LONGEST_NAME, LONGEST_TARGET
from ffrecord.names import to_text
from ffrecord.pack import index_record
from ffrecord.scan import LATEST_NS
from ffrecord.writer import FileWriter

_IMPLIED = stat.S_IFDIR | 0o755
_MOST_ID = (1 << 32) - 1


def write(path: str, files: Files, options: Options) -> Written:
    with FileWriter(path) as writer:
        packing = _Packing(path, writer)
        for entry in files.items:
            packing.add(entry)
        writer.write_one(packing.index())
    return Written(packing.names, packing.replaced)


@dataclass(slots=True)
class _Node:
    """An inode before it has its number."""

    mode: int
    uid: int
    gid: int
    mtime_ns: int
    length: int = 0
    record: int = 0
    target: bytes = b""
    xattrs: Xattrs = ()
    blocks: array[int] | None = None
    children: dict[bytes, _Node] = field(default_factory=dict)

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)


class _Packing:
    def __init__(self, path: str, writer: FileWriter) -> None:
        self.names = 0  # of what is not a folder
        self.replaced = 0
        self._path = path
        self._writer = writer
        self._root: _Node | None = None
        self._sizes = array("q")

    def add(self, entry: Entry) -> None:
        names = parts(entry.path)
        node = self._node(entry)
        if self._root is None:
            self._root = node if not names else _implied_by(entry)
        if not names:
            _take_attributes(self._root, node, entry)
            return
        folder = self._folder(names[:-1], entry)
        there = folder.children.get(names[-1])
        if there is not None and there.is_folder:
            _take_attributes(there, node, entry)
            return
        if not node.is_folder:
            self.names += there is None
            self.replaced += there is not None
        elif there is not None:
            raise _contradiction(entry)
        folder.children[names[-1]] = node

    def index(self) -> bytes:
        """The last record."""
        tree = Tree()
        root = self._root or _Node(_IMPLIED, 0, 0, 0)
        numbers = {id(root): _add_inode(tree, root)}
        level = [root]
        for folder in level:  # it grows while it is gone through: breadth first
            for name in sorted(folder.children):
                node = folder.children[name]
                if id(node) not in numbers:
                    numbers[id(node)] = _add_inode(tree, node)
                tree.add_entry(numbers[id(folder)], name, numbers[id(node)])
                if node.is_folder:
                    level.append(node)
        return index_record(self._path, tree, np.array(self._sizes, np.int64))

    def _node(self, entry: Entry) -> _Node:
        if entry.hard_link:
            return self._linked(entry)
        for name, value in entry.xattrs:
            if len(name) > LONGEST_NAME or len(value) > LARGEST_XATTR or b"\0" in name:
                raise ConversionError(f"{to_text(entry.path)!r}: no file has such an attribute")
        node = _Node(entry.mode, entry.uid, entry.gid, entry.mtime_ns, xattrs=entry.xattrs)
        if entry.is_symlink:
            if not 0 < len(entry.target) <= LONGEST_TARGET or b"\0" in entry.target:
                raise ConversionError(f"{to_text(entry.path)!r}: no symlink can say what it says")
            node.target = entry.target
            node.length = len(entry.target)
        elif entry.is_file:
            self._store(node, entry)
        return node

    def _linked(self, entry: Entry) -> _Node:
        """The file that a hard link is another name for."""
        node = self._root
        for name in parts(entry.hard_link):
            node = None if node is None else node.children.get(name)
        if node is None or node.is_folder:
            raise ConversionError(
                f"{to_text(entry.path)!r}: a hard link to {to_text(entry.hard_link)!r}, which is "
                "no file that came before it"
            )
        return node

    def _store(self, node: _Node, entry: Entry) -> None:
        """A file's content as the next record, with the checksums of its blocks."""
        blocks = array("I")
        crc = filled = size = 0
        for piece in entry.content():
            data = memoryview(piece).cast("B")
            if not len(data):
                continue
            self._writer.append(data)
            size += len(data)
            while len(data):
                part = data[: BLOCK - filled]
                crc, filled, data = crc32(part, crc), filled + len(part), data[len(part) :]
                if filled == BLOCK:
                    blocks.append(crc)
                    crc = filled = 0
        if filled or not blocks:
            blocks.append(crc)
        self._writer.seal([size], [crc32_joined(blocks, BLOCK, size)])
        node.length, node.record = size, len(self._sizes)
        node.blocks = blocks if len(blocks) > 1 else None
        self._sizes.append(size)

    def _folder(self, names: list[bytes], entry: Entry) -> _Node:
        """A folder, which is made if it has not come itself."""
        assert self._root is not None
        folder = self._root
        for name in names:
            folder = folder.children.setdefault(name, _implied_by(entry))
            if not folder.is_folder:
                raise _contradiction(entry)
        return folder


def _implied_by(entry: Entry) -> _Node:
    return _Node(_IMPLIED, entry.uid, entry.gid, entry.mtime_ns)


def _take_attributes(folder: _Node, node: _Node, entry: Entry) -> None:
    """A folder's own entry may come after what is in it, and more than once."""
    if not node.is_folder:
        raise _contradiction(entry)
    folder.mode, folder.uid, folder.gid = node.mode, node.uid, node.gid
    folder.mtime_ns, folder.xattrs = node.mtime_ns, node.xattrs


def _contradiction(entry: Entry) -> ConversionError:
    return ConversionError(f"{to_text(entry.path)!r}: is a folder and something else at once")


def _add_inode(tree: Tree, node: _Node) -> int:
    if not (0 <= node.uid <= _MOST_ID and 0 <= node.gid <= _MOST_ID):
        raise ConversionError(f"no owner or group has the number {node.uid} or {node.gid}")
    mtime = max(-LATEST_NS, min(LATEST_NS, node.mtime_ns))
    number = tree.add_inode(node.mode, node.uid, node.gid, mtime, node.length, node.record)
    if node.target:
        tree.targets[number] = node.target
    if node.xattrs:
        tree.xattrs[number] = tuple(sorted(node.xattrs))
    if node.blocks is not None:
        tree.blocks[number] = node.blocks
    return number

"""The index of the original FFRecord: a pickle of nested OrderedDicts, name -> record number.

Reading it runs no code from the file. The parser knows only the few opcodes that such a pickle
needs, and builds only dictionaries of strings and integers. It looks up no class, calls no function
and does not recurse. The number of bytes and names, the stack and the memo have limits.

`legacy_scan` reads the same pickles many files at a time, if they look as the original writes them.
All others are left to the parser, and so are all errors.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, Final, TypeAlias

from ffrecord.aliases import Ints
from ffrecord.archive.index.build import Tree
from ffrecord.archive.index.legacy_scan import BATCH, scan
from ffrecord.archive.index.legacy_tree import FILE_MODE, FOLDER_MODE, arrange
from ffrecord.errors import IndexStructureError
from ffrecord.format.index import DEEPEST, LEGACY_MAGIC, LONGEST_NAME, WAY_OUT

Raw: TypeAlias = "bytes | bytearray"

PIECE = 1 << 14
"""Number of byte strings that are joined and written at once; an item takes three or four."""

LONGEST_LINE = 100  # bytes in the name of a class
LONGEST_TEXT = 3 * LONGEST_NAME
"""Most bytes of a name in a pickle: a byte that is not UTF-8 takes three."""

_CLASS: Final = ("the class OrderedDict",)
_NO_ARGUMENTS: Final = ("no arguments",)
_U16, _I32, _U32, _U64 = (struct.Struct(f"<{code}") for code in "HiIQ")
_KIND = 0o170000
_RECORD = struct.Struct("<ci")
_NAMES = [b"X" + _U32.pack(length) for length in range(LONGEST_TEXT + 1)]
"""Opcode and length in front of a name, for each length."""


def most_bytes(files: int) -> int:
    """Return a limit for the bytes of an index of `files` files.

    It allows one folder for each file, the longest possible names for both, and some folders
    without files.
    """
    return (64 << 20) + 2048 * files


def most_entries(files: int) -> int:
    """Return a limit for the names in an index of `files` files.

    It allows one folder for each file, and some folders without files.
    """
    return (1 << 18) + 2 * files


def read_tree(
    path: str, record: Raw, record_sizes: Ints, archive: os.stat_result, most_entries: int
) -> Tree:
    """Return the tree that an index record of the original FFRecord describes.

    Such an index has no attributes. Files and folders get the owner and the time of the archive,
    and are read-only.
    """
    owned = (archive.st_uid, archive.st_gid, archive.st_mtime_ns)
    tree = _scanned(record, record_sizes, owned, most_entries)
    if tree is None:
        structure = parse(path, record, len(LEGACY_MAGIC), most_entries)
        tree = tree_of(path, structure, record_sizes.tolist(), owned)
    return tree


def _scanned(
    record: Raw, record_sizes: Ints, owned: tuple[int, int, int], most_entries: int
) -> Tree | None:
    """Return the tree of an index record that looks as the original writes it, otherwise None."""
    entries = scan(record, len(LEGACY_MAGIC), most_entries)
    return arrange(entries, record_sizes, owned) if entries else None


def tree_of(
    path: str, structure: dict[str, Any], record_sizes: list[int], owned: tuple[int, int, int]
) -> Tree:
    """Return the tree of a parsed pickle."""
    tree = Tree()
    tree.add_inode(FOLDER_MODE, *owned)
    level = [(0, structure)]
    depth = 0
    while level:
        if depth > DEEPEST:
            raise _wrong(path, f"folders are more than {DEEPEST} levels deep")
        below = []
        for parent, folder in level:
            items = [(_name(path, name), value) for name, value in folder.items()]
            for name, value in sorted(items, key=itemgetter(0)):
                if isinstance(value, dict):
                    inode = tree.add_inode(FOLDER_MODE, *owned)
                    below.append((inode, value))
                else:
                    if not 0 <= value < len(record_sizes):
                        what = f"{name!r} is record {value}, but only {len(record_sizes)} exist"
                        raise _wrong(path, what)
                    inode = tree.add_inode(FILE_MODE, *owned, record_sizes[value], value)
                tree.add_entry(parent, name, inode)
        level, depth = below, depth + 1
    return tree


def parse(
    path: str, raw: Raw, start: int = 0, most_entries: int = most_entries(0)
) -> dict[str, Any]:
    """Return the nested dictionaries of a pickle: str -> int or a dictionary of the same kind."""
    try:
        return _Parser(path, raw, start, most_entries).run()
    except (IndexError, struct.error):  # the pickle ends inside an opcode's argument
        raise _wrong(path, "its pickle is cut off") from None


def pickled(tree: Tree, symlink_record: Callable[[int], int | None]) -> Iterator[bytes]:
    """Yield the index that the original FFRecord reads, magic number and pickle, in pieces.

    The index has only folders and files. A symlink becomes a file with the record that
    `symlink_record` returns for its entry, or is left out if that is None.
    """
    piece = [LEGACY_MAGIC + b"\x80\x04\x8c\x0bcollections\x8c\x0bOrderedDict\x93\x94)R("]
    waiting = [0]  # number of items of each open folder since its last batch
    names, inodes, modes, records = tree.names, tree.inode, tree.mode, tree.record
    for entry, depth in tree.in_path_order():
        while depth < len(waiting):
            waiting.pop()
            piece.append(b"u")
        inode = inodes[entry]
        kind = modes[inode] & _KIND  # faster than stat.S_IFMT
        record = symlink_record(entry) if kind == stat.S_IFLNK else records[inode]
        if record is None:
            continue
        if waiting[-1] == BATCH:
            waiting[-1] = 0
            piece.append(b"u(")
        waiting[-1] += 1
        name = names[entry]
        if not name.isascii():
            # The text into which Python decodes this name, in a UTF-8 locale.
            name = name.decode("utf-8", "surrogateescape").encode("utf-8", "surrogatepass")
        if kind == stat.S_IFDIR:
            waiting.append(0)
            piece += (_NAMES[len(name)], name, b"h\x00)R(")
        elif record < 1 << 31:
            piece += (_NAMES[len(name)], name, _RECORD.pack(b"J", record))
        else:
            piece += (_NAMES[len(name)], name, b"\x8a\x08", _U64.pack(record))
        if len(piece) >= PIECE:
            yield b"".join(piece)
            piece.clear()
    yield b"".join(piece) + b"u" * len(waiting) + b"."


def _wrong(path: str, what: str) -> IndexStructureError:
    return IndexStructureError(f"{path}: its index is wrong: {what}; {WAY_OUT}")


def _name(path: str, name: str) -> bytes:
    try:
        raw = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise _wrong(path, f"{name!r} is not a file name") from None
    if raw in (b"", b".", b"..") or b"/" in raw or b"\0" in raw or len(raw) > LONGEST_NAME:
        raise _wrong(path, f"{name[:300]!r} is not a file name")
    return raw


class _Parser:
    """A pickle machine for dictionaries of strings and integers.

    Strings and the class may be fetched from the memo. Dictionaries may not, so that no folder is
    in the tree twice or inside itself.
    """

    def __init__(self, path: str, raw: Raw, start: int, most_entries: int) -> None:
        self._path = path
        self._raw = raw
        self._at = self._start = start
        self._entries = 0
        self._most_entries = most_entries
        # Each name and each folder once, the root, and the class with its two names.
        self._most_remembered = 2 * most_entries + 4
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: list[Any] = []

    def run(self) -> dict[str, Any]:
        raw, stack, memo, marks = self._raw, self._stack, self._memo, self._marks
        most_open, most_remembered = self._most_open(), self._most_remembered
        while True:
            opcode = raw[self._at]
            self._at += 1
            # The most frequent opcodes come first: the first three make up a file.
            if opcode == 0x8C:  # SHORT_BINUNICODE
                stack.append(self._string(raw[self._at], 1))
            elif opcode == 0x94:  # MEMOIZE
                if len(memo) >= most_remembered:
                    raise self._refused(
                        "the memo of its pickle has more items than the pickle can need"
                    )
                memo.append(stack[-1])
            elif opcode in _INTEGERS:
                size, number = _INTEGERS[opcode]
                stack.append(number.unpack_from(raw, self._at)[0] if number else raw[self._at])
                self._at += size
            elif opcode == 0x58:  # X: BINUNICODE
                stack.append(self._string(_U32.unpack_from(raw, self._at)[0], 4))
            elif opcode == 0x71:  # q: BINPUT
                self._put(raw[self._at], 1)
            elif opcode == 0x72:  # r: LONG_BINPUT
                self._put(_U32.unpack_from(raw, self._at)[0], 4)
            elif opcode == 0x68:  # h: BINGET
                self._fetch(raw[self._at], 1)
            elif opcode == 0x6A:  # j: LONG_BINGET
                self._fetch(_U32.unpack_from(raw, self._at)[0], 4)
            elif opcode == 0x75:  # u: SETITEMS
                self._set_items(marks.pop())
                most_open = self._most_open()
            elif opcode == 0x28:  # (: MARK
                marks.append(len(stack))
                most_open = self._most_open()
            elif opcode == 0x73:  # s: SETITEM
                self._set_items(len(stack) - 2)
            elif opcode == 0x29:  # ): EMPTY_TUPLE
                stack.append(_NO_ARGUMENTS)
            elif opcode in (0x52, 0x81):  # R: REDUCE, NEWOBJ
                self._make_dictionary()
            elif opcode == 0x7D:  # }: EMPTY_DICT
                self._push_folder()
            elif opcode == 0x2E:  # STOP
                return self._stop()
            else:
                self._rare(opcode)
            if len(stack) > most_open:
                raise self._refused("more open items than a folder can have")

    def _most_open(self) -> int:
        """Return the most items the stack may hold: open folders, and their names and values."""
        if len(self._marks) > DEEPEST + 1:
            raise self._refused("more open items than a folder can have")
        return 2 * min(BATCH * (len(self._marks) + 1), self._most_entries) + 2 * DEEPEST

    def _rare(self, opcode: int) -> None:
        """Run an opcode that is rare in such a pickle."""
        raw = self._raw
        if opcode == 0x80:  # PROTO
            if raw[self._at] > 5:
                raise self._refused(f"its pickle has protocol {raw[self._at]}, the highest is 5")
            self._at += 1
        elif opcode == 0x95:  # FRAME
            (size,) = _U64.unpack_from(raw, self._at)
            self._at += 8
            if size > len(raw) - self._at:
                raise IndexError
        elif opcode == 0x8D:  # BINUNICODE8
            self._stack.append(self._string(_U64.unpack_from(raw, self._at)[0], 8))
        elif opcode == 0x8A:  # LONG1
            size = raw[self._at]
            digits = raw[self._at + 1 : self._at + 1 + size]
            if size > 8 or len(digits) != size:
                raise self._refused("a number has more than 8 bytes")
            self._stack.append(int.from_bytes(digits, "little", signed=True))
            self._at += 1 + size
        elif opcode == 0x93:  # STACK_GLOBAL
            name = self._stack.pop()
            self._class(self._stack.pop(), name)
        elif opcode == 0x63:  # c: GLOBAL
            module, name = self._line(), self._line()
            self._class(module, name)
        else:
            raise self._refused(f"its pickle has opcode {bytes([opcode])!r}, which no index needs")

    def _string(self, size: int, width: int) -> str:
        begin = self._at + width
        if size > LONGEST_TEXT:
            raise self._refused(f"a text of {size} bytes is too long for a file name")
        raw = self._raw[begin : begin + size]
        if len(raw) != size:
            raise IndexError
        self._at = begin + size
        try:
            return raw.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise self._refused("a name is not UTF-8") from None

    def _line(self) -> str:
        end = self._raw.find(b"\n", self._at, self._at + LONGEST_LINE)
        if end < 0:
            raise self._refused("its pickle asks for a class with a too long name")
        line = self._raw[self._at : end].decode("ascii", "replace")
        self._at = end + 1
        return line

    def _class(self, module: Any, name: Any) -> None:
        if module != "collections" or name != "OrderedDict":
            shown = [each[:60] if isinstance(each, str) else "…" for each in (module, name)]
            raise self._refused(f"its pickle asks for {'.'.join(shown)}, which is not allowed")
        self._stack.append(_CLASS)

    def _make_dictionary(self) -> None:
        arguments, made = self._stack.pop(), self._stack.pop()
        if made is not _CLASS or arguments is not _NO_ARGUMENTS:
            raise self._refused("its pickle calls a function")
        self._push_folder()

    def _push_folder(self) -> None:
        """Push the root, or a folder after its name. So folders cannot pile up on the stack."""
        if self._stack and not isinstance(self._stack[-1], str):
            raise self._refused("an item is a folder without a name")
        self._stack.append({})

    def _put(self, number: int, width: int) -> None:
        """Put the top of the stack into the memo. New numbers must continue the old ones."""
        self._at += width
        if number > len(self._memo) or number >= self._most_remembered:
            raise self._refused(
                f"its pickle writes to number {number} of its memo, which is out of range"
            )
        self._memo[number : number + 1] = [self._stack[-1]]

    def _fetch(self, number: int, width: int) -> None:
        self._at += width
        value = self._memo[number] if number < len(self._memo) else None
        if not (isinstance(value, str) or value is _CLASS):
            raise self._refused("its pickle fetches from its memo something that is not a name")
        self._stack.append(value)

    def _set_items(self, mark: int) -> None:
        stack = self._stack
        if mark < 1 or not isinstance(stack[mark - 1], dict):
            raise self._refused("an item is outside of any folder")
        folder, items = stack[mark - 1], stack[mark:]
        if len(items) % 2:
            raise self._refused("a name has no file or folder")
        self._entries += len(items) // 2
        if self._entries > self._most_entries:
            raise self._refused(f"there are more than {self._most_entries} names")
        del stack[mark:]
        for name, value in zip(items[::2], items[1::2], strict=True):
            # type(), not isinstance(), which would allow bool.
            if type(name) is not str or type(value) not in (int, dict):
                raise self._refused("an item is not a name with a record number or a folder")
            if name in folder:
                raise self._refused(f"a folder has {name[:300]!r} twice")
            folder[name] = value

    def _stop(self) -> dict[str, Any]:
        if len(self._stack) != 1 or self._marks or not isinstance(self._stack[0], dict):
            raise self._refused("its pickle is not a single folder")
        root: dict[str, Any] = self._stack[0]
        return root

    def _refused(self, what: str) -> IndexStructureError:
        return _wrong(self._path, f"{what} (at byte {self._at - self._start} of its pickle)")


_INTEGERS: dict[int, tuple[int, struct.Struct | None]] = {
    0x4B: (1, None),  # K: BININT1
    0x4D: (2, _U16),  # M: BININT2
    0x4A: (4, _I32),  # J: BININT
}

"""Packed folders built by hand with `struct` and `zlib`, which attacks then change.

Nothing here may use the package. A `Draft` begins as a valid index according to docs/format.md, and
an attack changes one number. All checksums are computed last, after the change. So the checksums
are right, and a reader continues with its other checks.
"""

from __future__ import annotations

import stat
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tests.support.handmade import record_bytes

BLOCK = 128 << 10
NO_ENTRY = 0xFFFFFFFF
LEGACY_MAGIC = b"piouhjgbr"
COUNTS = (
    "inodes", "entries", "hashes", "attributes", "xattrs", "large", "blocks", "shards", "texts",
    "names",
)  # fmt: skip


@dataclass(frozen=True)
class Symlink:
    target: bytes


Tree: TypeAlias = "Mapping[bytes, bytes | Symlink | Tree]"


@dataclass
class Inode:
    data: int = 0
    length: int = 0
    mtime: int = 0
    attributes: int = 0
    entry: int = NO_ENTRY

    def pack(self) -> bytes:
        return struct.pack(
            "<QQqII", self.data, self.length, self.mtime, self.attributes, self.entry
        )


@dataclass
class Entry:
    name: bytes
    inode: int
    parent: int
    end: int | None = None  # the end of its name; None: the right end

    def pack(self, end: int) -> bytes:
        return struct.pack("<QII", end if self.end is None else self.end, self.inode, self.parent)


@dataclass
class Attributes:
    mode: int
    uid: int = 1000
    gid: int = 1000
    links: int = 1
    xattr: int = 0
    xattrs: int = 0

    def pack(self) -> bytes:
        return struct.pack(
            "<6I", self.mode, self.uid, self.gid, self.links, self.xattr, self.xattrs
        )


@dataclass
class Xattr:
    text: int
    name: int
    value: int

    def pack(self) -> bytes:
        return struct.pack("<QII", self.text, self.name, self.value)


@dataclass
class Large:
    inode: int
    first: int
    zero: int = 0

    def pack(self) -> bytes:
        return struct.pack("<IIQ", self.inode, self.zero, self.first)


@dataclass
class Shard:
    records: int
    text: int
    name: int
    crc: int

    def pack(self) -> bytes:
        return struct.pack("<QQII", self.records, self.text, self.name, self.crc)


@dataclass
class Draft:
    """An index as rows that can be changed, and the contents of its files."""

    files: list[bytes] = field(default_factory=list)
    inodes: list[Inode] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    hashes: list[tuple[int, int]] = field(default_factory=list)
    attributes: list[Attributes] = field(default_factory=list)
    xattrs: list[Xattr] = field(default_factory=list)
    large: list[Large] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    shards: list[Shard] = field(default_factory=list)
    texts: bytearray = field(default_factory=bytearray)
    names: bytes | None = None  # None: the names of the entries, end to end

    # ---- adding rows -----------------------------------------------------------------------

    def add_inode(self, mode: int, data: int = 0, length: int = 0) -> int:
        """Add an inode and return its number, which is also the row of its attributes."""
        number = len(self.inodes)
        self.inodes.append(Inode(data, length, 1_600_000_000 * 10**9 + number, number))
        self.attributes.append(Attributes(mode, links=2 if stat.S_ISDIR(mode) else 1))
        return number

    def add_file(self, content: bytes) -> int:
        number = self.add_inode(stat.S_IFREG | 0o644, len(self.files), len(content))
        self.files.append(content)
        if len(content) > BLOCK:
            self.large.append(Large(number, len(self.blocks)))
            pieces = [content[at : at + BLOCK] for at in range(0, len(content), BLOCK)]
            self.blocks += map(zlib.crc32, pieces)
        return number

    def add_text(self, text: bytes) -> int:
        at = len(self.texts)
        self.texts += text
        return at

    def add_symlink(self, target: bytes) -> int:
        return self.add_inode(stat.S_IFLNK | 0o777, self.add_text(target), len(target))

    def set_xattrs(self, inode: int, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        attributes = self.attributes[inode]
        attributes.xattr, attributes.xattrs = len(self.xattrs), len(pairs)
        for name, value in pairs:
            self.xattrs.append(Xattr(self.add_text(name + value), len(name), len(value)))

    # ---- finding and changing rows ---------------------------------------------------------

    def find(self, path: bytes) -> int:
        """Search all entries for a path, and return its inode."""
        inode = 0
        for name in path.split(b"/"):
            (inode,) = (
                entry.inode
                for entry in self.entries
                if entry.parent == inode and entry.name == name
            )
        return inode

    def inode(self, path: bytes) -> Inode:
        return self.inodes[self.find(path)]

    def entry(self, path: bytes) -> Entry:
        return self.entries[self.inode(path).entry]

    def attributes_of(self, path: bytes) -> Attributes:
        return self.attributes[self.inode(path).attributes]

    def rename(self, path: bytes, name: bytes) -> None:
        """Change a name, but not its place among the entries."""
        self.entry(path).name = name
        self.rehash()

    def rehash(self) -> None:
        """Compute the sorted CRC-32s of all paths from the present entries."""
        before = {0: 0}
        found = []
        for number, entry in enumerate(self.entries):
            crc = zlib.crc32(entry.name, before[entry.parent])
            before.setdefault(entry.inode, zlib.crc32(b"/", crc))
            found.append((crc, number))
        self.hashes = sorted(found)

    # ---- bytes -----------------------------------------------------------------------------

    def image(self, **claimed: int) -> bytes:
        """Return the bytes of the index. `claimed` replaces the right counts."""
        sections = self._sections()
        counts = {name: count for name, count, _ in sections if name} | claimed
        head = struct.pack("<10Q", *(counts[name] for name in COUNTS))
        return head + b"".join(raw + bytes(-len(raw) % 8) for _, _, raw in sections)

    def padding(self) -> list[int]:
        """Return the positions of bytes in the image that belong to no table."""
        found: list[int] = []
        at = 8 * len(COUNTS)
        for _, _, raw in self._sections():
            end = at + len(raw)
            at = end + -end % 8
            found += range(end, at)
        return found

    def _sections(self) -> list[tuple[str, int, bytes]]:
        ends, at = [], 0
        for entry in self.entries:
            at += len(entry.name)
            ends.append(at)
        names = b"".join(entry.name for entry in self.entries) if self.names is None else self.names
        return [
            _section("inodes", [row.pack() for row in self.inodes]),
            _section("entries", list(map(Entry.pack, self.entries, ends))),
            _section("hashes", [struct.pack("<I", crc) for crc, _ in self.hashes]),
            _section("", [struct.pack("<I", entry) for _, entry in self.hashes]),
            _section("attributes", [row.pack() for row in self.attributes]),
            _section("xattrs", [row.pack() for row in self.xattrs]),
            _section("large", [row.pack() for row in self.large]),
            _section("blocks", [struct.pack("<I", crc) for crc in self.blocks]),
            _section("shards", [row.pack() for row in self.shards]),
            ("texts", len(self.texts), bytes(self.texts)),
            ("names", len(names), names),
        ]

    def archive(self, **claimed: int) -> bytes:
        """Return a whole file, with right checksums."""
        return sealed(self.files, self.image(**claimed))


def _section(name: str, rows: list[bytes]) -> tuple[str, int, bytes]:
    return name, len(rows), b"".join(rows)


def sealed(
    files: Sequence[bytes],
    image: bytes,
    *,
    length: int | None = None,
    crc: int | None = None,
    version: int = 1,
    magic: bytes = b"FFRINDEX",
    before: bytes = b"",
) -> bytes:
    """Return a file whose last record is an index. Arguments replace values of its trailer."""
    crc = zlib.crc32(image) if crc is None else crc
    trailer = struct.pack("<QII8s", len(image) if length is None else length, crc, version, magic)
    return record_bytes([*files, before + image + trailer])


def plant(tree: Tree) -> Draft:
    """Return the draft of a tree, numbered breadth first."""
    draft = Draft()
    folders: list[tuple[int, Tree]] = [(draft.add_inode(stat.S_IFDIR | 0o755), tree)]
    for parent, folder in folders:  # the list grows during the loop
        draft.inodes[parent].data, draft.inodes[parent].length = len(draft.entries), len(folder)
        for name, node in sorted(folder.items()):
            if isinstance(node, bytes):
                number = draft.add_file(node)
            elif isinstance(node, Symlink):
                number = draft.add_symlink(node.target)
            else:
                number = draft.add_inode(stat.S_IFDIR | 0o755)
                draft.attributes[parent].links += 1
                folders.append((number, node))
            draft.inodes[number].entry = len(draft.entries)
            draft.entries.append(Entry(name, number, parent))
    draft.rehash()
    return draft


SAMPLE: Tree = {
    b"alpha": b"the first file",
    b"beta": b"",
    b"folder": {
        b"gamma": b"a third one",
        b"inner": {b"delta": b"deep down"},
        b"other": {},
    },
    b"link": Symlink(b"folder/gamma"),
}
XATTRS = ((b"user.colour", b"green"), (b"user.empty", b""))
LARGE_FILES: Tree = {
    b"first": bytes(BLOCK) + b"and a bit",
    b"second": b"small",
    b"third": b"abcdefgh" * (BLOCK // 4),
}


def sample() -> Draft:
    """Return the draft that most attacks change: files, folders, a symlink, extended attributes."""
    draft = plant(SAMPLE)
    draft.set_xattrs(draft.find(b"alpha"), XATTRS)
    return draft


def large_files() -> Draft:
    """Return a draft of two large files, with checksums of blocks, and a small one in between."""
    return plant(LARGE_FILES)


def nested(levels: int, tree: Tree, name: bytes = b"d") -> Tree:
    """Return a tree inside nested folders."""
    for _ in range(levels):
        tree = {name: tree}
    return tree


def chain(levels: int, name: bytes = b"d") -> Draft:
    """Return a draft of nested folders with a file in the last one."""
    return plant(nested(levels, {b"end": b"the end"}, name))


def sharded(draft: Draft, spoil: Mapping[str, int] | None = None) -> dict[str, bytes]:
    """Return the files of an archive of two shards. `spoil` changes the row of the second shard."""
    middle = len(draft.files) // 2
    parts = [record_bytes(draft.files[:middle]), record_bytes(draft.files[middle:])]
    counts = [middle, len(draft.files) - middle]
    found = {}
    for number, (part, count) in enumerate(zip(parts, counts, strict=True)):
        name = f"PART_{number:05d}.ffr"
        (crc,) = struct.unpack_from("<I", part)
        text = draft.add_text(name.encode())
        draft.shards.append(Shard(count, text, len(name), crc))
        found[name] = part
    draft.shards[1] = replace(draft.shards[1], **(spoil or {}))
    return found | {"index.ffr": sealed([], draft.image())}


# ---- the original's pickles ------------------------------------------------------------------

PICKLED_FILES = (b"the first file", b"another")
ORDERED_DICT = b"ccollections\nOrderedDict\n)R"


def legacy(pickled: bytes, files: Sequence[bytes] = PICKLED_FILES) -> bytes:
    """Return an archive in the original's format, with this pickle as its index."""
    return record_bytes([*files, LEGACY_MAGIC + pickled])


def text(string: str) -> bytes:
    """Return a string as the opcode BINUNICODE."""
    raw = string.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(raw)) + raw


def folder(items: bytes, make: bytes = b"}") -> bytes:
    """Return a whole pickle of one folder with these items."""
    return b"\x80\x04" + make + b"(" + items + b"u."


# The opcodes of pickled folders, some other opcodes, and their arguments.
PIECES = [
    b"}", b"(", b"u", b"s", b")", b"R", b"\x81", b"\x94", b"K\0", b"K\1", b"M\1\1", b"J\xff\0\0\0",
    b"\x8a\1\5", b"\x8a\0", b"q\0", b"q\1", b"h\0", b"h\1", b"r\1\0\0\0", b"j\1\0\0\0",
    b"\x8c\1a", b"\x8c\0", b"\x8d\1\0\0\0\0\0\0\0c", b"\x93", b"ccollections\nOrderedDict\n",
    b"c", b"\n", b".", b"\x80\x02", b"0", b"N", b"\x88", b"\x95\0\0\0\0\0\0\0\0",
    text("b"), text("\udce9"), text("collections"), text("OrderedDict"),
]  # fmt: skip
ITEMS = [b"\x8c\1a\x94K\0", text("b") + b"q\1K\1", text("c") + b"}", b"h\0K\0", text("d") + b"}("]

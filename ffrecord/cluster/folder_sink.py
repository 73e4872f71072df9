"""The sink for a packed folder: contents become records, and paths and attributes the index.

The facts about the files of a shard stay in the receipt in the work folder, which only the commit
reads.
"""

from __future__ import annotations

import os
import stat
import zlib
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ffrecord.archive.index import ROOT
from ffrecord.archive.index.build import Shard, Tree
from ffrecord.archive.index.columns import MISSING
from ffrecord.archive.index.unordered import UnorderedEntries, split_path
from ffrecord.archive.names import to_text
from ffrecord.archive.packer import header_crc, write_index
from ffrecord.cluster.columns import Values, bytes_of, column_of
from ffrecord.cluster.folder import MODE, MTIME, PATH, PERMISSIONS
from ffrecord.cluster.records_sink import append_values, file_receipt
from ffrecord.cluster.sink import Sink
from ffrecord.cluster.source import CONTENT
from ffrecord.errors import ConversionError
from ffrecord.format.checksum import crc32, crc32_joined
from ffrecord.format.index import BLOCK, INDEX_NAME
from ffrecord.plan.values import WritePlan
from ffrecord.plan.work import Receipt
from ffrecord.records.writer import FileWriter

FILE_MODE, FOLDER_MODE = 0o644, 0o755
_NAME_END = b"\0"
_SECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


@dataclass(frozen=True)
class FolderSink(Sink):
    """Each row becomes a file. The fields name the columns."""

    path: str = PATH
    content: str = CONTENT
    mode: str | None = MODE
    mtime: str | None = MTIME

    def _write_shard(
        self, task: int, schema: pa.Schema, batches: Iterator[pa.RecordBatch], path: str
    ) -> Receipt:
        facts = _Facts()
        with FileWriter(path) as writer:
            for batch in batches:
                column = column_of(batch, self.content, self.name)
                values = bytes_of(column, self.content, self.name)
                append_values(writer, values, facts.add_contents(values))
                paths = column_of(batch, self.path, self.name)
                facts.add_paths(bytes_of(paths, self.path, self.name), self.name)
                facts.modes.extend(self._modes(batch))
                facts.mtimes.extend(self._mtimes(batch))
        return file_receipt(
            task, path, writer.count, {"": header_crc(path)}, {"files": facts.to_text()}
        )

    def _modes(self, batch: pa.RecordBatch) -> list[int]:
        """Return the permissions of each file."""
        column = _optional(batch, self.mode)
        if column is None:
            return [FILE_MODE] * batch.num_rows
        if not pa.types.is_integer(column.type):
            raise self._wrong_type(self.mode, column, "an integer")
        modes = column.fill_null(FILE_MODE).to_numpy(zero_copy_only=False).astype(np.int64)
        permissions: list[int] = (modes & int(PERMISSIONS)).tolist()
        return permissions

    def _mtimes(self, batch: pa.RecordBatch) -> list[int]:
        """Return the time of each file, in nanoseconds."""
        column = _optional(batch, self.mtime)
        if column is None:
            return [0] * batch.num_rows
        if not pa.types.is_timestamp(column.type):
            raise self._wrong_type(self.mtime, column, "a timestamp")
        try:
            times = pc.multiply_checked(column.cast(pa.int64()), _SECONDS[column.type.unit])
        except pa.ArrowInvalid as error:
            raise ConversionError(
                f"{self.name}: the column {self.mtime!r} has times outside the years 1678 to "
                "2261, which an archive cannot keep; change them"
            ) from error
        found: list[int] = times.fill_null(0).to_pylist()
        return found

    def _wrong_type(self, name: str | None, column: pa.Array, due: str) -> ConversionError:
        return ConversionError(
            f"{self.name}: the column {name!r} has the type {column.type}; it must be {due}"
        )

    def _require_spec(self) -> None:
        pass  # an empty folder is a folder

    def _finish(self, plan: WritePlan, folder: str, receipts: Mapping[int, Receipt]) -> None:
        shards, found = [], []
        for number, receipt in receipts.items():
            name = plan.shard_name(number)
            shards.append(Shard(name.encode(), receipt.count, receipt.checksums[""]))
            found.append(_Facts.from_text(receipt.details["files"]))
        tree = self._tree(found)
        sizes = np.array([size for facts in found for size in facts.lengths], np.int64)
        with FileWriter(os.path.join(folder, INDEX_NAME), 1) as writer:
            write_index(writer, self.name, tree, sizes, shards)

    def _tree(self, found: list[_Facts]) -> Tree:
        """Return the tree of all files. Folders have the time of the newest file."""
        owner = os.geteuid(), os.getegid()
        newest = max((max(facts.mtimes) for facts in found), default=0)
        entries, record = UnorderedEntries(), 0
        tree = entries.found

        def add_folder() -> int:
            return tree.add_inode(stat.S_IFDIR | FOLDER_MODE, *owner, newest)

        add_folder()
        last, folder = None, ROOT
        for facts in found:
            for row, path in enumerate(facts.paths):
                *above, name = split_path(path)
                if above != last:
                    folder, last = ROOT, above
                    for each in above:
                        inner = entries.inode(folder, each)
                        if inner == MISSING:
                            inner = add_folder()
                            entries.add(folder, each, inner)
                        elif not tree.is_folder(inner):
                            raise self._twice(path, "a file has the path of one of its folders")
                        folder = inner
                if entries.place(folder, name) != MISSING:
                    raise self._twice(path, "another file or folder has the same path")
                inode = tree.add_inode(
                    stat.S_IFREG | facts.modes[row], *owner, facts.mtimes[row], facts.lengths[row],
                    record,
                )  # fmt: skip
                if (blocks := facts.blocks.get(row)) is not None:
                    tree.blocks[inode] = blocks
                entries.add(folder, name, inode)
                record += 1
        return entries.in_order()

    def _twice(self, path: bytes, why: str) -> ConversionError:
        return ConversionError(
            f"{self.name}: {to_text(path)!r} cannot be packed: {why}; each path may be there once"
        )


def _optional(batch: pa.RecordBatch, name: str | None) -> pa.Array | None:
    if name is None or batch.schema.get_field_index(name) < 0:
        return None
    return batch.column(name)


class _Facts:
    """Facts about the files of a shard, for the index."""

    def __init__(self) -> None:
        self.paths: list[bytes] = []
        self.lengths = array("q")
        self.modes = array("q")
        self.mtimes = array("q")
        self.blocks: dict[int, array[int]] = {}
        """Checksums of the blocks of files larger than one block."""

    def add_contents(self, values: Values) -> list[int]:
        """Note the sizes and block checksums of files; return the checksums of their records."""
        checksums = []
        for content in values.each():
            blocks = [crc32(content[at : at + BLOCK]) for at in range(0, len(content) or 1, BLOCK)]
            if len(blocks) > 1:
                self.blocks[len(self.lengths)] = array("I", blocks)
            checksums.append(crc32_joined(blocks, BLOCK, len(content)))
            self.lengths.append(len(content))
        return checksums

    def add_paths(self, values: Values, target: str) -> None:
        for value in values.each():
            path = bytes(value)
            try:
                names = split_path(path)
            except ConversionError as error:
                raise ConversionError(f"{target}: {error}") from None
            if not names:
                raise ConversionError(f"{target}: a file has an empty path; give each file a path")
            self.paths.append(path)

    def to_text(self) -> str:
        """Return the facts as text for JSON."""
        counts = array("q", [len(self.paths), len(self.blocks)])
        rows = array("q", self.blocks)
        lengths = array("q", map(len, self.blocks.values()))
        columns = [counts, self.lengths, self.modes, self.mtimes, rows, lengths]
        raw = b"".join([*(each.tobytes() for each in (*columns, *self.blocks.values())),
                        _NAME_END.join(self.paths)])  # fmt: skip
        return b64encode(zlib.compress(raw, 1)).decode()

    @classmethod
    def from_text(cls, text: str) -> _Facts:
        raw, at = zlib.decompress(b64decode(text)), 0

        def column(code: str, count: int) -> array[int]:
            nonlocal at
            values = array(code)
            values.frombytes(raw[at : at + count * values.itemsize])
            at += count * values.itemsize
            return values

        facts = cls()
        files, large = column("q", 2)
        facts.lengths, facts.modes, facts.mtimes = (column("q", files) for _ in range(3))
        rows, lengths = column("q", large), column("q", large)
        for row, length in zip(rows, lengths, strict=True):
            facts.blocks[row] = column("I", length)
        facts.paths = raw[at:].split(_NAME_END)
        return facts

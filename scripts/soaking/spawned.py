"""Print the CRC-32 of some records, by zlib, in a fresh process that gets a pickled reader."""

from __future__ import annotations

import pickle
import sys
import zlib


def main() -> None:
    reader, indices = pickle.load(sys.stdin.buffer)
    print(*[zlib.crc32(record) for record in reader.read(indices)])


if __name__ == "__main__":
    main()

"""What `scripts/demo` does in Python: write records, read them in batches, say how it went."""

from __future__ import annotations

import sys
import time

import numpy as np

from ffrecord import FileReader, FileWriter

N = 10_000
BATCH = 256


def main(path: str) -> None:
    random = np.random.default_rng(1)
    noise = random.bytes(1 << 20)
    lengths = random.lognormal(np.log(9_400), 0.35, N).astype(int)
    records = [b"record %d " % i + noise[i : i + size] for i, size in enumerate(lengths)]

    began = time.perf_counter()
    with FileWriter(path, n=N) as writer:
        for record in records:
            writer.write_one(record)
    took = time.perf_counter() - began
    total = sum(map(len, records))
    print(f"wrote {N:,} records, {total / 1e6:.0f} MB, safely on disk in {took:.2f} s")

    with FileReader(path) as reader:
        order = random.permutation(reader.n)
        began = time.perf_counter()
        right = 0
        for start in range(0, N, BATCH):
            indices = order[start : start + BATCH]
            batch = reader.read(indices)
            pairs = zip(batch, indices.tolist(), strict=True)
            right += sum(record.tobytes() == records[i] for record, i in pairs)
        took = time.perf_counter() - began
    print(f"read {right:,} records back in random batches of {BATCH}, each checked and compared")
    print(f"with what was written, in {took:.2f} s")
    if right != N:
        raise SystemExit(f"demo: {N - right} records came back wrong")


if __name__ == "__main__":
    main(sys.argv[1])

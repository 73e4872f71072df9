"""Random folders with everything that a folder can have: plans for hypothesis, and folders on disk.

A plan is a list of entries, each in the folder of an earlier entry. If hypothesis drops entries,
the rest is still a plan. Impossible entries (a name that exists, a path that is too long) are
skipped.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path

from hypothesis import strategies as st

from tests.support import trees
from tests.support.trees import BLOCK, SECOND

LONGEST_PATH = 3000  # below the folder, whose own path needs room too
SIZES = [0, 1, 511, 4095, 4096, 4097, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK + 4096]
SIZES += [3 * BLOCK, 8 * BLOCK + 1, trees.BATCH - 1, trees.BATCH, trees.BATCH + 1]
OWNERS = [0, 1, 1000, 65534, (1 << 31) + 5, (1 << 32) - 2]
FIRST, LAST = -(1 << 31), (1 << 63) // SECOND - 1
"""Seconds: the earliest time of ext4 and the latest time of an archive."""


@dataclass(frozen=True)
class Entry:
    """A name in a folder.

    `above` counts back from the last folder that was made, `other` from the last file or symlink.
    """

    kind: str
    name: bytes
    above: int
    other: int = 0
    size: int = 0
    seed: int = 0
    sparse: bool = False
    target: bytes = b"x"
    mode: int = 0o755
    mtime_ns: int = 0
    owner: tuple[int, int] = (0, 0)
    xattrs: dict[str, bytes] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return a short text: hypothesis warns about long ones, and warnings are errors here."""
        plain = asdict(Entry(self.kind, self.name, self.above))
        given = [f"{key}={str(value)[:40]}" for key, value in asdict(self).items()
                 if value != plain[key]]  # fmt: skip
        name = f"{self.name[:20]!r}{'…' * (len(self.name) > 20)}"
        return f"Entry({', '.join([self.kind, name, str(self.above), *given])})"


def _as_name(raw: bytes) -> bytes:
    """Turn bytes into a valid name. A filter would reject nearly all bytes."""
    raw = raw.replace(b"\0", b"\1").replace(b"/", b"_")[:255]
    return b"_" if raw in (b"", b".", b"..") else raw


names = (
    st.sampled_from([*trees.NAMES, b"a", b"b", b"a.b", b"\xff" * 255, "é".encode() * 127])
    | st.text(min_size=1, max_size=6).map(lambda text: text.encode("utf-8", "surrogatepass"))
    | st.binary(min_size=1, max_size=4)
    | st.builds(lambda raw, long: raw * long, st.binary(min_size=1, max_size=2), st.just(255))
).map(_as_name)

targets = (
    st.sampled_from([b".", b"..", b"a", b"a/", b"../a", b"/a", b"/no such place/at all", b"b/a/.."])
    | names
    | st.lists(names, min_size=2, max_size=3).map(b"/".join)
    | st.builds(lambda name, long: (name * 4095)[:long], names, st.integers(4000, 4095))
)

mtimes = st.sampled_from([0, -1, 1, trees.BEFORE_1970, trees.YEAR_2100, LAST * SECOND]) | st.builds(
    lambda seconds, more: seconds * SECOND + more, st.integers(FIRST, LAST),
    st.integers(0, SECOND - 1),
)  # fmt: skip

xattrs = st.dictionaries(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6).map(
        "user.".__add__
    ),
    st.binary(max_size=10) | st.sampled_from([b"x" * 300, bytes(range(256))]),
    max_size=3,
)

entries = st.builds(
    Entry,
    kind=st.sampled_from(["file", "file", "folder", "symlink", "hard link"]),
    name=names,
    above=st.integers(0, 6),
    other=st.integers(0, 6),
    size=st.integers(0, 6000) | st.sampled_from(SIZES),
    seed=st.integers(0, 9),
    sparse=st.booleans(),
    target=targets,
    mode=st.sampled_from([0o644, 0o755, 0o000, 0o4755, 0o1777]) | st.integers(0, 0o7777),
    mtime_ns=mtimes,
    owner=st.tuples(st.sampled_from(OWNERS), st.sampled_from(OWNERS)),
    xattrs=st.just({}) | xattrs,
)

# Several joined lists, because one list without a minimum is short on average. They still shrink
# to nothing.
plans = st.tuples(*[st.lists(entries, max_size=14)] * 6).map(lambda lists: [*chain(*lists)])


def build(plan: list[Entry], top: Path) -> Path:
    """Make the folder of a plan."""
    top.mkdir()
    has_xattrs = trees.has_xattrs(top)
    folders: list[bytes] = [os.fsencode(top)]
    others: list[bytes] = []
    made: dict[bytes, Entry] = {}
    for entry in plan:
        path = os.path.join(folders[-1 - entry.above % len(folders)], entry.name)
        if path in made or len(path) > LONGEST_PATH:
            continue
        if entry.kind == "hard link":
            if others:
                other = others[-1 - entry.other % len(others)]
                os.link(other, path, follow_symlinks=False)
                made[path] = made[other]
            continue
        made[path] = entry
        if entry.kind == "folder":
            os.mkdir(path)
            folders.append(path)
            continue
        others.append(path)
        if entry.kind == "symlink":
            os.symlink(entry.target, path)
        else:
            _write(path, entry)
    for path, entry in reversed(made.items()):  # set a folder's times after its content
        _dress(path, entry, has_xattrs)
    os.utime(top, ns=(0, trees.NANOSECONDS))  # the same in every run of a plan
    return top


def _write(path: bytes, entry: Entry) -> None:
    with open(path, "wb") as file:
        if not entry.sparse:
            file.write(trees.content(entry.size, entry.seed))
            return
        file.truncate(entry.size)
        file.seek(entry.size // 2)
        file.write(trees.content(min(1000, entry.size // 2), entry.seed))


def _dress(path: bytes, entry: Entry, has_xattrs: bool) -> None:
    """Set the attributes of a path; owners only as root, who can read everything."""
    mode = entry.mode
    if entry.kind != "symlink":
        if has_xattrs:
            for name, value in entry.xattrs.items():
                os.setxattr(path, name, value)
        if os.geteuid() != 0:
            mode = mode & 0o777 | (0o700 if entry.kind == "folder" else 0o600)
    if os.geteuid() == 0:
        os.chown(path, *entry.owner, follow_symlinks=False)
    if entry.kind != "symlink":
        os.chmod(path, mode)
    os.utime(path, ns=(0, entry.mtime_ns), follow_symlinks=False)

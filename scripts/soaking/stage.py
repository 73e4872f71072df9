"""The data of a soak in one folder: a packed tree, a record file and a dataset."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from ffrecord import DatasetWriter, FileWriter, pack_folder

from .contents import DATASET_SPEC, MIB, Plan

XATTR = "user.number"


@dataclass(frozen=True, slots=True)
class Stage:
    """The paths of a soak."""

    top: Path

    @property
    def archive(self) -> Path:
        return self.top / "packed.ffr"

    @property
    def second(self) -> Path:
        """A small archive that is mounted and unmounted repeatedly."""
        return self.top / "second.ffr"

    @property
    def records(self) -> Path:
        return self.top / "records.ffr"

    @property
    def dataset(self) -> Path:
        return self.top / "dataset"

    @property
    def point(self) -> Path:
        return self.top / "mounted"

    @property
    def second_point(self) -> Path:
        return self.top / "mounted second"

    @property
    def kernel_point(self) -> Path:
        return self.top / "mounted by the kernel"

    @property
    def url_point(self) -> Path:
        return self.top / "mounted from a URL"

    @property
    def points(self) -> tuple[Path, ...]:
        return (self.point, self.second_point, self.kernel_point, self.url_point)

    @property
    def cache(self) -> Path:
        """A cache with room for everything."""
        return self.top / "cache"

    @property
    def small_cache(self) -> Path:
        return self.top / "small cache"

    @property
    def log(self) -> Path:
        return self.top / "mount.log"

    @property
    def url_log(self) -> Path:
        return self.top / "url mount.log"

    @property
    def failures(self) -> Path:
        return self.top / "failures"

    def scratch(self, name: str) -> Path:
        """Return the private folder of one reader."""
        return self.top / f"scratch {name}"

    def files_read(self) -> list[Path]:
        """Return the files whose pages may be dropped."""
        return [self.archive, self.records, *self.dataset.glob("*.ffr")]

    def make(self, plan: Plan) -> None:
        """Write all data. The folder that was packed is removed afterwards."""
        for point in self.points:
            point.mkdir()
        source = self.top / "source"
        _make_tree(source, plan)
        pack_folder(source, self.archive)
        pack_folder(source / "folder 00", self.second)
        shutil.rmtree(source)
        with FileWriter(self.records) as writer:
            for record in plan.records:
                writer.write_one(plan.content(record))
        with DatasetWriter(self.dataset, DATASET_SPEC) as dataset:
            for index in range(plan.amount.datapoints):
                dataset.append(plan.datapoint(index))


def _make_tree(top: Path, plan: Plan) -> None:
    for folder in plan.listings:
        (top / folder).mkdir()
    for file in plan.files:
        path = top / file.path
        with open(path, "wb") as out:
            for offset in range(0, file.size, 8 * MIB):
                length = min(8 * MIB, file.size - offset)
                out.write(plan.contents.bytes(file.number, offset, length).data)
        # Some file systems have no attributes; `MountReader` then leaves them out.
        with contextlib.suppress(OSError):
            os.setxattr(path, XATTR, b"%d" % file.number)
        os.utime(path, (file.mtime, file.mtime))
    for name, target in plan.links.items():
        (top / name).symlink_to(target)

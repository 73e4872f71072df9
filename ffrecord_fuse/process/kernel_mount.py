"""Mount an archive that the kernel serves: try it, tell the user, and wait if that is wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ffrecord.archive.archive import Archive
from ffrecord.archive.names import absolute
from ffrecord_fuse.kernel import mount as kernel
from ffrecord_fuse.kernel.probe import Refused
from ffrecord_fuse.mounting.lifeline import Caller
from ffrecord_fuse.mounting.options import Options
from ffrecord_fuse.process import watch
from ffrecord_fuse.process.undoing import undone_if_interrupted
from ffrecord_fuse.serve.report import Log, tell_place

VERIFIED = {
    None: "not verified",
    "verified": "verified before mounting",
    "verity": "verified by fs-verity",
}


@dataclass(frozen=True, slots=True)
class ByKernel:
    """A mount that the kernel shall serve. `root` is the inode of the folder to show."""

    opened: Archive
    archive: str
    mountpoint: str
    options: Options
    root: int
    log: Log
    caller: Caller | None
    note: Callable[[str], None]

    def serve(self, *, foreground: bool) -> bool:
        """Mount; return False if FUSE must serve. In the foreground, never return."""
        with undone_if_interrupted(self.mountpoint):
            mounted = self._mounted()
            if mounted is None:
                return False
            self._tell(mounted)
            log_file = "" if self.options.log is None else absolute(self.options.log)
            if self.caller is not None:
                watch.start(self.mountpoint, mounted.number, log_file, self.caller)
            elif foreground:
                watch.become(self.mountpoint, mounted.number, log_file)
        return True

    def _mounted(self) -> kernel.Mounted | None:
        """Mount. If the kernel cannot serve the archive, return None, or raise an error."""
        try:
            return kernel.mount(self.opened, self.archive, self.mountpoint, self.options, self.root)
        except Refused as refused:
            if self.options.backend == "kernel":
                raise kernel.refusal(self.mountpoint, refused) from None
            self.log.line(f"{self.mountpoint}: the kernel back end is not used: {refused}")
            return None

    def _tell(self, mounted: kernel.Mounted) -> None:
        facts = f"{len(self.opened.index)} inodes, by the kernel ({mounted.layout})"
        where = f"{self.archive} on {self.mountpoint}"
        self.log.line(f"mounted {where}: {facts}, {VERIFIED[mounted.verified]}")
        if mounted.verified is None:
            self.note(f"{self.mountpoint}: the kernel serves this mount; bytes are not verified")
        if mounted.left_out is not None:
            self.log.line(f"{self.mountpoint}: {mounted.left_out}")
            self.note(f"{self.mountpoint}: {mounted.left_out}")
        tell_place(self.log, self.note)

"""Mount an archive that the kernel serves: try it, tell the user, and wait if that is wanted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from ffrecord.archive.archive import Archive
from ffrecord.archive.names import absolute
from ffrecord_fuse.kernel import mount as kernel
from ffrecord_fuse.kernel.probe import Refused
from ffrecord_fuse.mounting.lifeline import Caller
from ffrecord_fuse.mounting.mounttable import connection_of
from ffrecord_fuse.mounting.overlay import Place
from ffrecord_fuse.process import watch
from ffrecord_fuse.process.undoing import undone_if_interrupted, unmount_quietly
from ffrecord_fuse.process.watch import Pins
from ffrecord_fuse.serve.report import Log, tell_place

NO_PINS = Pins()
VERIFIED = {
    None: "not verified",
    "verified": "verified before mounting",
    "verity": "verified by fs-verity",
}


@dataclass(frozen=True, slots=True)
class ByKernel:
    """A mount that the kernel shall serve.

    `root` is the inode of the folder to show. `pins` must be kept while the archive is mounted.
    """

    opened: Archive
    archive: str
    place: Place
    root: int
    log: Log
    caller: Caller | None
    note: Callable[[str], None]
    pins: Pins = NO_PINS

    def serve(self, *, foreground: bool) -> bool:
        """Mount; return False if FUSE must serve. In the foreground, never return.

        If the mount cannot be finished, nothing stays mounted.
        """
        mountpoint, log = self.place.mountpoint, self.place.options.log
        with undone_if_interrupted(mountpoint):
            mounted = self._mounted()
            if mounted is None:
                return False
            with contextlib.ExitStack() as on_failure:
                on_failure.callback(unmount_quietly, self.place.lower)
                self.place.cover()
                number = connection_of(mountpoint)
                self._tell(mounted)
                log_file = "" if log is None else absolute(log)
                if foreground and self.caller is None:
                    watch.become(mountpoint, number, log_file, self.pins)
                elif self.caller is not None or self.pins.locks:
                    watch.start(mountpoint, number, log_file, self.caller, self.pins)
                on_failure.pop_all()
        return True

    def _mounted(self) -> kernel.Mounted | None:
        """Mount. If the kernel cannot serve the archive, return None, or raise an error."""
        place, mountpoint = self.place, self.place.mountpoint
        try:
            return kernel.mount(self.opened, self.archive, place.lower, place.options, self.root)
        except Refused as refused:
            if place.options.backend == "kernel":
                raise kernel.refusal(mountpoint, refused) from None
            self.log.line(f"{mountpoint}: the kernel back end is not used: {refused}")
            return None

    def _tell(self, mounted: kernel.Mounted) -> None:
        mountpoint = self.place.mountpoint
        facts = f"{len(self.opened.index)} inodes, by the kernel ({mounted.layout})"
        facts += ", through the page cache" if mounted.is_cached else ""
        facts += self.place.facts
        where = f"{self.archive} on {mountpoint}"
        self.log.line(f"mounted {where}: {facts}, {VERIFIED[mounted.verified]}")
        if mounted.verified is None:
            self.note(f"{mountpoint}: the kernel serves this mount; bytes are not verified")
        if mounted.left_out is not None:
            self.log.line(f"{mountpoint}: {mounted.left_out}")
            self.note(f"{mountpoint}: {mounted.left_out}")
        tell_place(self.log, self.note)

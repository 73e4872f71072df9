"""The module by which users of the original FFRecord import its packed folders."""

from ffrecord.folder import PackedFolder
from ffrecord.pack import pack_folder

__all__ = ["PackedFolder", "pack_folder"]

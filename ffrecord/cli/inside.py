"""Errors of looking a name up in an archive, which know the name but not the archive."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ffrecord.errors import FFRecordError


@contextlib.contextmanager
def inside(archive: str) -> Iterator[None]:
    """Have them name both: `photos.ffr: cats: No such file or directory`."""
    try:
        yield
    except FFRecordError:
        raise
    except OSError as error:
        if error.filename is None:
            raise
        raise OSError(error.errno, error.strerror, f"{archive}: {error.filename}") from error

"""`ConversionReport`: the counts of a conversion, and the sum of several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from ffrecord.archive.counts import Counts


@dataclass(slots=True)
class ConversionReport:
    """Counts of a conversion."""

    source_format: str
    target_format: str
    read: int
    """Number of records, rows or files in the source. Folders are not counted."""
    written: int
    """Number of records, rows or files in the finished target."""
    replaced: int = 0
    """Number of files that a later file of the same name replaced."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Number of things that the target cannot hold, by kind."""
    source_contents: Counts | None = None
    """If `read` counts files: the number of each kind, and of folders."""
    target_contents: Counts | None = None
    """If `written` counts files: the number of each kind, and of folders."""


def joined(reports: Sequence[ConversionReport]) -> ConversionReport:
    """Return the counts of several conversions between the same formats."""
    first = reports[0]
    skipped: Counter[str] = Counter()
    for each in reports:
        skipped.update(each.skipped)
    return ConversionReport(
        first.source_format, first.target_format, sum(each.read for each in reports),
        sum(each.written for each in reports), sum(each.replaced for each in reports),
        dict(skipped), _sum([each.source_contents for each in reports]),
        _sum([each.target_contents for each in reports]),
    )  # fmt: skip


def _sum(counts: Sequence[Counts | None]) -> Counts | None:
    there = [each for each in counts if each is not None]
    if not there:
        return None
    return Counts(*(sum(getattr(each, one.name) for each in there) for one in fields(Counts)))

"""`ffrecord pack FOLDER OUT.ffr`: pack a folder into one archive."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict

from ffrecord.archive.names import json_facts
from ffrecord.archive.pack import PackReport, pack_folder, packing_bar
from ffrecord.cli.common import describe_counts, shows_progress, warn_of_missing_unit
from ffrecord.terminal import EXIT_USAGE, complain, printable
from ffrecord.text import for_shell, there_already


def run(options: argparse.Namespace) -> int:
    # The library replaces an existing file, as the original did. A mistyped command must not.
    if os.path.isfile(options.out) and not options.force and options.shard_size is None:
        raise there_already(options.out)
    warn_of_missing_unit(options.shard_size)
    try:
        report = _pack(options)
    except ValueError as error:  # the shard size makes too many shards
        complain(for_shell(error))
        return EXIT_USAGE
    if options.json:
        print(json.dumps({**json_facts("out", options.out), **asdict(report)}, indent=2))
    else:
        print(printable(f"{options.out}: {describe_counts(report, report.shards)}"))
    return 0


def _pack(options: argparse.Namespace) -> PackReport:
    with packing_bar(shown=shows_progress(options.no_progress)) as progress:
        return pack_folder(
            options.folder,
            options.out,
            jobs=options.jobs,
            dereference=options.dereference,
            exclude=options.exclude,
            progress=progress,
            legacy_index=not options.no_legacy_index,
            ignore_changed=options.ignore_changed,
            shard_size=options.shard_size,
        )

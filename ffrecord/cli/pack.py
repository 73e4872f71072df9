"""`ffrecord pack FOLDER OUT.ffr`: pack a folder into one archive, or by a plan."""

from __future__ import annotations

import argparse
import errno
import os
import shlex

from ffrecord.archive.pack import PackReport, pack_folder, packing_bar
from ffrecord.cli import plans
from ffrecord.cli.common import refuse_dash, shows_progress
from ffrecord.cli.plans import print_report
from ffrecord.errors import FFRecordError
from ffrecord.remote.urls import shown
from ffrecord.terminal import EXIT_USAGE, complain
from ffrecord.text import for_shell

PLANNED = (
    "dereference", "exclude", "shard_size", "align", "ignore_changed", "no_legacy_index", "force",
)  # fmt: skip
"""Options that are part of a plan when it is made."""


def run(options: argparse.Namespace) -> int:
    _check_arguments(options)
    if options.folder is not None:
        _refuse_swapped(options)
    try:
        if any(each is not None for each in _steps(options)):
            return plans.run(options)
        report = _pack(options)
    except FFRecordError:
        raise
    except ValueError as error:  # the shard size makes too many shards
        complain(for_shell(error))
        return EXIT_USAGE
    print_report(shown(options.out), report, as_json=options.json)
    return 0


def _steps(options: argparse.Namespace) -> tuple[object, ...]:
    return options.plan, options.task, options.commit, options.status


def _check_arguments(options: argparse.Namespace) -> None:
    """End with an error unless FOLDER and OUT are given, or a step that has its own arguments."""
    given = [each for each in (options.folder, options.out) if each is not None]
    steps = [each for each in _steps(options) if each is not None]
    if len(steps) > 1:
        options.parser.error("--plan, --task, --commit and --status cannot be combined")
    if steps and options.plan is None:
        _refuse_planned_options(options)
        if given and options.task is not None and len(options.task) == 1:
            example = f"--task {options.task[0]} {given[0]}"
            options.parser.error(f"the number and the plan of --task belong together: {example}")
        if given:
            options.parser.error(f"unrecognized arguments: {' '.join(given)}; the plan names them")
    elif len(given) < 2:
        missing = ["FOLDER", "OUT"][len(given) :]
        options.parser.error(f"the following arguments are required: {', '.join(missing)}")
    if options.out is not None:
        refuse_dash(options, options.out)
        is_new_folder = options.out.endswith("/") and not os.path.isdir(options.out)
        if is_new_folder and options.shard_size is None:
            what = f"{options.out} ends with a slash, but an archive without --shard-size is a file"
            options.parser.error(f"{what}; leave the slash out")


def _refuse_planned_options(options: argparse.Namespace) -> None:
    """End with an error if a step after --plan has an option that only --plan takes."""
    for name in PLANNED:
        value = getattr(options, name)
        if value is not None and value is not False and value != []:
            flag = "--" + name.replace("_", "-")
            step = next(
                each for each in ("task", "commit", "status") if getattr(options, each) is not None
            )
            options.parser.error(f"--{step} does not take {flag}; make a new plan, with {flag}")


def _refuse_swapped(options: argparse.Namespace) -> None:
    """Raise an error if OUT is the folder to pack, and FOLDER the archive to write."""
    folder, out = options.folder, options.out
    if os.path.isdir(folder) or not os.path.isdir(out):
        return
    if options.shard_size is not None and not os.listdir(out):
        return  # a good place for shards; only the folder is wrong
    is_there = os.path.exists(folder)
    code = errno.ENOTDIR if is_there else errno.ENOENT
    what = f"{'not a folder' if is_there else os.strerror(code)}, but {out} is a folder"
    how = f"ffrecord pack {shlex.join([out, folder])}"
    raise OSError(code, f"{what}; the folder to pack comes first: `{how}`", folder)


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
            align=options.align,
            # By default the library replaces a file, as the original did. A typo must not do that.
            overwrite=options.force,
        )

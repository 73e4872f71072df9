"""Arguments, help texts and examples of every command of `ffrecord`.

The work of each command is in its own module, which is imported only when the command runs.
`--help`, a mistyped word and shell completion therefore start fast. This module must not import
numpy, and may import `ffrecord_fuse` for `mount` only.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable
from itertools import groupby
from typing import NamedTuple

from ffrecord.terminal import Parser
from ffrecord.text import counted, parse_size
from ffrecord.version import __version__

FORMATS = (
    "records", "packed", "dataset", "folder", "tar", "tfrecord", "recordio", "recordio-go", "bag",
    "bag-single", "granular", "hdf5",
)  # fmt: skip
CODECS = ("none", "snappy", "gzip")  # compressions of RecordIO
SHELLS = ("bash", "zsh", "fish")
ALIGNMENT = 512  # the only one; equal to the constant in `format.padding`, which loads slowly
CACHE_ACTIONS = ("ls", "rm", "verify")
COLOURS = ("auto", "always", "never")
ARCHIVE = "packed folder, or the folder of its shards; a path or a URL"
SOURCES_AND_TARGET = "SRC, DST"
TASK_AND_PLAN = "K, PLAN"

MAKE, LOOK, CHECK = "make archives", "look inside", "check and repair"
SERVE, MOVE, SET_UP = "serve to programs", "move data", "set up"

OTHER_COMMANDS = {
    "list": "ls", "dir": "ls", "t": "ls", "unpack": "extract", "x": "extract",
    "create": "pack", "c": "pack", "add": "pack", "test": "verify", "check": "verify",
    "repair": "salvage", "recover": "salvage", "show": "view", "browse": "view",
    "help": "--help", "version": "--version",
}  # fmt: skip
"""Names of commands in tar, zip, 7z and similar programs -> our commands, for hints."""

SMALLEST_PLAIN_SIZE = 1_000_000
"""Smallest size, in bytes, that needs no unit. `--shard-size 10` most likely means 10GB, and would
make one shard for each file."""


class Command(NamedTuple):
    """One subcommand. `group` is its heading in `ffrecord --help`.

    `more_paths` names the argument that takes paths after options, too.
    """

    group: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    examples: tuple[str, ...]
    more_paths: str | None = None
    add_help: bool = True


def make_parser(words: Collection[str] | None = None) -> argparse.ArgumentParser:
    """Return a parser of all commands. It stores the name of the command in `command`.

    If `words` (the command line) is given, only the commands that occur in it get their arguments:
    adding the arguments of every command takes longer than some commands take to run.
    """
    parser = Parser(
        prog="ffrecord",
        description="Pack folders into single files, on a disk or in a bucket. List, view, check, "
        "extract and mount such files.",
        epilog="`ffrecord COMMAND --help` shows the command's options and examples. Most commands "
        "also take URLs, such as s3://bucket/photos.ffr.",
        formatter_class=_GroupedHelpFormatter,
    )
    parser.other_names = OTHER_COMMANDS
    parser.add_argument("-V", "--version", action="version", version=f"ffrecord {__version__}")
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", required=True
    )
    for name, command in COMMANDS.items():
        added = commands.add_parser(
            name, help=command.help, description=sentence(command.help),
            epilog=examples_text(command.examples), add_help=command.add_help,
            formatter_class=_HelpFormatter,
        )  # fmt: skip
        if words is None or name in words:
            command.add_arguments(added)
        added.set_defaults(parser=added)  # for `options.parser.error` in the command
    return parser


class _GroupedHelpFormatter(argparse.HelpFormatter):
    """Formatter that lists the commands below the headings of their groups.

    argparse itself can only list all commands in one section.
    """

    def add_arguments(self, actions: Iterable[argparse.Action]) -> None:
        for action in actions:
            if not isinstance(action, argparse._SubParsersAction):
                self.add_argument(action)
                continue
            listed = action._get_subactions()
            for heading, commands in groupby(listed, lambda each: COMMANDS[each.dest].group):
                self.start_section(heading)
                super().add_arguments(commands)
                self.end_section()


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        # argparse can only repeat one name: SRC [SRC ...].
        if action.metavar == SOURCES_AND_TARGET:
            return "SRC [SRC ...] DST"
        if action.metavar == TASK_AND_PLAN:
            return "[K] PLAN"
        return super()._format_args(action, default_metavar)


def sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def examples_text(examples: tuple[str, ...]) -> str:
    return "\n".join(["examples:", *(f"  {line}" for line in examples)])


# ---- arguments that several commands share -------------------------------------------------


def _add_flag(parser: argparse.ArgumentParser, *names: str, what: str) -> None:
    parser.add_argument(*names, action="store_true", help=what)


def _add_json(
    parser: argparse.ArgumentParser, what: str = "print one JSON object, for scripts"
) -> None:
    _add_flag(parser, "--json", what=what)


def _add_unfinished(parser: argparse.ArgumentParser) -> None:
    what = "read a FILE that is still being written: the records flushed so far by a writer "
    what += "with resumable=True"
    _add_flag(parser, "--unfinished", what=what)


def _add_no_progress(parser: argparse.ArgumentParser) -> None:
    what = "show no progress bar (if standard error is not a terminal, there is none anyway)"
    _add_flag(parser, "--no-progress", what=what)


def _add_align(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--align", type=_alignment, choices=(ALIGNMENT,), metavar=str(ALIGNMENT),
        help="let every file in the archive begin at a multiple of 512 bytes, so that the kernel "
        "can serve it in place",
    )  # fmt: skip


def _add_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cache", metavar="DIR",
        help="keep what is read from a URL in this folder (default: $FFRECORD_CACHE)",
    )  # fmt: skip
    parser.add_argument("--cache-size", type=_size, metavar="SIZE",
        help="most bytes of this folder, such as 100GB (default: $FFRECORD_CACHE_SIZE, or half of "
        "the free space)",
    )  # fmt: skip


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return number


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from None


def _size(text: str) -> int:
    try:
        size = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    number = text.strip()
    if size < SMALLEST_PLAIN_SIZE and number[-1:].isdecimal():
        means = f"{number} means {counted(size, 'byte')}"
        raise argparse.ArgumentTypeError(
            f"{means}; write {number}MB or {number}GB, or {number}B if you do mean bytes"
        )
    return size


def _alignment(text: str) -> int:
    if text.strip() != str(ALIGNMENT):
        raise argparse.ArgumentTypeError(
            f"must be {ALIGNMENT}, not {text!r}; without this option there is no padding"
        )
    return ALIGNMENT


def _field_type(text: str) -> tuple[str, str]:
    field, equals, type_ = text.partition("=")
    if not (field and equals and type_):
        raise argparse.ArgumentTypeError(f"must be FIELD=TYPE, not {text!r}")
    return field, type_


# ---- the commands --------------------------------------------------------------------------


def _pack(parser: argparse.ArgumentParser) -> None:
    # --task, --commit and --status take neither FOLDER nor OUT: the plan has them.
    parser.usage = "%(prog)s [options] FOLDER OUT"
    parser.add_argument("folder", nargs="?", metavar="FOLDER", help="folder to pack")
    parser.add_argument("out", nargs="?", metavar="OUT",
        help="archive to write, or its URL; with --shard-size, a new folder for the shards",
    )  # fmt: skip
    parser.add_argument("--jobs", type=_count, metavar="N",
        help="number of files to read at once (default: 8)")  # fmt: skip
    what = "follow symlinks: pack the files and folders that they point to"
    _add_flag(parser, "-L", "--dereference", what=what)
    parser.add_argument("--exclude", action="append", default=[], metavar="PATTERN",
        help="leave out names such as *.tmp or paths such as logs/*; may be repeated")  # fmt: skip
    parser.add_argument("--shard-size", type=_size, metavar="SIZE",
        help="split the archive into files of about this size, such as 10GB, with one index",
    )  # fmt: skip
    _add_align(parser)
    what = "warn, instead of failing, if files change or disappear while they are packed"
    _add_flag(parser, "--ignore-changed", what=what)
    what = "leave out the second index, which the original FFRecord reads"
    _add_flag(parser, "--no-legacy-index", what=what)
    what = "replace the file OUT if it exists, once the new archive is complete"
    _add_flag(parser, "--force", what=what)
    parser.add_argument("--plan", metavar="PLAN",
        help="write no archive, but a plan for many machines: one task for each shard")  # fmt: skip
    parser.add_argument("--task", nargs="+", metavar=TASK_AND_PLAN,
        help="write shard K of a plan; K/N: every Nth shard from K on; without K: the shard "
        "$SLURM_ARRAY_TASK_ID",
    )  # fmt: skip
    parser.add_argument("--commit", metavar="PLAN",
        help="publish the shards of a plan with their index, when all tasks are done")  # fmt: skip
    parser.add_argument("--status", metavar="PLAN",
        help="list the missing tasks of a plan, and files that cancelled jobs left")  # fmt: skip
    _add_json(parser)
    _add_no_progress(parser)


def _ls(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("archive", metavar="ARCHIVE", help=ARCHIVE)
    parser.add_argument("path", nargs="*", default=[], metavar="PATH",
        help="files or folders in the archive (default: its top folder)")  # fmt: skip
    # -h is --human-readable, as in ls.
    parser.add_argument("--help", action="help", help="show this help message and exit")
    assert isinstance(parser, Parser)
    parser.other_names = {"--long": "-l"}
    _add_flag(parser, "-l", what="also show mode, links, owner, size and time")
    _add_flag(parser, "-h", "--human-readable", what="with -l: show sizes as 1.2 MB")
    _add_flag(parser, "-R", "--recursive", what="also list the folders inside folders")
    _add_flag(parser, "-p", what="add a slash to the names of folders")
    parser.add_argument("-a", "-A", "-1", dest="as_always", action="store_true",
        help="accepted as in ls, without effect: all names are always shown, one on each line",
    )  # fmt: skip
    _add_flag(parser, "--zero", what="end lines with NUL, and never quote names")
    parser.add_argument("--color", choices=COLOURS, default="auto", metavar="WHEN",
        help="when to colour names: auto (on a terminal, the default), always or never",
    )  # fmt: skip
    _add_json(parser, "print one JSON object on each line, for scripts")
    _add_cache(parser)


def _cat(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE",
        help="packed folder, folder of its shards, or record file; a path or a URL")  # fmt: skip
    parser.add_argument("path", nargs="*", default=[], metavar="PATH",
        help="files in the packed folder")  # fmt: skip
    parser.add_argument("--record", type=_whole_number, metavar="N",
        help="number of the record to write; the first is 0, the last is -1")  # fmt: skip
    _add_unfinished(parser)
    _add_cache(parser)


def _extract(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("archive", metavar="ARCHIVE", help=ARCHIVE)
    parser.add_argument("path", nargs="*", default=[], metavar="PATH",
        help="files or folders in the archive (default: everything)")  # fmt: skip
    parser.add_argument("-C", "--directory", default=".", metavar="DEST",
        help="folder to extract into, created if missing (default: the current folder)",
    )  # fmt: skip
    what = "turn blocks of zeros into holes, which use no disk space"
    _add_flag(parser, "-S", "--sparse", what=what)
    _add_flag(parser, "--force", "--overwrite", what="replace files that already exist")
    _add_cache(parser)
    _add_json(parser)
    _add_no_progress(parser)


def _convert(parser: argparse.ArgumentParser) -> None:
    assert parser.description is not None
    # argparse would print "SRC… DST [SRC… DST ...]".
    parser.usage = "%(prog)s [options] SRC [SRC ...] DST"
    names = [*FORMATS, "webdataset"]
    parser.description += f"\nFormats:\n  {', '.join(names[:7])},\n  {', '.join(names[7:])}"
    parser.add_argument("paths", nargs="+", metavar=SOURCES_AND_TARGET,
        help="one or more files or folders to convert, then the file or folder to write; URLs too",
    )  # fmt: skip
    parser.add_argument("--from", dest="source", choices=names, metavar="FORMAT",
        help="format of SRC (default: found from its name and content)")  # fmt: skip
    parser.add_argument("--to", dest="target", choices=names, metavar="FORMAT",
        help="format of DST (default: found from its name)")  # fmt: skip
    parser.add_argument("--field", metavar="NAME",
        help="convert only this field of SRC; if SRC has records, the name of the field that they "
        "become (default: data)",
    )  # fmt: skip
    parser.add_argument("--type", action="append", default=[], type=_field_type,
        metavar="FIELD=TYPE",
        help="type of a field made from files or records; may be repeated")  # fmt: skip
    what = "allow files to become records, which have no names"
    _add_flag(parser, "--drop-names", what=what)
    parser.add_argument("--codec", choices=CODECS, metavar="CODEC",
        help="compression of RecordIO: none, snappy or gzip")  # fmt: skip
    parser.add_argument("--shard-size", type=_size, metavar="SIZE",
        help="write a folder of tar files, or of shards of a packed folder, of about this size, "
        "such as 1GB",
    )  # fmt: skip
    what = "write a folder with one shard for each SRC, for records and datasets"
    _add_flag(parser, "--shard-per-source", what=what)
    _add_align(parser)
    what = "replace DST if it is an existing file; folders are never replaced"
    _add_flag(parser, "--force", what=what)
    _add_cache(parser)
    _add_json(parser)
    _add_no_progress(parser)


def _info(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", metavar="FILE",
        help="record file, packed folder, folder of its shards, or dataset; a path or a URL",
    )  # fmt: skip
    parser.add_argument("--system", nargs="?", const=".", metavar="PATH",
        help="describe this machine instead, and the file system of PATH (default: the current "
        "folder)",
    )  # fmt: skip
    _add_unfinished(parser)
    _add_cache(parser)
    _add_json(parser)


def _verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="+", metavar="FILE",
        help="record files, packed folders, folders of shards, or datasets; paths or URLs",
    )  # fmt: skip
    _add_cache(parser)
    _add_json(parser)
    _add_no_progress(parser)


def _warm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="PATH",
        help="record file, packed folder, folder of shards, or dataset")  # fmt: skip
    parser.add_argument("path", nargs="*", default=[], metavar="NAME",
        help="files or folders in the packed folder (default: everything)")  # fmt: skip
    _add_json(parser)
    _add_no_progress(parser)


def _salvage(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("broken", metavar="BROKEN",
        help="damaged record file or packed folder, or .NAME.partial of a killed writer",
    )  # fmt: skip
    parser.add_argument("out", metavar="OUT",
        help="new file; a packed folder again if the index of BROKEN is undamaged")  # fmt: skip
    _add_flag(parser, "--force", what="replace OUT if it exists")
    _add_flag(parser, "-v", "--verbose", what="list every lost record, not only the first 20")
    _add_json(parser)
    _add_no_progress(parser)


def _mount(parser: argparse.ArgumentParser) -> None:
    from ffrecord_fuse.cli import add_arguments  # slow: it imports socket and subprocess

    add_arguments(parser)


def _umount(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("mountpoint", nargs="?", metavar="MOUNTPOINT",
        help="folder on which an archive is mounted")  # fmt: skip
    _add_flag(parser, "--list", what="list the mountpoints of all mounted archives")


def _view(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="PATH",
        help="packed folder, record file, folder of shards, dataset, or the URL of one",
    )  # fmt: skip
    parser.add_argument("--port", type=_port, default=0, metavar="N",
        help="port to listen on (default: a free one)")  # fmt: skip
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS",
        help="address to listen on (default: 127.0.0.1, for this machine only)")  # fmt: skip
    _add_flag(parser, "--open", what="open the page in the browser of this machine")


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 65535, not {text!r}")
    return int(text)


def _cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=CACHE_ACTIONS, metavar="ACTION",
        help="ls: list copies and unfinished uploads; rm: remove them; verify: check copies",
    )  # fmt: skip
    parser.add_argument(
        "url",
        nargs="*",
        default=[],
        metavar="URL",
        help="URLs of files, or of folders for everything in them (default for ls and verify: all)",
    )
    parser.add_argument("--cache", metavar="DIR",
        help="folder of the cache (default: $FFRECORD_CACHE)")  # fmt: skip
    _add_flag(parser, "--all", what="with rm: remove all copies and unfinished uploads")
    what = "with rm: abort all unfinished uploads of killed processes, and remove no copies"
    _add_flag(parser, "--unfinished", what=what)
    _add_json(parser)


def _completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL",
        help="bash, zsh or fish")  # fmt: skip


COMMANDS = {
    "pack": Command(
        MAKE, "pack a folder into one archive", _pack, (
            "ffrecord pack photos photos.ffr",
            "ffrecord pack photos photos.ffr --force    # replace the old archive",
            "ffrecord pack photos clean.ffr --exclude '*.tmp' --exclude 'logs/*'",
            "ffrecord pack photos shards --shard-size 10GB",
            "ffrecord pack photos s3://bucket/photos.ffr    # made in $TMPDIR, then uploaded",
            "ffrecord pack photos aligned.ffr --align 512    # the kernel can serve it in place",
            "ffrecord pack photos shared --shard-size 10GB --plan plan.json    # for a job array",
            "ffrecord pack --task 0 plan.json    # on any machine",
            "ffrecord pack --commit plan.json",
        ),
        more_paths="out",
    ),
    "convert": Command(
        MAKE, "convert files from one format to another", _convert, (
            "ffrecord convert photos.ffr photos.tar",
            "ffrecord convert train.ffr train.tfrecord",
            "ffrecord convert photos.tar s3://bucket/converted.ffr",
            "ffrecord convert photos.ffr tars --to webdataset --shard-size 1GB",
            "ffrecord convert --align 512 photos.ffr photos-aligned.ffr",
        ),
        more_paths="paths",
    ),
    "info": Command(
        LOOK, "describe a file: counts, sizes, a histogram and the fingerprint", _info, (
            "ffrecord info photos.ffr",
            "ffrecord info train       # the fields of a typed dataset",
            "ffrecord info --json train.ffr",
            "ffrecord info --system    # AIO, O_DIRECT, FUSE …, and missing features",
            "ffrecord info --unfinished train.ffr    # while it is being written",
        ),
    ),
    "ls": Command(
        LOOK, "list the files of a packed folder", _ls, (
            "ffrecord ls photos.ffr",
            "ffrecord ls -lh photos.ffr cats",
            "ffrecord ls -R --json photos.ffr > listing.jsonl",
            "ffrecord ls s3://bucket/photos.ffr cats",
        ),
        more_paths="path", add_help=False,
    ),
    "cat": Command(
        LOOK, "write files of a packed folder, or one record, to standard output", _cat, (
            "ffrecord cat photos.ffr cats/0007.jpg > 0007.jpg",
            "ffrecord cat train.ffr --record 3 | od -c",
        ),
        more_paths="path",
    ),
    "view": Command(
        LOOK, "show a file in the browser: folders, pictures, records, datasets", _view, (
            "ffrecord view photos.ffr --open",
            "ffrecord view train    # the fields of a typed dataset, with histograms",
            "ffrecord view train.ffr    # records, with previews by their content",
        ),
    ),
    "verify": Command(
        CHECK, "check every checksum; exit with 1 if one is wrong", _verify, (
            "ffrecord verify train.ffr photos.ffr",
            "ffrecord verify --json train.ffr > report.json",
        ),
        more_paths="file",
    ),
    "salvage": Command(
        CHECK, "copy the undamaged records of a file; exit with 1 if some are lost", _salvage, (
            "ffrecord salvage broken.ffr whole.ffr",
            "ffrecord salvage --json broken.ffr again.ffr > lost.json",
        ),
    ),
    "mount": Command(
        SERVE, "mount a packed folder as a directory, read-only or with an overlay", _mount, (
            "ffrecord mount photos.ffr mounted",
            "ffrecord mount photos.ffr elsewhere -o umask=022,noexec --log mount.log",
            "ffrecord mount photos.ffr served --backend auto    # by the kernel, if possible",
            "ffrecord mount s3://bucket/photos.ffr remote --cache cached",
        ),
    ),
    "umount": Command(
        SERVE, "unmount an archive, even if it is busy or its daemon has died", _umount,
        ("ffrecord umount mounted", "ffrecord umount --list"),
    ),
    "extract": Command(
        MOVE, "extract the files of an archive into a folder", _extract, (
            "ffrecord extract photos.ffr -C restored",
            "ffrecord extract photos.ffr -C restored --force    # replace existing files",
            "ffrecord extract photos.ffr -C some cats/0007.jpg",
        ),
        more_paths="path",
    ),
    "warm": Command(
        MOVE, "read a file into the page cache, so that later reads need no disk", _warm, (
            "ffrecord warm train.ffr",
            "ffrecord warm photos.ffr cats    # only a part of it",
        ),
        more_paths="path",
    ),
    "cache": Command(
        MOVE, "list, remove or check the local copies of remote files", _cache, (
            "ffrecord cache ls --cache cached",
            "ffrecord cache rm s3://bucket/photos.ffr --cache cached",
            "ffrecord cache rm --all --cache cached",
            "ffrecord cache rm --unfinished    # uploads of killed processes",
            "ffrecord cache verify --cache cached",
        ),
        more_paths="url",
    ),
    "completion": Command(
        SET_UP, "print a script that adds tab completion of ffrecord to a shell", _completion, (
            "source <(ffrecord completion bash)    # in ~/.bashrc",
            "ffrecord completion zsh > ~/.zfunc/_ffrecord    # a folder in $fpath",
            "ffrecord completion fish > ~/.config/fish/completions/ffrecord.fish",
        ),
    ),
}  # fmt: skip

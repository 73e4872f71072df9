"""The `ffrecord` command line: every command with its arguments and its examples.

What they do is in a module each, which is imported when it is asked for: `--help`, a wrong word
and the completion of a shell need none of what those import. Nothing here may import numpy, nor
`ffrecord_fuse` for other commands than `mount`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from typing import NamedTuple

from ffrecord.terminal import Parser
from ffrecord.text import parse_size
from ffrecord.version import __version__

FORMATS = (
    "records", "packed", "dataset", "folder", "tar", "tfrecord", "recordio", "recordio-go", "bag",
    "bag-single", "granular", "hdf5",
)  # fmt: skip
CODECS = ("none", "snappy", "gzip")  # of RecordIO
SHELLS = ("bash", "zsh", "fish")
COLOURS = ("auto", "always", "never")
ARCHIVE = "a packed folder, or the folder of its shards"


class Command(NamedTuple):
    """One subcommand. `more_paths` is the argument that takes paths after options, too."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    examples: tuple[str, ...]
    more_paths: str | None = None
    add_help: bool = True


def make_parser(words: Collection[str] | None = None) -> argparse.ArgumentParser:
    """With all commands; what is parsed has the name of one as `command`.

    Those that are not among the words of the command line, if that is known, have no arguments:
    making them all takes longer than some commands do.
    """
    parser = Parser(
        prog="ffrecord",
        description="Pack folders; look into, check and take apart FFRecord files.",
        epilog="`ffrecord COMMAND --help` has its options, and examples.",
    )
    parser.add_argument("--version", action="version", version=f"ffrecord {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    for name, command in COMMANDS.items():
        added = commands.add_parser(
            name, help=command.help, description=sentence(command.help),
            epilog=examples_text(command.examples), add_help=command.add_help,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        if words is None or name in words:
            command.add_arguments(added)
        added.set_defaults(parser=added)  # to complain of what it cannot see itself
    return parser


def sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def examples_text(examples: tuple[str, ...]) -> str:
    return "\n".join(["examples:", *(f"  {line}" for line in examples)])


# ---- what commands have in common ----------------------------------------------------------


def _add_flag(parser: argparse.ArgumentParser, *names: str, what: str) -> None:
    parser.add_argument(*names, action="store_true", help=what)


def _add_json(parser: argparse.ArgumentParser, what: str = "one JSON object, for scripts") -> None:
    _add_flag(parser, "--json", what=what)


def _add_unfinished(parser: argparse.ArgumentParser) -> None:
    what = "FILE is being written: read what its resumable writer has flushed so far"
    _add_flag(parser, "--unfinished", what=what)


def _add_no_progress(parser: argparse.ArgumentParser) -> None:
    what = "no progress bar; without a terminal there is none anyway"
    _add_flag(parser, "--no-progress", what=what)


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, not {text!r}")
    return number


def _size(text: str) -> str:
    """As it is written, if it is one: whether it has a unit counts too."""
    try:
        parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _field_type(text: str) -> tuple[str, str]:
    field, equals, type_ = text.partition("=")
    if not (field and equals and type_):
        raise argparse.ArgumentTypeError(f"must be FIELD=TYPE, not {text!r}")
    return field, type_


# ---- the commands --------------------------------------------------------------------------


def _pack(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="what to pack")
    parser.add_argument("out", metavar="OUT", help="the archive; with --shard-size a new folder")
    parser.add_argument("--jobs", type=_count, metavar="N", help="files to read at once (8)")
    _add_flag(parser, "-L", "--dereference", what="pack what symlinks point to")
    parser.add_argument("--exclude", action="append", default=[], metavar="PATTERN",
        help="leave out names like *.tmp or paths like logs/*; may be repeated")  # fmt: skip
    parser.add_argument("--shard-size", type=_size, metavar="SIZE",
        help="several files of about this size, such as 10GB, and one index")  # fmt: skip
    what = "only warn of files that change or go away meanwhile"
    _add_flag(parser, "--ignore-changed", what=what)
    what = "leave out the index that the original FFRecord reads"
    _add_flag(parser, "--no-legacy-index", what=what)
    _add_flag(parser, "--force", what="replace OUT if it is there, when the new one is whole")
    _add_json(parser)
    _add_no_progress(parser)


def _ls(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("archive", metavar="ARCHIVE", help=ARCHIVE)
    parser.add_argument("path", nargs="*", default=[], metavar="PATH",
        help="files or folders in it; the whole if left out")  # fmt: skip
    parser.add_argument("--help", action="help", help="show this and exit")  # -h is ls's own
    _add_flag(parser, "-l", what="mode, links, owner, size and time too")
    _add_flag(parser, "-h", "--human-readable", what="with -l: sizes like 1.2 MB")
    _add_flag(parser, "-R", "--recursive", what="folders in folders too")
    _add_flag(parser, "-p", what="a slash behind the names of folders")
    parser.add_argument("-a", "-A", "-1", dest="as_always", action="store_true",
        help="taken for ls's sake: all names are shown, one a line")  # fmt: skip
    _add_flag(parser, "--zero", what="end lines with NUL; names are never quoted then")
    parser.add_argument("--color", choices=COLOURS, default="auto", metavar="WHEN",
        help="colours by kind: auto (on a terminal), always or never")  # fmt: skip
    _add_json(parser, "one JSON object a line, for scripts")


def _cat(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE",
        help="a packed folder or a record file, or a folder of shards")  # fmt: skip
    what = parser.add_mutually_exclusive_group()
    what.add_argument("path", nargs="*", default=[], metavar="PATH",
        help="files in a packed folder")  # fmt: skip
    what.add_argument("--record", type=int, metavar="N", help="a record; -1 is the last")
    _add_unfinished(parser)


def _extract(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("archive", metavar="ARCHIVE", help=ARCHIVE)
    parser.add_argument("path", nargs="*", default=[], metavar="PATH",
        help="files or folders in it; everything if left out")  # fmt: skip
    parser.add_argument("-C", "--directory", default=".", metavar="DEST",
        help="where to, made if it is not there; the current folder if left out")  # fmt: skip
    _add_flag(parser, "-S", "--sparse", what="make holes of zeros, which take no room")
    _add_flag(parser, "--force", "--overwrite", what="replace files that are there")
    _add_json(parser)
    _add_no_progress(parser)


def _convert(parser: argparse.ArgumentParser) -> None:
    assert parser.description is not None
    names = [*FORMATS, "webdataset"]
    parser.description += f"\nThe formats:\n  {', '.join(names[:7])},\n  {', '.join(names[7:])}"
    parser.add_argument("paths", nargs="+", metavar="SRC… DST",
        help="what to convert, and where to")  # fmt: skip
    parser.add_argument("--from", dest="source", choices=names, metavar="FORMAT",
        help="if SRC does not tell it")  # fmt: skip
    parser.add_argument("--to", dest="target", choices=names, metavar="FORMAT",
        help="if the name does not tell it")  # fmt: skip
    parser.add_argument("--field", metavar="NAME", help="the field to take, or to make of records")
    parser.add_argument("--type", action="append", default=[], type=_field_type,
        metavar="FIELD=TYPE",
        help="of a field that is made of files or records; may be repeated")  # fmt: skip
    _add_flag(parser, "--drop-names", what="files may become records, which have no names")
    parser.add_argument("--codec", choices=CODECS, metavar="CODEC",
        help="of RecordIO: none, snappy or gzip")  # fmt: skip
    parser.add_argument("--shard-size", type=_size, metavar="SIZE",
        help="a folder of tars of about this size, such as 1GB")  # fmt: skip
    _add_flag(parser, "--force", what="replace a file that is there; a folder never is")
    _add_json(parser)
    _add_no_progress(parser)


def _info(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", metavar="FILE",
        help="a record file, a packed folder, a folder of shards, or a dataset")  # fmt: skip
    parser.add_argument("--system", nargs="?", const=".", metavar="PATH",
        help="instead: what this machine has, and the file system of PATH (the current folder)",
    )  # fmt: skip
    _add_unfinished(parser)
    _add_json(parser)


def _verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="+", metavar="FILE",
        help="record files, packed folders, folders of shards, datasets")  # fmt: skip
    _add_json(parser)
    _add_no_progress(parser)


def _salvage(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("broken", metavar="BROKEN",
        help="a damaged record file or packed folder, or a writer's .NAME.partial")  # fmt: skip
    parser.add_argument("out", metavar="OUT",
        help="the new file, of the same kind if a packed folder's index is whole")  # fmt: skip
    _add_flag(parser, "--force", what="replace OUT if it is there")
    _add_flag(parser, "-v", "--verbose", what="name every lost record")
    _add_json(parser)
    _add_no_progress(parser)


def _mount(parser: argparse.ArgumentParser) -> None:
    from ffrecord_fuse.cli import add_arguments  # which imports sockets, processes and more

    add_arguments(parser)


def _umount(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("mountpoint", nargs="?", metavar="MOUNTPOINT", help="where it is mounted")
    _add_flag(parser, "--list", what="show where archives are mounted")


def _completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


COMMANDS = {
    "pack": Command(
        "a whole folder into one archive", _pack, (
            "ffrecord pack photos photos.ffr",
            "ffrecord pack photos photos.ffr --force    # in the place of the old one",
            "ffrecord pack photos clean.ffr --exclude '*.tmp' --exclude 'logs/*'",
            "ffrecord pack photos shards --shard-size 10GB",
        ),
    ),
    "ls": Command(
        "list what is in a packed folder", _ls, (
            "ffrecord ls photos.ffr",
            "ffrecord ls -lh photos.ffr cats",
            "ffrecord ls -R --json photos.ffr > listing.jsonl",
        ),
        more_paths="path", add_help=False,
    ),
    "cat": Command(
        "write files, or a record, to standard output", _cat, (
            "ffrecord cat photos.ffr cats/0007.jpg > 0007.jpg",
            "ffrecord cat train.ffr --record 3 | od -c",
        ),
        more_paths="path",
    ),
    "extract": Command(
        "an archive's files back into a folder", _extract, (
            "ffrecord extract photos.ffr -C restored",
            "ffrecord extract photos.ffr -C restored --force    # over what is there",
            "ffrecord extract photos.ffr -C some cats/0007.jpg",
        ),
        more_paths="path",
    ),
    "convert": Command(
        "from one format to another", _convert, (
            "ffrecord convert photos.ffr photos.tar",
            "ffrecord convert train.ffr train.tfrecord",
            "ffrecord convert photos.ffr tars --to webdataset --shard-size 1GB",
        ),
        more_paths="paths",
    ),
    "info": Command(
        "counts, sizes, a histogram, the fingerprint", _info, (
            "ffrecord info photos.ffr",
            "ffrecord info train       # a typed dataset: its fields",
            "ffrecord info --json train.ffr",
            "ffrecord info --system    # AIO, O_DIRECT, FUSE …, and what is missing",
            "ffrecord info --unfinished train.ffr    # while it is written",
        ),
    ),
    "verify": Command(
        "check every checksum; exit 1 if one is wrong", _verify, (
            "ffrecord verify train.ffr photos.ffr",
            "ffrecord verify --json train.ffr > report.json",
        ),
        more_paths="file",
    ),
    "salvage": Command(
        "the whole records of a damaged file; exit 1 if some are lost", _salvage, (
            "ffrecord salvage broken.ffr whole.ffr",
            "ffrecord salvage --json broken.ffr again.ffr > lost.json",
        ),
    ),
    "mount": Command(
        "a packed folder as a read-only directory", _mount, (
            "ffrecord mount photos.ffr mounted",
            "ffrecord mount photos.ffr elsewhere -o allow_other,umask=022 --log mount.log",
        ),
    ),
    "umount": Command(
        "undo a mount, also a busy or a dead one", _umount,
        ("ffrecord umount mounted", "ffrecord umount --list"),
    ),
    "completion": Command(
        "what makes a shell complete this command's words", _completion, (
            "source <(ffrecord completion bash)    # in ~/.bashrc",
            "ffrecord completion zsh > ~/.zfunc/_ffrecord    # a folder of $fpath",
            "ffrecord completion fish > ~/.config/fish/completions/ffrecord.fish",
        ),
    ),
}  # fmt: skip

"""Compare our API with the API of the original FFRecord.

The tables list names, the order and defaults of arguments, and exceptions of the original's last
version. Programs written for the original rely on these. Change a row only if it is wrong.
docs/migrating.md explains every exception that differs here.
"""

from __future__ import annotations

import importlib
import inspect
import operator
import pickle
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import ffrecord
from ffrecord import FileReader, FileWriter, PackedFolder, pack_folder
from ffrecord.package import MAGIC_BYTES, dump_files, dump_structure
from ffrecord.utils import dump
from tests.support import handmade, trees

EMPTY = inspect.Parameter.empty

# ---- names, arguments and defaults ---------------------------------------------------------------

MODULES = {
    "ffrecord": "FileReader FileWriter PackedFolder checkFsAlign pack_folder __version__"
    " fileio package utils",
    "ffrecord.fileio": "FileReader FileWriter checkFsAlign",
    "ffrecord.package": "MAGIC_BYTES PackedFolder pack_folder dump_structure dump_files"
    " FileReader FileWriter",
    "ffrecord.utils": "dump FileWriter",
    "ffrecord.torch": "ConcatDataset DataLoader Dataset ReaderRegistry Subset",
    "ffrecord.torch.dataset": "ConcatDataset Dataset ReaderRegistry Subset FileReader",
    "ffrecord.torch.dataloader": "DataLoader SkipableSampler Dataset",
}

# Arguments that the original takes by position only are in capitals.
ARGUMENTS = {
    "ffrecord.checkFsAlign": "FD",
    "ffrecord.FileReader": "fname, check_data=True",
    "ffrecord.FileReader.read": "self, INDICES",
    "ffrecord.FileReader.read_one": "self, INDEX",
    "ffrecord.FileReader.validate": "self",
    "ffrecord.FileReader.get_offsets": "self, FILE_INDEX",
    "ffrecord.FileReader.get_checksums": "self, FILE_INDEX",
    "ffrecord.FileReader.close": "self",
    "ffrecord.FileWriter": "fname, n",
    "ffrecord.FileWriter.write_one": "self, DATA",
    "ffrecord.FileWriter.close": "self",
    "ffrecord.PackedFolder": "ffr_file, check_data=True",
    "ffrecord.PackedFolder.num_files": "self",
    "ffrecord.PackedFolder.read_one": "self, fname",
    "ffrecord.PackedFolder.read": "self, fnames",
    "ffrecord.PackedFolder.list": "self, path=None, list_file=True, list_dir=True, recursive=False",
    "ffrecord.PackedFolder.exists": "self, path",
    "ffrecord.PackedFolder.is_file": "self, path",
    "ffrecord.PackedFolder.is_dir": "self, path",
    "ffrecord.pack_folder": "folder, out_file, verbose=False",
    "ffrecord.package.dump_structure": "folder, structure, counter",
    "ffrecord.package.dump_files": "writer, prefix, structure, counter, verbose, n",
    "ffrecord.utils.dump": "dataset, fname, nfiles, verbose=False",
    "ffrecord.torch.ReaderRegistry.ffreaders": "self",
    "ffrecord.torch.Dataset": "fnames, check_data=True",
    "ffrecord.torch.Dataset.process": "self, indices, data",
    "ffrecord.torch.Subset": "dataset, indices",
    "ffrecord.torch.ConcatDataset": "datasets",
    "ffrecord.torch.ConcatDataset.cumsum": "sequence",
    "ffrecord.torch.DataLoader": "dataset, batch_size=1, shuffle=False, sampler=None,"
    " batch_sampler=None, num_workers=0, collate_fn=None, pin_memory=False, drop_last=False,"
    " timeout=0, worker_init_fn=None, generator=None, *, prefetch_factor=2,"
    " persistent_workers=False, skippable=True",
    "ffrecord.torch.DataLoader.set_step": "self, step",
    "ffrecord.torch.dataloader.SkipableSampler": "sampler",
    "ffrecord.torch.dataloader.SkipableSampler.set_step": "self, step",
}

ATTRIBUTES = {
    "FileReader": "n fnames check_data __enter__ __exit__",
    "FileWriter": "n count __enter__ __exit__",
    "PackedFolder": "reader structure",
}

OTHER_DEFAULTS = {
    # None is torch's default, and means the same as the original's.
    ("ffrecord.torch.DataLoader", "shuffle"): None,
    # None means 2, the original's default, with workers. Without workers, torch 2 refuses 2.
    ("ffrecord.torch.DataLoader", "prefetch_factor"): None,
}


def found(dotted: str) -> Any:
    """Import the module of a dotted name and return the named object."""
    if dotted.startswith("ffrecord.torch"):
        pytest.importorskip("torch")
    names = dotted.split(".")
    for end in range(len(names), 0, -1):
        try:
            module = importlib.import_module(".".join(names[:end]))
        except ModuleNotFoundError:
            continue
        return operator.attrgetter(".".join(names[end:]))(module) if names[end:] else module
    raise AssertionError(dotted)


@pytest.mark.parametrize(
    ("module", "name"),
    [(module, name) for module, names in MODULES.items() for name in names.split()],
)
def test_a_name_of_the_original_exists(module: str, name: str) -> None:
    assert getattr(found(module), name) is not None


@pytest.mark.parametrize("name", ["fileio", "package", "utils"])
def test_importing_the_package_makes_the_modules_of_the_original_available(name: str) -> None:
    code = f"import ffrecord; assert ffrecord.{name}.__name__ == 'ffrecord.{name}'"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert name in dir(ffrecord)


def test_importing_the_package_makes_ffrecord_torch_available() -> None:
    pytest.importorskip("torch")
    code = "import ffrecord; assert ffrecord.torch.Dataset.__module__.startswith('ffrecord.torch')"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_the_package_loads_none_of_its_modules() -> None:
    code = "import sys, ffrecord; dir(ffrecord); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = run.stdout.split()
    ours = {name for name in loaded if name.startswith("ffrecord.")}
    assert ours == {"ffrecord.errors", "ffrecord.version"}
    assert not {"numpy", "torch", "tqdm"} & set(loaded)


@pytest.mark.parametrize("name", ["FileReader", "FileWriter", "PackedFolder"])
def test_modules_needed_only_to_parse_a_size_are_not_loaded(name: str) -> None:
    code = f"import sys; from ffrecord import {name}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not {"fractions", "decimal"} & set(run.stdout.split())


def test_without_torch_the_package_has_no_torch_and_explains_why() -> None:
    code = """
import sys
sys.modules["torch"] = None
import ffrecord
assert not hasattr(ffrecord, "torch")
try:
    ffrecord.torch
except AttributeError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "pip install 'ffrecord[torch]'" in run.stdout


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_have_the_originals_names_order_and_defaults(name: str) -> None:
    due = inspect.signature(eval(f"lambda {ARGUMENTS[name]}: None")).parameters
    ours = parameters_of(found(name))
    by_position = [each for each in due.values() if each.kind is not each.KEYWORD_ONLY]
    for place, parameter in enumerate(by_position):
        ours_there = list(ours.values())[place]
        assert ours_there.kind is ours_there.POSITIONAL_OR_KEYWORD
        if not parameter.name.isupper():
            assert ours_there.name == parameter.name
    for parameter in due.values():
        if parameter.default is not EMPTY:
            default = OTHER_DEFAULTS.get((name, parameter.name), parameter.default)
            assert ours[parameter.name].default == default
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    for parameter in list(ours.values())[len(by_position) :]:
        assert parameter.default is not EMPTY or parameter.kind in variable


def parameters_of(function: Any) -> dict[str, inspect.Parameter]:
    """Return parameters by name. For a loader: torch's parameters, then ours."""
    parameters = dict(inspect.signature(function).parameters)
    if "args" in parameters:
        theirs = dict(inspect.signature(found("torch.utils.data.DataLoader")).parameters)
        # torch has this argument before `generator`. Our loader also accepts a generator there.
        del theirs["multiprocessing_context"]
        parameters = theirs | {name: parameters[name] for name in parameters if name != "args"}
    return parameters


@pytest.mark.parametrize(
    ("name", "attribute"),
    [(name, each) for name, all_ in ATTRIBUTES.items() for each in all_.split()],
)
def test_objects_have_the_originals_attributes(name: str, attribute: str, tmp_path: Path) -> None:
    made: dict[str, Callable[[], Any]] = {
        "FileReader": lambda: FileReader(records(tmp_path)),
        "FileWriter": lambda: FileWriter(tmp_path / "new.ffr", 0),
        "PackedFolder": lambda: packed(tmp_path),
    }
    assert hasattr(made[name](), attribute)


# ---- exceptions ----------------------------------------------------------------------------------


def records(tmp_path: Path) -> Path:
    return handmade.write_records(tmp_path / "some.ffr", [b"zero", b"one", b"two"])


def packed(tmp_path: Path) -> PackedFolder:
    tree = trees.plain_tree(tmp_path / "tree", {"a.txt": b"a", "sub/b.txt": b"bb"})
    pack_folder(tree, tmp_path / "packed.ffr")
    return PackedFolder(tmp_path / "packed.ffr")


def damaged(tmp_path: Path) -> Path:
    content = bytearray(records(tmp_path).read_bytes())
    content[-1] ^= 1
    (tmp_path / "damaged.ffr").write_bytes(content)
    return tmp_path / "damaged.ffr"


def bad_header(tmp_path: Path) -> Path:
    content = bytearray(records(tmp_path).read_bytes())
    content[0] ^= 1
    (tmp_path / "bad.ffr").write_bytes(content)
    return tmp_path / "bad.ffr"


def closed_reader(tmp_path: Path) -> FileReader:
    reader = FileReader(records(tmp_path))
    reader.close()
    return reader


def too_many(tmp_path: Path) -> None:
    with FileWriter(tmp_path / "new.ffr", 1) as writer:
        writer.write([b"one", b"two"])


def too_few(tmp_path: Path) -> None:
    writer = FileWriter(tmp_path / "new.ffr", 2)
    writer.write_one(b"one")
    writer.close()


def write(tmp_path: Path, what: Any) -> None:
    with FileWriter(tmp_path / "new.ffr", 1) as writer:
        writer.write_one(what)


def loader(tmp_path: Path) -> Any:
    from ffrecord.torch import DataLoader, Dataset

    return DataLoader(Dataset(records(tmp_path)))


def concat(tmp_path: Path) -> Any:
    from ffrecord.torch import ConcatDataset, Dataset

    return ConcatDataset([Dataset(records(tmp_path))])


@dataclass(frozen=True)
class Wrong:
    """A wrong call, and the exception that the original raises."""

    call: Callable[[Path], Any]
    theirs: type[Exception]
    ours: type[Exception] | None = None
    """Our exception, if it differs."""


WRONG = {
    # With check_data=True, the default.
    "damaged record": Wrong(lambda p: FileReader(damaged(p)).read_one(2), RuntimeError),
    "damaged record in a batch": Wrong(
        lambda p: FileReader(damaged(p)).read([2] * 3), RuntimeError
    ),
    "damaged header": Wrong(lambda p: FileReader(bad_header(p)), RuntimeError),
    "damaged header on demand": Wrong(
        lambda p: FileReader(bad_header(p), check_data=False).validate(), RuntimeError
    ),
    "closed reader": Wrong(lambda p: closed_reader(p).read_one(0), RuntimeError),
    "number as path of a reader": Wrong(lambda p: FileReader(3), TypeError),  # type: ignore[arg-type]
    "bytes as path of a reader": Wrong(lambda p: FileReader(b"some.ffr"), TypeError),  # type: ignore[arg-type]
    "empty list as path of a reader": Wrong(lambda p: FileReader([]), AssertionError, ValueError),
    "reader of a missing file": Wrong(
        lambda p: FileReader(p / "missing.ffr"), AssertionError, FileNotFoundError
    ),
    "reader of an empty folder": Wrong(FileReader, AssertionError, FileNotFoundError),
    "one integer as indices": Wrong(lambda p: FileReader(records(p)).read(1), TypeError),
    "text as indices": Wrong(lambda p: FileReader(records(p)).read("12"), TypeError),
    "fractions as indices": Wrong(lambda p: FileReader(records(p)).read([1.5]), TypeError),
    "fraction as index": Wrong(
        lambda p: FileReader(records(p)).read_one(1.5),  # type: ignore[arg-type]
        TypeError,
    ),
    "number as path of a writer": Wrong(
        lambda p: FileWriter(3, 1),  # type: ignore[arg-type]
        AssertionError,
        TypeError,
    ),
    "fraction as number of records": Wrong(
        lambda p: FileWriter(p / "new.ffr", 1.5),  # type: ignore[arg-type]
        TypeError,
    ),
    "negative number of records": Wrong(lambda p: FileWriter(p / "new.ffr", -1), ValueError),
    "writer into a missing folder": Wrong(lambda p: FileWriter(p / "no/new.ffr", 1), RuntimeError),
    "writer onto a folder": Wrong(lambda p: FileWriter(p, 1), RuntimeError, IsADirectoryError),
    "writer below a file": Wrong(
        lambda p: FileWriter(records(p) / "new.ffr", 1), RuntimeError, NotADirectoryError
    ),
    "too many records": Wrong(too_many, RuntimeError),
    "too few records": Wrong(too_few, RuntimeError),
    "text as record": Wrong(lambda p: write(p, "text"), TypeError),
    "list as record": Wrong(lambda p: write(p, [1, 2]), TypeError),
    "None as record": Wrong(lambda p: write(p, None), TypeError),
    "dump into a missing folder": Wrong(lambda p: dump([b"x"], p / "no/new.ffr", 1), RuntimeError),
    "packed folder of plain records": Wrong(lambda p: PackedFolder(records(p)), ValueError),
    "missing name": Wrong(
        lambda p: packed(p).read_one("nothing"), AssertionError, FileNotFoundError
    ),
    "missing name in a batch": Wrong(
        lambda p: packed(p).read(["a.txt", "nothing"]), AssertionError, FileNotFoundError
    ),
    "name of a folder": Wrong(
        lambda p: packed(p).read_one("sub"), AssertionError, IsADirectoryError
    ),
    "name below a file": Wrong(
        lambda p: packed(p).read_one("a.txt/b"), TypeError, NotADirectoryError
    ),
    "number as name": Wrong(lambda p: packed(p).read_one(3), TypeError),  # type: ignore[arg-type]
    "listing of a missing folder": Wrong(
        lambda p: packed(p).list("nothing"), AssertionError, FileNotFoundError
    ),
    "listing of a file": Wrong(
        lambda p: packed(p).list("a.txt"), AssertionError, NotADirectoryError
    ),
    "packing a missing folder": Wrong(
        lambda p: pack_folder(p / "no", p / "new.ffr"), AssertionError, FileNotFoundError
    ),
    "packing a file": Wrong(
        lambda p: pack_folder(records(p), p / "new.ffr"), AssertionError, NotADirectoryError
    ),
    "packing into a missing folder": Wrong(
        lambda p: pack_folder(p, p / "no/new.ffr"), RuntimeError
    ),
    "samples without process": Wrong(lambda p: loader(p).dataset[[0]], NotImplementedError),
    "no datasets": Wrong(
        lambda p: found("ffrecord.torch.ConcatDataset")([]), AssertionError, ValueError
    ),
    "index before the beginning": Wrong(lambda p: concat(p)[[-4]], ValueError, IndexError),
    "index after the end": Wrong(lambda p: concat(p)[[3]], IndexError),
    "step before the beginning": Wrong(
        lambda p: loader(p).set_step(-1), AssertionError, ValueError
    ),
    "step after the end": Wrong(lambda p: loader(p).set_step(4), AssertionError, ValueError),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_raises_the_expected_exception(name: str, tmp_path: Path) -> None:
    wrong = WRONG[name]
    with pytest.raises(wrong.ours or wrong.theirs):
        wrong.call(tmp_path)


@pytest.mark.parametrize("name", [name for name, wrong in WRONG.items() if wrong.ours])
def test_an_exception_that_differs_from_the_original_is_documented(name: str) -> None:
    theirs, ours = WRONG[name].theirs, WRONG[name].ours
    assert ours is not None
    assert not issubclass(ours, theirs)
    page = Path(__file__).parents[2] / "docs" / "migrating.md"
    rows = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    assert any(f"`{theirs.__name__}`" in row and f"`{ours.__name__}`" in row for row in rows)


# ---- packing by hand -----------------------------------------------------------------------------

FILES = {"b.txt": b"b", "a/x": b"ax", "a/deep/y": b"y", "a-b": b"-", "z/last": b"", "B": b"B"}
STRUCTURE = OrderedDict(
    [
        ("B", 0),
        ("a", OrderedDict([("deep", OrderedDict([("y", 1)])), ("x", 2)])),
        ("a-b", 3),
        ("b.txt", 4),
        ("z", OrderedDict([("last", 5)])),
    ]
)


def test_packing_step_by_step_as_in_the_original_makes_an_archive_that_opens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = trees.plain_tree(tmp_path / "tree", FILES)
    structure: OrderedDict[str, Any] = OrderedDict()
    n = dump_structure(tree, structure, 0)
    assert n == 6
    assert structure == STRUCTURE
    assert list(structure["a"]) == ["deep", "x"]
    writer = FileWriter(tmp_path / "packed.ffr", n + 1)
    assert dump_files(writer, tree, structure, 0, True, n) == n
    writer.write_one(MAGIC_BYTES + pickle.dumps(structure))
    writer.close()
    named = ["B", "a/deep/y", "a/x", "a-b", "b.txt", "z/last"]
    due = [f"{number}/6 {tree}/{name}" for number, name in enumerate(named)]
    assert capsys.readouterr().out.splitlines() == due
    with PackedFolder(tmp_path / "packed.ffr") as folder:
        assert {name: folder.read_one(name).tobytes() for name in folder} == FILES
        assert folder.structure == structure


def test_pack_folder_numbers_and_prints_files_like_the_original(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = trees.plain_tree(tmp_path / "tree", FILES)
    pack_folder(tree, tmp_path / "packed.ffr", verbose=True)
    by_us = capsys.readouterr().out
    with FileWriter(tmp_path / "by hand.ffr") as writer:
        dump_files(writer, tree, STRUCTURE, 0, True, 6)
    assert by_us == capsys.readouterr().out
    with PackedFolder(tmp_path / "packed.ffr") as folder:
        assert folder.structure == STRUCTURE


def test_files_that_are_out_of_order_are_refused(tmp_path: Path) -> None:
    tree = trees.plain_tree(tmp_path / "tree", FILES)
    with FileWriter(tmp_path / "x.ffr") as writer, pytest.raises(ValueError, match="number 3"):
        dump_files(writer, tree, OrderedDict([("a-b", 3)]), 0, False, 1)
    # The magic bytes must be those of the original.
    assert MAGIC_BYTES == b"piouhjgbr"

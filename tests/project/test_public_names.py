"""Public names and their signatures match `public_names.txt`, so that none is lost by accident.

Members that only our own modules use (`INSIDE`) are not listed. To change a name on purpose, write
the list again and read the diff:

    python -m tests.project.test_public_names > tests/project/public_names.txt

A line is a function, a constant with its type, an exception with its public bases, a class, a
member of a class, or an alias of an earlier line. Signatures have no annotations, because the same
type can be written in several ways. A default that is not a plain value is `...`.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

STORED = Path(__file__).with_name("public_names.txt")
MODULES = (
    "ffrecord", "ffrecord.convert", "ffrecord.dataset", "ffrecord.errors", "ffrecord.fileio",
    "ffrecord.fsspec", "ffrecord.package", "ffrecord.torch", "ffrecord.utils", "ffrecord.view",
    "ffrecord_fuse", "ffrecord.cluster.dask", "ffrecord.cluster.ray", "ffrecord.cluster.spark",
)  # fmt: skip
NEEDS = {
    "ffrecord.cluster.dask": "dask", "ffrecord.cluster.ray": "ray",
    "ffrecord.cluster.spark": "pyspark", "ffrecord.fsspec": "fsspec", "ffrecord.torch": "torch",
}  # fmt: skip
"""Modules that import another package, which may not be installed."""
PLAIN = (bool, int, float, str, bytes, type(None))
SPECIAL = (
    "__call__", "__contains__", "__enter__", "__exit__", "__getitem__", "__getitems__", "__iter__",
    "__len__", "__reversed__",
)  # fmt: skip
INSIDE = {
    # members of FileWriter
    "append", "seal",
    # members of datasets and samplers for torch
    "begin", "count_from", "drop_prefetched", "ffdatasets", "fingerprint_by", "next_state",
    "prefetch", "rewind", "skip",
}  # fmt: skip
"""Members for our own modules. The documentation does not name them, so they may change."""
DOCUMENTED = {
    "FileReader": {"drop_prefetched", "prefetch"},
    "DatasetWriter": {"append"},
    "ShardedDatasetWriter": {"append"},
}
"""Exceptions: members named in `INSIDE` that are public in these classes."""


def names_of(module: ModuleType) -> list[str]:
    """Return the public names of a module: `__all__`, otherwise the classes defined in it."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    return sorted(
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__ and name[0] != "_"
    )


def signature(function: Any) -> str:
    """Return names, kinds and defaults of parameters, as every version of Python prints them."""
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        default = parameter.default
        if default is not inspect.Parameter.empty and not isinstance(default, PLAIN):
            default = ...
        parameters.append(parameter.replace(annotation=inspect.Parameter.empty, default=default))
    text = str(inspect.Signature(parameters))
    return text.replace("Ellipsis", "...")


def is_ours(class_: type) -> bool:
    return class_.__module__.partition(".")[0] in ("ffrecord", "ffrecord_fuse")


def class_line(class_: type) -> str:
    """Return the public bases of an exception, or the signature of another class."""
    if issubclass(class_, BaseException):
        public = set(importlib.import_module("ffrecord").__all__) | set(dir(builtins))
        public -= {"object", "BaseException", "Exception"}
        bases = {base.__name__ for base in class_.__mro__[1:]} & public
        return f" < {', '.join(sorted(bases))}"
    return signature(class_) if any(map(is_ours, class_.__mro__)) else ""


def members_of(class_: type) -> Iterator[str]:
    """Yield a line for each public member that we define, not torch or Python."""
    found: dict[str, Any] = {}
    for base in reversed(class_.__mro__):
        if is_ours(base):
            found.update(vars(base))
    for name, value in sorted(found.items()):
        if name in INSIDE - DOCUMENTED.get(class_.__name__, set()):
            continue
        if name[0] == "_" and name not in SPECIAL:
            continue
        if isinstance(value, (classmethod, staticmethod)):
            yield f"{name}{signature(getattr(class_, name))} {type(value).__name__}"
        elif inspect.isfunction(value):
            yield f"{name}{signature(value)}"
        else:
            yield f"{name} attribute"


def first_place(name: str, value: object, module_name: str) -> str:
    """Return the first earlier module with the same object under the same name, or ""."""
    for other in MODULES[: MODULES.index(module_name)]:
        if other not in NEEDS and vars_of(other).get(name) is value:
            return other
    return ""


def vars_of(module_name: str) -> dict[str, Any]:
    module = importlib.import_module(module_name)
    return {name: getattr(module, name) for name in names_of(module)}


def lines_of(module_name: str) -> Iterator[str]:
    module = importlib.import_module(module_name)
    for name in names_of(module):
        value, whole = getattr(module, name), f"{module_name}.{name}"
        if first := first_place(name, value, module_name):
            yield f"{whole} = {first}.{name}"
        elif inspect.isclass(value):
            yield whole + class_line(value)
            if is_ours(value) and not issubclass(value, BaseException):
                yield from (f"{whole}.{member}" for member in members_of(value))
        elif callable(value):
            yield whole + signature(value)
        else:
            yield f"{whole}: {type(value).__name__}"


def stored(module_name: str) -> list[str]:
    lines = STORED.read_text("utf-8").splitlines()
    others = [name for name in MODULES if name.startswith(f"{module_name}.")]
    return [
        line
        for line in lines
        if line.startswith(f"{module_name}.")
        and not any(line.startswith(f"{other}.") for other in others)
    ]


@pytest.mark.parametrize("module_name", MODULES)
def test_public_names_have_the_signatures_of_the_list(module_name: str) -> None:
    if module_name in NEEDS:
        pytest.importorskip(NEEDS[module_name])
    now, then = set(lines_of(module_name)), set(stored(module_name))
    assert (sorted(then - now), sorted(now - then)) == ([], []), "(lost or changed, new)"


def test_every_line_of_the_list_is_compared() -> None:
    lines = STORED.read_text("utf-8").splitlines()
    assert len(lines) > 200
    assert sorted(lines) == sorted(line for name in MODULES for line in stored(name))


def test_a_signature_is_listed_without_annotations() -> None:
    def function(path: str, *more: int, mode: str = "auto", order: type = list) -> None: ...

    assert signature(function) == "(path, *more, mode='auto', order=...)"


if __name__ == "__main__":
    for each in MODULES:
        print(*lines_of(each), sep="\n")

"""obstore for this process.

obstore has threads of its own, which a forked child does not inherit: in a child, its functions
wait for ever. So a child loads a second copy of the compiled module, which starts new threads. The
copy is loaded from memory, because the loader recognises a file that is loaded already.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import pickle
import sys
import threading
from types import ModuleType
from typing import Any

from ffrecord.errors import MissingPackageError

_COMPILED = "obstore._obstore"

_lock = threading.Lock()
_loaded: tuple[int, ModuleType] | None = None
_abandoned: list[Any] = []
"""Objects of the parent process. They are kept for ever: freeing them could wait for threads that
do not exist here."""
_copies: dict[int, dict[str, ModuleType]] = {}
"""The modules of each second copy, by the id of its first module."""


def library() -> ModuleType:
    """Return obstore for this process."""
    global _loaded
    with _lock:
        if _loaded is None:
            try:
                _loaded = os.getpid(), importlib.import_module("obstore")
                importlib.import_module("obstore.store")
            except ImportError as error:
                raise missing("obstore") from error
        elif _loaded[0] != os.getpid():
            _abandoned.append(_loaded)
            _loaded = os.getpid(), _second_copy()
        return _loaded[1]


def missing(package: str) -> MissingPackageError:
    """Return the error for a package that reading URLs needs."""
    return MissingPackageError(
        f"URLs need the package {package}, which is not installed; "
        "run: pip install 'ffrecord[remote]'"
    )


def copied(store: Any, module: ModuleType) -> Any:
    """Return a copy of a store that belongs to a copy of obstore."""
    pickled = pickle.dumps(store)
    before = _modules()
    sys.modules.update(_copies[id(module)])
    try:
        return pickle.loads(pickled)
    finally:
        sys.modules.update(before)


def abandon(store: Any) -> None:
    """Keep an object of the parent process for ever."""
    _abandoned.append(store)


def _second_copy() -> ModuleType:
    """Load obstore again, with a copy of its compiled module. The first one stays in use."""
    before = _modules()
    path = sys.modules[_COMPILED].__file__
    assert path is not None
    copy = os.memfd_create("obstore")
    finder = _CopyFinder(f"/proc/self/fd/{copy}")
    sys.meta_path.insert(0, finder)
    try:
        with open(path, "rb") as file:
            while os.sendfile(copy, file.fileno(), None, 1 << 30):
                pass
        for name in before:
            del sys.modules[name]
        second = importlib.import_module("obstore")
        importlib.import_module("obstore.store")
        _copies[id(second)] = _modules()
        return second
    finally:
        sys.meta_path.remove(finder)
        for name in _modules():
            del sys.modules[name]
        sys.modules.update(before)
        os.close(copy)


def _modules() -> dict[str, ModuleType]:
    return {n: m for n, m in sys.modules.items() if n == "obstore" or n.startswith("obstore.")}


def _unlock() -> None:
    """Make a new lock in a forked child: a thread of the parent may have held the old one."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock)


class _CopyFinder:
    """Finds the compiled module of obstore at another path."""

    def __init__(self, path: str) -> None:
        self._path = path

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name != _COMPILED:
            return None
        # The origin is the name under which Python and the loader remember a module.
        loader = importlib.machinery.ExtensionFileLoader(name, self._path)
        return importlib.util.spec_from_loader(name, loader, origin=self._path)

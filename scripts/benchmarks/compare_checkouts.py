"""The trees that `compare` measures: an existing folder, or a git revision in a temporary one."""

from __future__ import annotations

import compileall
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import harness
from .compare_worker import PACKAGES


class NoCheckoutError(Exception):
    """Raised when there is no tree to compare with; the message is one line."""


@contextmanager
def checked_out(before: str) -> Iterator[Path]:
    """Provide the folder of a tree until the block ends.

    If `before` names both a folder and a revision, the folder is used.
    """
    if Path(before).is_dir():
        yield _with_packages(before, Path(before).resolve())
        return
    try:
        commit = _git(
            harness.ROOT, "rev-parse", "--verify", "--end-of-options", before + "^{commit}"
        )
    except NoCheckoutError as error:
        raise NoCheckoutError(f"{before}: neither a folder nor a git revision: {error}") from None
    with tempfile.TemporaryDirectory(prefix="ffrecord-before-") as temporary:
        tree = Path(temporary).resolve() / "tree"
        _git(harness.ROOT, "worktree", "add", "--detach", str(tree), commit)
        try:
            yield _with_packages(before, tree)
        finally:
            _git(harness.ROOT, "worktree", "remove", "--force", str(tree))


def revision(tree: Path) -> str:
    """Return the short name of a tree's commit, with "-dirty" if files have changed since."""
    if not (tree / ".git").exists():
        return "no git revision"
    return _git(tree, "describe", "--always", "--dirty", "--exclude=*")


def compile_packages(tree: Path) -> None:
    """Write the missing bytecode of a tree's packages.

    A process that compiles modules is slower afterwards too: an epoch of a loader took 1.7 times
    the processor time. With PYTHONDONTWRITEBYTECODE, every process of a fresh checkout would
    compile them.
    """
    for package in PACKAGES:
        compileall.compile_dir(tree / package, quiet=2)


def _with_packages(name: str, tree: Path) -> Path:
    for package in PACKAGES:
        if not (tree / package / "__init__.py").is_file():
            raise NoCheckoutError(
                f"{name}: not a checkout of this project, because {package}/__init__.py is missing"
            )
    return tree


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise NoCheckoutError(
            "git is not installed; pass the folder of a checkout instead"
        ) from None
    if done.returncode:
        words = done.stderr.strip().splitlines()
        raise NoCheckoutError(words[-1] if words else f"git {arguments[0]} failed")
    return done.stdout.strip()

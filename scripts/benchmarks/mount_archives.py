"""The archives of the contestants of `mount`, all made from the same trees."""

from __future__ import annotations

from pathlib import Path

from ffrecord.format import index as index_layout

from . import datasets, trees
from .mounters import MOUNTERS, SOURCE, Mounter
from .trees import FileTree

RECIPE = f"1/{trees.RECIPE}/{index_layout.VERSION}"
"""Raise the first number when an archive's bytes change; then all are made again."""


def file(mounter: Mounter, tree: FileTree, root: Path) -> Path:
    """Return the path that a contestant mounts: an archive in its own folder, or the tree."""
    if mounter is SOURCE:
        return tree.top(root)
    result = mounter.packer.result
    return root / f"mount-{tree.count}x{tree.mean}" / result.rpartition(".")[2] / result


def create(mounter: str, root: str, name: str, mean: int, count: int, per_folder: int) -> None:
    """Pack a tree for a contestant unless the archive exists; called in a fresh process."""
    contestant = MOUNTERS[mounter]
    if contestant is SOURCE:
        return
    tree = FileTree(name, mean, count, per_folder)
    out = file(contestant, tree, Path(root))
    pack = contestant.packer.ready(tree.top(Path(root)), out)
    datasets.make_once(out.parent, f"{RECIPE}/{per_folder}", pack)

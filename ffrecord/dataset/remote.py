"""Datasets behind URLs: their specs and their shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ffrecord.dataset.spec import LARGEST_SPEC, SPEC_NAME, Manifest, parse_spec
from ffrecord.errors import DatasetError, RemoteError
from ffrecord.remote.urls import is_remote

if TYPE_CHECKING:
    from ffrecord.remote.files import RemoteFolder
    from ffrecord.remote.options import RemoteOptions


RECORD_FILE = ".ffr"


def remote_dataset(directory: Any, remote: RemoteOptions) -> RemoteFolder:
    """Return the folder of a dataset behind a URL. Nothing is opened."""
    from ffrecord.remote.files import remote_folder  # needed for URLs only

    return directory if _is_folder(directory) else remote_folder(directory, remote)


def is_remote_dataset(directory: Any, remote: RemoteOptions) -> bool:
    """Return True if the dataset is read over the network."""
    return _is_folder(directory) or is_remote(directory, remote)


def _is_folder(directory: Any) -> bool:
    """Return True for the folder of a shard, which its reader passes on with its connections."""
    return hasattr(directory, "inside")


def has_spec(url: str, remote: RemoteOptions | None = None) -> bool:
    """Return True if a URL leads to a dataset, or to one shard of a dataset.

    Nobody gives a folder the name of a record file, and the question costs a request.
    """
    folder = remote_dataset(url, remote or {})
    return not folder.name.endswith(RECORD_FILE) and folder.read(SPEC_NAME, 1) is not None


def entries(url: str, remote: RemoteOptions | None = None) -> list[str]:
    """Return the names in a folder. A web server that does not list folders seems to have none."""
    folder = remote_dataset(url, remote or {})
    if folder.name.endswith(RECORD_FILE):
        return []
    try:
        return folder.entries()
    except RemoteError:
        return []


def load_remote(folder: RemoteFolder) -> Manifest:
    """Read and check the `spec.json` of a dataset behind a URL."""
    text = folder.read(SPEC_NAME, LARGEST_SPEC + 1)
    path = f"{folder.name}/{SPEC_NAME}"
    if text is None:
        raise DatasetError(
            f"{folder.name}: not a dataset: it has no {SPEC_NAME}; pass the URL of a folder that "
            "DatasetWriter wrote, or read a folder of shards with ShardedDatasetReader"
        )
    if len(text) > LARGEST_SPEC:
        raise DatasetError(
            f"{path}: not the spec of a dataset: it has more than {LARGEST_SPEC} bytes"
        )
    return parse_spec(path, text)

"""All targets by name. `make` imports only the module of its target: one module needs torch."""

from __future__ import annotations

from importlib import import_module

from tests.robustness.fuzzing.target import Target

PLACES = {
    "header": "records.header",
    "reading": "records.reading",
    "salvage": "records.salvage",
    "journal": "records.journals",
    "resuming": "records.resuming",
    "index": "indexes.index",
    "image": "images.images",
    "indexed": "images.indexed",
    "pickle": "indexes.pickles",
    "archive": "indexes.archives",
    "shards": "indexes.shards",
    "request": "wire.requests",
    "session": "wire.sessions",
    "handshake": "wire.handshakes",
    "options": "wire.option_strings",
    "spec": "datasets.specs",
    "dataset": "datasets.folders",
    "values": "datasets.values",
    "tar": "converters.tars",
    "tfrecord": "converters.tfrecords",
    "recordio": "converters.recordio_python",
    "recordio-go": "converters.recordio_go",
    "snappy": "converters.snappy_data",
    "bag": "converters.bags",
    "granular": "converters.granular_datasets",
    "hdf5heap": "converters.heaps",
    "state": "states.states",
    "map": "caches.maps",
    "leftover": "caches.leftovers",
    "multipart": "network.lists",
    "answer": "network.answers",
    "url": "network.urls_",
    "plan": "plans.plans",
    "receipt": "plans.receipts_",
    "planfile": "plans.plan_files",
    "page": "pages.pages",
    "preview": "pages.previews_",
    "fsspec": "mounts.names",
    "mounttable": "mounts.tables",
    "changes": "mounts.folders_of_changes",
}


def make(name: str) -> Target:
    module, function = PLACES[name].split(".")
    target: Target = getattr(import_module(f"tests.robustness.fuzzing.{module}"), function)()
    assert target.name == name
    return target

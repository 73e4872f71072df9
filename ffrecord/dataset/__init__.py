"""Datasets of typed fields: a folder with one record file for each field, and `spec.json`.

docs/datasets.md shows how to use datasets and specifies their bytes.
"""

from __future__ import annotations

from ffrecord.dataset.codecs import decoders, encoders, view_decoder
from ffrecord.dataset.combine import Interleave, Mix, Transform
from ffrecord.dataset.datapoints import PendingDatapoints
from ffrecord.dataset.reader import DatasetReader, MemoryDataset
from ffrecord.dataset.sharded import ShardedDatasetReader, ShardedDatasetWriter
from ffrecord.dataset.write import infer_spec, write_dataset
from ffrecord.dataset.writer import DatasetWriter

__all__ = [
    "DatasetReader", "DatasetWriter", "Interleave", "MemoryDataset", "Mix", "PendingDatapoints",
    "ShardedDatasetReader", "ShardedDatasetWriter", "Transform", "decoders", "encoders",
    "infer_spec", "view_decoder", "write_dataset",
]  # fmt: skip

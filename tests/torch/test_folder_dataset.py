"""Packed folders as datasets, compared with a model of torchvision's ImageFolder.

The model is written with os.walk and follows ImageFolder's documentation. The classes are the top
folders, sorted. The samples are all files below them with a known extension, in upper or lower
case. They come folder by folder in the order of the folders' paths, and sorted by name within a
folder.
"""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader

from ffrecord import FileReader, PackedFolder, pack_folder
from ffrecord.errors import BadRecordWarning, SampleChecksumError
from ffrecord.torch import DataLoader, PackedFolderDataset
from tests.support import archives
from tests.torch.datasets import as_list, batches, shut_down

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

NAMES = [
    "cat/1.png",
    "cat/10.png",
    "cat/2.png",
    "cat/a/b/deep.png",
    "cat/a-b/x.png",
    "cat/a.png",
    "cat/a/x.png",
    "cat/a b/x.png",
    "cat/LOUD.PNG",
    "cat/B.Jpeg",
    "cat/ä.png",
    "cat/.hidden.png",
    "cat/notes.txt",
    "cat/png",
    "Dog/1.jpg",
    "Dog/ü/ö.webp",
    "cat-b/1.bmp",
    "été/1.tiff",
    "zebra.png/1.png",
    "not in a class.png",
]


def model(
    root: Path, valid: Callable[[str], bool] | None = None
) -> tuple[list[str], list[tuple[str, int]]]:
    """Return the classes and samples of ImageFolder, with paths from the root."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    samples = []
    for number, name in enumerate(classes):
        for folder, _, files in sorted(os.walk(root / name, followlinks=True)):
            for file in sorted(files):
                path = os.path.join(folder, file)
                if valid(path) if valid else path.lower().endswith(EXTENSIONS):
                    samples.append((os.path.relpath(path, root), number))
    return classes, samples


def fill(root: Path, names: list[str]) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"content of {name}".encode())
    return root


def text(data: Any) -> str:
    return bytes(data).decode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("classes") / "images", NAMES)


@pytest.fixture(scope="module")
def archive(folder: Path) -> Path:
    pack_folder(folder, folder.parent / "images.ffr")
    return folder.parent / "images.ffr"


def assert_like(dataset: PackedFolderDataset, root: Path, prefix: str = "") -> None:
    classes, samples = model(root)
    assert samples
    assert dataset.classes == classes
    assert dataset.class_to_idx == {name: number for number, name in enumerate(classes)}
    assert dataset.samples == [(prefix + path, number) for path, number in samples]
    assert dataset.imgs == dataset.samples
    assert dataset.targets == [number for _, number in samples]
    assert len(dataset) == len(samples)
    assert dataset[:] == [((root / path).read_text(), number) for path, number in samples]


# ---- same as ImageFolder -----------------------------------------------------------------


def test_classes_and_samples_are_the_same_as_in_image_folder(folder: Path, archive: Path) -> None:
    dataset = PackedFolderDataset(archive, text)
    assert_like(dataset, folder)
    assert dataset.classes == ["Dog", "cat", "cat-b", "zebra.png", "été"]


@pytest.mark.parametrize("seed", range(5))
def test_random_names_have_the_same_order_as_in_image_folder(seed: int, tmp_path: Path) -> None:
    generator = random.Random(seed)
    letters = "ab-. Aäß~0"
    names = set()
    for _ in range(60):
        parts = ["".join(generator.choices(letters, k=3)) for _ in range(3)]
        parts = [part for part in parts if part.strip(".")][: generator.randint(2, 3)]
        if len(parts) > 1:
            names.add("/".join(f"{part}_" for part in parts) + ".png")
    root = fill(tmp_path / "images", sorted(names))
    pack_folder(root, tmp_path / "images.ffr")
    assert_like(PackedFolderDataset(tmp_path / "images.ffr", text), root)


def test_names_that_are_not_utf8_are_kept(tmp_path: Path) -> None:
    root = fill(tmp_path / "images", ["a/1.png", "a/z.png"])
    for odd in (os.fsdecode(b"a/\xff\xfe.png"), os.fsdecode(b"\xe9t\xe9/1.png")):
        (root / odd).parent.mkdir(exist_ok=True)
        (root / odd).write_bytes(b"odd")
    pack_folder(root, tmp_path / "images.ffr")
    dataset = PackedFolderDataset(tmp_path / "images.ffr", text)
    assert_like(dataset, root)
    assert [sample for sample, _ in dataset[:]].count("odd") == 2
    assert dataset.fingerprint == pickle.loads(pickle.dumps(dataset)).fingerprint


def test_links_inside_the_archive_are_followed(tmp_path: Path) -> None:
    root = fill(tmp_path / "images", ["a/1.png", "a/sub/2.png", "b/3.png", "aside.png"])
    (root / "b" / "4.png").symlink_to("../a/1.png")
    (root / "b" / "5.png").symlink_to("../aside.png")
    (root / "b" / "linked").symlink_to("../a/sub")
    (root / "c").symlink_to("a")
    os.link(root / "a" / "1.png", root / "b" / "hard.png")
    pack_folder(root, tmp_path / "images.ffr")
    dataset = PackedFolderDataset(tmp_path / "images.ffr", text)
    assert_like(dataset, root)
    assert dataset.classes == ["a", "b", "c"]


def test_a_link_to_a_parent_folder_is_followed_once(tmp_path: Path) -> None:
    root = fill(tmp_path / "images", ["a/1.png", "b/2.png"])
    (root / "a" / "up").symlink_to("..")
    pack_folder(root, tmp_path / "images.ffr")
    paths = [path for path, _ in PackedFolderDataset(tmp_path / "images.ffr", text).samples]
    assert "a/1.png" in paths
    assert len(paths) == len(set(paths)) < 10


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("spoil", "said"),
    [(lambda data: b"no image", "cannot identify"), (lambda data: data[:-200], "truncated")],
    ids=["not an image", "truncated"],
)
def test_an_undecodable_image_is_named(
    spoil: Callable[[bytes], bytes], said: str, workers: int, tmp_path: Path
) -> None:
    for name in ("a/1.png", "b/2.png"):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True)
        pixels = np.random.default_rng(1).integers(0, 255, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(path)
    path.write_bytes(spoil(path.read_bytes()))
    pack_folder(tmp_path / "images", tmp_path / "images.ffr")
    dataset = PackedFolderDataset(tmp_path / "images.ffr")
    assert dataset[0][0].size == (16, 16)
    loader = DataLoader(dataset, batch_size=2, num_workers=workers, collate_fn=as_list)
    iterator = iter(loader)
    with pytest.raises(OSError, match=rf"{tmp_path}/images\.ffr: b/2\.png: .*{said}"):
        batches(iterator)
    shut_down(iterator)


def test_an_error_raised_by_the_loader_stays_unchanged(tmp_path: Path) -> None:
    def elsewhere(data: object) -> bytes:
        return (tmp_path / "missing").read_bytes()

    pack_folder(fill(tmp_path / "images", ["a/1.png"]), tmp_path / "images.ffr")
    with pytest.raises(FileNotFoundError) as caught:
        PackedFolderDataset(tmp_path / "images.ffr", elsewhere)[0]
    assert caught.value.filename == str(tmp_path / "missing")


def test_a_broken_link_fails_when_it_is_read(tmp_path: Path) -> None:
    root = fill(tmp_path / "images", ["a/1.png"])
    (root / "a" / "broken.png").symlink_to("nothing.png")
    pack_folder(root, tmp_path / "images.ffr")
    (root / "a" / "outside.png").symlink_to("/nowhere/2.png")
    pack_folder(root, tmp_path / "images.ffr")
    broken = PackedFolderDataset(tmp_path / "images.ffr", text, on_error="skip")
    assert [path for path, _ in broken.samples] == ["a/1.png", "a/broken.png", "a/outside.png"]
    with pytest.raises(FileNotFoundError, match=r"broken\.png"):
        broken[1]
    with pytest.raises(OSError, match=r"outside\.png"):
        broken[2]
    loader = DataLoader(broken, batch_size=3)
    with pytest.warns(BadRecordWarning):
        ((_, targets),) = loader
    assert targets.tolist() == [0]
    assert [index for index, _ in loader.skipped] == [1, 2]
    dataset = PackedFolderDataset(
        tmp_path / "images.ffr", text, is_valid_file=lambda path: path.endswith("1.png")
    )
    assert dataset.samples == [("a/1.png", 0)]


def test_a_folder_inside_the_archive_may_be_the_root(tmp_path: Path) -> None:
    names = ["train/a/1.png", "train/b/2.png", "val/a/3.png", "val/deep/er/c/4.png"]
    root = fill(tmp_path / "images", names)
    pack_folder(root, tmp_path / "images.ffr")
    for spelled in ("train", "/train", "train/"):
        dataset = PackedFolderDataset(tmp_path / "images.ffr", text, root=spelled)
        assert_like(dataset, root / "train", prefix="train/")
    deep = PackedFolderDataset(tmp_path / "images.ffr", text, root="val/deep/er")
    assert deep.samples == [("val/deep/er/c/4.png", 0)]
    with pytest.raises(FileNotFoundError):
        PackedFolderDataset(tmp_path / "images.ffr", text, root="test")


@pytest.mark.parametrize("align", [None, 512])
def test_an_archive_may_have_shards_or_be_open(
    align: int | None, folder: Path, tmp_path: Path
) -> None:
    pack_folder(folder, tmp_path / "shards", shard_size=100, align=align)
    dataset = PackedFolderDataset(tmp_path / "shards", text)
    assert len(dataset.folder.reader.fnames) > 3
    assert_like(dataset, folder)
    opened = PackedFolder(tmp_path / "shards")
    again = PackedFolderDataset(opened, text)
    assert again.folder is opened
    assert_like(again, folder)


# ---- choice of files ---------------------------------------------------------------------


def test_extensions_may_be_a_list_a_string_or_none(folder: Path, archive: Path) -> None:
    everything = PackedFolderDataset(archive, text, extensions=None, allow_empty=True)
    assert everything.samples == model(folder, lambda path: True)[1]
    for one in (".txt", [".TXT"], (".txt",)):
        dataset = PackedFolderDataset(archive, text, extensions=one, allow_empty=True)
        assert dataset.samples == [("cat/notes.txt", 1)]


def test_is_valid_file_decides_by_the_path(folder: Path, archive: Path) -> None:
    asked = []

    def valid(path: str) -> bool:
        asked.append(path)
        return path.endswith(("x.png", "notes.txt"))

    dataset = PackedFolderDataset(archive, text, is_valid_file=valid, allow_empty=True)
    expected = model(folder, lambda path: path.endswith(("x.png", "notes.txt")))[1]
    assert dataset.samples == expected
    assert sorted(asked) == sorted(path for path, _ in model(folder, lambda path: True)[1])


def test_an_empty_class_is_an_error_unless_it_is_allowed(tmp_path: Path) -> None:
    root = fill(tmp_path / "images", ["full/1.png", "text/1.txt"])
    (root / "empty").mkdir()
    pack_folder(root, tmp_path / "images.ffr")
    with pytest.raises(FileNotFoundError, match=r"'empty', 'text'; .* root=, .*allow_empty=True"):
        PackedFolderDataset(tmp_path / "images.ffr", text)
    dataset = PackedFolderDataset(tmp_path / "images.ffr", text, allow_empty=True)
    assert dataset.class_to_idx == {"empty": 0, "full": 1, "text": 2}
    assert dataset.samples == [("full/1.png", 1)]


def test_a_folder_without_classes_is_an_error(tmp_path: Path) -> None:
    root = fill(tmp_path / "images", ["1.png"])
    pack_folder(root, tmp_path / "images.ffr")
    with pytest.raises(FileNotFoundError, match="contains no folders"):
        PackedFolderDataset(tmp_path / "images.ffr", text)


# ---- samples -----------------------------------------------------------------------------


def test_images_are_decoded_with_pillow(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (2, 5, 7, 3), np.uint8)
    for number, image in enumerate(pixels):
        path = tmp_path / "images" / "c" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    Image.fromarray(pixels[0, :, :, 0]).save(tmp_path / "images" / "c" / "grey.png")
    pack_folder(tmp_path / "images", tmp_path / "images.ffr")
    dataset = PackedFolderDataset(tmp_path / "images.ffr", transform=np.asarray)
    for (image, target), original in zip(dataset[:2], pixels, strict=True):
        assert target == 0
        assert np.array_equal(image, original)
    assert dataset[2][0].shape == (5, 7, 3)  # a grey image becomes RGB too


def test_transforms_are_applied(archive: Path) -> None:
    dataset = PackedFolderDataset(archive, text, str.upper, lambda target: -target)
    plain = PackedFolderDataset(archive, text)
    assert dataset[:] == [(sample.upper(), -target) for sample, target in plain[:]]
    assert dataset.targets == plain.targets


def test_a_packed_folder_dataset_takes_every_kind_of_key(archive: Path) -> None:
    dataset = PackedFolderDataset(archive, text)
    samples = dataset[:]
    assert dataset[-1] == samples[-1]
    assert dataset[[3, 3, -2]] == [samples[3], samples[3], samples[-2]]
    assert dataset[np.array([1, 0])] == samples[1::-1]
    assert dataset[[]] == []
    for wrong in (len(samples), [0, -len(samples) - 1]):
        with pytest.raises(IndexError):
            dataset[wrong]


def test_a_batch_is_one_read(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    read = FileReader.read

    def counted(self: FileReader, indices: Any) -> Any:
        calls.append(len(indices))
        return read(self, indices)

    dataset = PackedFolderDataset(archive, text)
    monkeypatch.setattr(FileReader, "read", counted)
    for kind in (TorchDataLoader, DataLoader):
        calls.clear()
        assert len(batches(kind(dataset, 5, collate_fn=as_list))) == len(calls)
        assert calls == [5] * (len(dataset) // 5) + [len(dataset) % 5] * bool(len(dataset) % 5)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_a_packed_folder_dataset(method: str, archive: Path) -> None:
    dataset = PackedFolderDataset(archive, text)
    loader = DataLoader(
        dataset, 6, num_workers=1 if method == "spawn" else 2, collate_fn=as_list,
        multiprocessing_context=method,
    )  # fmt: skip
    assert [tuple(sample) for batch in batches(loader) for sample in batch] == dataset[:]


def test_a_pickle_leaves_out_the_paths_and_finds_them_again(archive: Path) -> None:
    dataset = PackedFolderDataset(archive, text)
    samples, targets = dataset.samples, dataset.targets
    pickled = pickle.dumps(dataset)
    assert b"LOUD" not in pickled
    copied = pickle.loads(pickled)
    assert copied[:] == dataset[:]
    assert (copied.samples, copied.targets) == (samples, targets)
    assert copied.fingerprint == dataset.fingerprint


def test_the_fingerprint_depends_on_the_chosen_files(archive: Path) -> None:
    chosen = [
        PackedFolderDataset(archive, text),
        PackedFolderDataset(archive, text, extensions=None),
        PackedFolderDataset(archive, text, root="cat", extensions=None),
    ]
    assert len({dataset.fingerprint for dataset in chosen}) == 3
    again = PackedFolderDataset(archive, text, transform=str.upper)
    assert again.fingerprint == chosen[0].fingerprint


def test_a_damaged_file_is_an_error_or_left_out(folder: Path, tmp_path: Path) -> None:
    pack_folder(folder, tmp_path / "images.ffr")
    archives.damage(tmp_path / "images.ffr", "cat/2.png")
    dataset = PackedFolderDataset(tmp_path / "images.ffr", text)
    with pytest.raises(SampleChecksumError, match=r"is damaged \(cat/2\.png\)"):
        dataset[:]
    lenient = PackedFolderDataset(tmp_path / "images.ffr", text, on_error="skip")
    index = [path for path, _ in lenient.samples].index("cat/2.png")
    loader = DataLoader(lenient, 5, collate_fn=as_list)
    with pytest.warns(UserWarning, match=f"sample {index} was left out"):
        found = [sample for batch in loader for sample in batch]
    assert len(found) == len(lenient) - 1
    assert loader.skipped[0][0] == index

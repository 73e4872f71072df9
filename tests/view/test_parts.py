"""The parts of the page without a server: searches, kinds, arrays, distributions, thumbnails."""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ffrecord
from ffrecord.archive.archive import Archive
from ffrecord.view import arrays, kinds, notebook, pictures, texts
from ffrecord.view.app import STATIC
from ffrecord.view.contents import Found, Item
from ffrecord.view.distributions import Distributions, Filter
from ffrecord.view.listings import Asked, Listings, entry_path, expression, rows, shown
from ffrecord.view.thumbnails import Thumbnails
from ffrecord.view.values import stored
from tests.view import corpus
from tests.view.conftest import DATAPOINTS, LABELS


def awaited() -> bool:
    return True


# ---- listings ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("*.jpg", ["a.jpg", "A.JPG", ".jpg"], ["a.jpg.txt", "jpg"]),
        ("a?c", ["abc"], ["ac", "abbc"]),
        ("[a-c]x", ["ax", "cx"], ["dx"]),
        ("[!a-c]x", ["dx"], ["ax", "/x"]),
        ("a[", ["a[", "xa["], ["a"]),
        ("some.thing", ["x some.thing y"], ["someXthing"]),
        ("a/*.txt", ["a/b.txt"], ["a/b/c.txt", "x/a/b.txt"]),
        ("a/**/c", ["a/c", "a/b/c", "a/b/b/c"], ["ac", "a/b/cc"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "b/a"]),
        ("**/x*", ["x1", "a/x1", "a/b/x1"], ["a/1x"]),
        ("*a*a*b*", ["aab", "xaxaxbx", "aaaab"], ["ab", "a/ab", "aba"]),
        ("a*b*/*c*d*e", ["ab/cde", "axbx/xcxdxe"], ["ab/c/de", "b/cde", "ab/ced"]),
        ("[*]*[*]", ["*x*", "**"], ["*", "xx"]),
        ("*a*a*a*a*a*a*a*b", ["a" * 249 + "b"], ["a" * 250]),  # hours, if each place were tried
    ],
)
def test_the_pattern_of_a_search(pattern: str, matching: list[str], others: list[str]) -> None:
    compiled = re.compile(expression(pattern))
    assert [path for path in matching if not compiled.search(path)] == []
    assert [path for path in others if compiled.search(path)] == []


def test_listings_agree_with_the_folder_on_disk(archive: Path, tree: Path) -> None:
    with Archive.open(archive) as opened:
        index, listings = opened.index, Listings(opened.index)

        def paths(asked: Asked) -> list[str]:
            return [entry_path(index, int(entry)) for entry in listings.numbers(asked)]

        everything = {str(path.relative_to(tree)): path for path in tree.rglob("*")}
        files = [path for path in everything.values() if path.is_file() and not path.is_symlink()]
        top = paths(Asked())
        folders = [name for name in top if (tree / name).is_dir()]
        assert set(top) == {path.name for path in tree.iterdir()}
        assert top[: len(folders)] == sorted(folders)  # folders first
        assert paths(Asked(folders_only=True)) == folders
        for row in rows(index, listings.numbers(Asked(folders_only=True)), False):
            inside = [each for each in (tree / row["name"]).iterdir() if not each.is_symlink()]
            assert row["folders"] == any(each.is_dir() for each in inside)
        kinds_folder = next(int(n) for n in listings.numbers(Asked()) if index.name(n) == b"kinds")
        inode = int(index.tables.entries["inode"][kinds_folder])
        by_size = [everything[path].stat().st_size for path in paths(Asked(inode, order="size"))]
        assert by_size == sorted(by_size)
        assert len(by_size) == len(corpus.KINDS)
        assert set(paths(Asked(pattern="*.jpg"))) == {
            path for path in everything if path.endswith(".jpg")
        }
        inside = paths(Asked(inode, pattern="*.jpg"))
        assert inside == ["kinds/photo.jpg"]
        drawn = [paths(Asked(seed=seed, count=10)) for seed in (1, 1, 2)]
        assert drawn[0] == drawn[1] != drawn[2]
        assert set(paths(Asked(seed=3, count=10**6))) == {
            str(path.relative_to(tree)) for path in files
        }
        last = int(listings.numbers(Asked(order="time"))[-1])
        assert listings.position(Asked(order="time"), last) == len(top) - 1
        assert listings.position(Asked(inode), last) is None
        assert paths(Asked(pattern="*.jpg", reverse=True)) != []


def test_a_search_ends_when_nobody_waits_for_it(archive: Path) -> None:
    with Archive.open(archive) as opened:
        listings = Listings(opened.index)
        with pytest.raises(InterruptedError):
            listings.numbers(Asked(pattern="*"), lambda: False)
        assert len(listings.numbers(Asked(pattern="*"))) > 0


@pytest.mark.parametrize(
    ("name", "due"),
    [("a b", "a b"), ("\udcff", "\\xff"), ("a\nb", "a\\nb"), ("x\u202ey", "x\\u202ey"), ("é", "é")],
)
def test_names_are_shown_without_control_characters(name: str, due: str) -> None:
    assert shown(name) == due


# ---- kinds ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", corpus.KINDS)
def test_contents_without_a_name_have_a_kind(name: str) -> None:
    """The first bytes tell everything but the kinds of text."""
    view, content = corpus.KINDS[name]
    first = content()[: kinds.SNIFFED]
    found = kinds.kind_of("", first)
    by_text = ("text", "json", "jsonl", "csv", "svg")
    if view in by_text:
        assert found in by_text
    elif view != "npz":
        assert found == view
    if (kind := kinds.media_type(first)) is not None:
        assert kind.partition("/")[0] in ("image", "audio", "video", "application")


@pytest.mark.parametrize("name", [name for name in corpus.HOSTILE if "evil" in name])
def test_no_markup_has_a_media_type(name: str) -> None:
    assert kinds.media_type(corpus.HOSTILE[name][: kinds.SNIFFED]) is None


def test_every_static_file_is_served_and_exists() -> None:
    folder = Path(notebook.__file__).parent / "static"
    assert {name for name, _ in STATIC.values()} == {path.name for path in folder.iterdir()}


# ---- texts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("digits", ["0.25", "-1.5", "123456.789", "0.0001"])
def test_a_fraction_that_javascript_writes_alike_is_a_number(digits: str) -> None:
    assert texts.json_tree(digits.encode()) == {"tree": float(digits)}


@pytest.mark.parametrize(
    "digits", ["1.0", "0.10", "1e5", "0.00001", "0.12345678901234567890", "1e999", "12345678901e9"]
)
def test_any_other_fraction_keeps_its_digits(digits: str) -> None:
    assert texts.json_tree(digits.encode()) == {"tree": {"$number": digits}}


# ---- arrays and pictures -------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["u1", "i8", "f2", "f4", "f8", "?", ">i4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_statistics_of_arrays(dtype: str, order: str) -> None:
    random = np.random.default_rng(0)
    values = np.asarray(random.integers(0, 2, (5, 6, 7)).astype(dtype), order=order)  # type: ignore[call-overload]
    loaded = arrays.load_npy(corpus.npy(values))
    assert (loaded.values == values).all()
    facts = arrays.describe(loaded)
    assert facts["shape"] == [5, 6, 7]
    assert facts["statistics"]["mean"] == pytest.approx(values.astype("f8").mean())
    assert sum(bin_["count"] for bin_ in facts["histogram"]) == values.size
    picture = Image.open(io.BytesIO(arrays.slice_png(loaded, [3])))
    due = values[3].astype("f8") * 255
    assert (np.asarray(picture) == due).all()


def test_a_part_of_an_array_is_shown_as_a_part() -> None:
    data = corpus.npy(np.arange(1000, dtype=np.int64).reshape(100, 10))
    loaded = arrays.load_npy(data[: len(data) // 2])
    assert loaded.shape == (100, 10)
    assert 0 < len(loaded.values) < 100
    assert (loaded.values.ravel() == np.arange(loaded.values.size)).all()
    assert not loaded.is_whole
    assert arrays.describe(loaded)["cut_off"]
    flat = arrays.load_npy(corpus.npy(np.ones((30, 30)))[:-1000])
    assert flat.is_cut_off


@pytest.mark.parametrize(("most", "due"), [(1, 255), (20, 240), (200, 200), (0, 0)])
def test_small_bytes_are_shown_brighter(most: int, due: int) -> None:
    mask = np.zeros((2, 4, 4), np.uint8)
    mask[1, 1:3] = most
    data = arrays.slice_png(arrays.Loaded(mask, mask.shape), [1])
    assert np.asarray(Image.open(io.BytesIO(data))).max() == due


@pytest.mark.parametrize(
    "data",
    [
        b"\x93NUMPY", b"\x93NUMPY\x01\x00\xff\xff{", b"\x93NUMPY\x09\x00", b"",
        b"\x93NUMPY\x01\x00\x0a\x00{'descr':(",
        corpus.npy(np.zeros(3)).replace(b"(3,)", b"(-3,)"),
        corpus.npy(np.array([object()])),
        corpus.npy(np.zeros(3)).replace(b"<f8", b"|V0"),
    ],
)  # fmt: skip
def test_a_wrong_npy_file_raises_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a valid \.npy|never loaded"):
        arrays.load_npy(data)


@pytest.mark.parametrize("values", [[1e308, 1e308], [-1e308, 1e308], [5e-324, 1.0], [np.inf]])
def test_numbers_at_the_ends_of_floats_are_described(values: list[float]) -> None:
    facts = arrays.describe(arrays.load_npy(corpus.npy(np.array(values * 10))))
    json.dumps(facts, allow_nan=False)
    if np.isfinite(values).all():
        assert facts["statistics"]["minimum"] == min(values)
        assert facts["statistics"]["mean"] in (None, np.mean(np.array(values) / 2) * 2)
        assert sum(bar["count"] for bar in facts["histogram"]) in (0, 20)


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_compression_that_is_unpacked_as_a_whole_is_refused(compression: int) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as made:
        made.writestr("big.npy", corpus.npy(np.zeros(100)))
    with pytest.raises(ValueError, match="NumPy does not write"):
        arrays.load_member(out.getvalue(), 0)


def test_a_list_of_countless_arrays_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = corpus.npz(a=np.zeros(3), b=np.ones(3))
    monkeypatch.setattr(arrays, "MOST_ENTRIES", 1)
    for read in (arrays.npz_members, lambda data: arrays.load_member(data, 0)):
        with pytest.raises(ValueError, match="more than 1 arrays"):
            read(data)


@pytest.mark.parametrize("at_once", [1, 100, 10_000])
def test_scaling_in_parts_agrees_with_scaling_at_once(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(pictures, "SCALED_AT_ONCE", at_once)
    values = np.random.default_rng(0).normal(size=(37, 21))
    values[::5, 3], values[7], values[9, 2] = np.nan, np.inf, -np.inf
    finite = values[np.isfinite(values)]
    due = (values - finite.min()) / (finite.max() - finite.min()) * 255 + 0.5
    due = np.where(np.isfinite(values), due, 0).astype(np.uint8)
    assert (pictures.scaled(values) == due).all()
    assert not pictures.scaled(np.full((3, 2), np.nan)).any()


def jpeg_bomb(side: int, *, progressive: bool = False, components: int = 3) -> bytes:
    """Return a small JPEG that claims another size, and so many components in its first scan."""
    data = corpus.image_bytes("JPEG", corpus.photo(0), progressive=progressive)
    frame = data.index(b"\xff\xc2" if progressive else b"\xff\xc0") + 5
    data = data[:frame] + struct.pack(">HH", side, side) + data[frame + 4 :]
    scan = data.index(b"\xff\xda")
    if components < 3:
        header = b"\xff\xda\0%c%c" % (6 + 2 * components, components)
        data = data[:scan] + header + data[scan + 5 : scan + 5 + 2 * components] + data[scan + 11 :]
    return data


@pytest.mark.parametrize(
    "data",
    [
        jpeg_bomb(9000, progressive=True), jpeg_bomb(9000, components=1),
        jpeg_bomb(9000, components=2), corpus.png_bomb(9000),
    ],
)  # fmt: skip
def test_a_draft_of_a_large_jpeg_is_made_only_if_it_needs_little_memory(data: bytes) -> None:
    with pytest.raises(ValueError, match="too large"):
        pictures.thumbnail(data, 128)
    assert pictures.thumbnail(jpeg_bomb(9000), 128)[0] == "image/jpeg"


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F", "LA"])
def test_pictures_of_every_mode_get_a_thumbnail(mode: str) -> None:
    source = Image.fromarray(corpus.photo(1, 400, 300))
    picture = source.convert("I" if mode == "I;16" else mode)
    if mode == "I;16":
        picture = Image.fromarray(np.asarray(picture, np.uint16) * 200)
    out = io.BytesIO()
    picture.save(out, "TIFF")
    kind, data = pictures.thumbnail(out.getvalue(), 128)
    made = Image.open(io.BytesIO(data))
    assert made.size == (128, 96)
    assert kind in ("image/jpeg", "image/png")
    assert len(np.unique(np.asarray(made.convert("L")))) > (1 if mode == "1" else 20)


@pytest.mark.parametrize("frame", [0, 3])
def test_a_large_animation_is_refused_before_its_frames_are_decoded(
    monkeypatch: pytest.MonkeyPatch, frame: int
) -> None:
    out = io.BytesIO()
    frames = [Image.fromarray(corpus.photo(number)) for number in range(5)]
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:])
    monkeypatch.setattr(pictures, "MOST_PIXELS", 1000)
    monkeypatch.setattr("PIL.GifImagePlugin.GifImageFile.seek", lambda *_: pytest.fail("decoded"))
    with pytest.raises(ValueError, match="too large"):
        pictures.converted(out.getvalue(), frame)


@pytest.mark.parametrize(("pages", "due"), [(1, 1), (3, 3), (5, 4)])
def test_no_more_pages_of_a_tiff_are_looked_for_than_can_be_chosen(
    monkeypatch: pytest.MonkeyPatch, pages: int, due: int
) -> None:
    out = io.BytesIO()
    sizes = [(10 + page, 20 + page) for page in range(pages)]
    first, *others = [Image.new("L", size, page) for page, size in enumerate(sizes)]
    first.save(out, "TIFF", save_all=True, append_images=others)
    monkeypatch.setattr(pictures, "MOST_FRAMES", 4)
    damaged = out.getvalue().replace(struct.pack("<HHII", 256, 4, 1, 12), bytes(12))
    assert pictures.size_of(damaged)["frames"] == min(pages, 2)
    facts = pictures.size_of(out.getvalue())
    assert (facts["width"], facts["height"], facts["frames"]) == (10, 20, due)
    for page in range(due):
        made = Image.open(io.BytesIO(pictures.converted(out.getvalue(), page)[1]))
        assert made.size == sizes[page]
    assert Image.open(io.BytesIO(pictures.converted(out.getvalue(), 99)[1])).size == sizes[due - 1]


def test_pillow_may_lack_a_format(monkeypatch: pytest.MonkeyPatch) -> None:
    Image.init()
    monkeypatch.delitem(Image.OPEN, "AVIF", raising=False)
    assert pictures.size_of(corpus.image_bytes("PNG", corpus.photo(1, 40, 30)))["width"] == 40


@pytest.mark.parametrize(
    "data",
    [
        b"", b"GIF89a", corpus.png_bomb(), b"\xff\xd8\xff\xe0 x",
        *(corpus.image_bytes(kind, corpus.photo(1, 30, 20))[:999] for kind in ("BMP", "PPM")),
    ],
)  # fmt: skip
def test_pictures_that_cannot_be_decoded_say_why(data: bytes) -> None:
    with pytest.raises(ValueError, match="picture"):
        pictures.thumbnail(data, 128)


def test_a_table_that_is_cut_has_only_whole_rows() -> None:
    found = texts.table("a.csv", b"a;b\n1;2\n3", whole=False)
    assert (found["header"], found["rows"]) == ([["a", "b"]], [["1", "2"]])


def test_a_text_of_many_lines_comes_in_parts() -> None:
    data = b"".join(b"%d\n" % number for number in range(12_000))
    rest, parts = data, []
    while rest:
        parts.append(texts.text(rest, whole=True))
        rest = rest[parts[-1]["bytes"] :]
    assert "".join(part["text"] for part in parts) == data.decode()
    assert [part["text"].count("\n") for part in parts] == [5000, 5000, 2000]


def test_a_table_of_many_columns_has_fewer_rows() -> None:
    found = texts.table("a.csv", (b"1," * 199 + b"1\n") * 3000, whole=True)
    assert len(found["header"][0]) == 200
    assert len(found["rows"]) == 99
    assert found["more"]
    narrow = texts.table("a.csv", b"1,2\n" * 1001, whole=True)
    assert (len(narrow["rows"]), narrow["more"]) == (1000, False)


# ---- thumbnails ----------------------------------------------------------------------------


class Pictures:
    """Contents in memory. Counts what is read."""

    def __init__(self, count: int) -> None:
        self.data = [
            np.frombuffer(corpus.image_bytes("JPEG", corpus.photo(n)), np.uint8)
            for n in range(count)
        ]
        self.read: list[str] = []

    def item(self, key: str) -> Item:
        return Item(key, 4 << 20)  # so that a batch has two

    def part(self, key: str, offset: int, length: int) -> ffrecord.aliases.Bytes:
        return self.data[int(key)][offset : offset + length]

    def whole(self, keys: Sequence[str]) -> list[Found]:
        self.read += keys
        return [self.data[int(key)] for key in keys]


def test_thumbnails_that_are_scrolled_away_are_not_made() -> None:
    contents = Pictures(10)
    thumbnails = Thumbnails(contents)
    keys = [str(number) for number in range(10)]
    made: list[str] = []
    for each in thumbnails.make(keys, 160, lambda: len(made) < 3):
        made.append(each.key)
    assert made == ["0", "1", "2"]
    assert len(contents.read) <= 4
    again = [each.key for each in thumbnails.make(keys, 160, awaited)]
    assert sorted(again) == sorted(keys)
    assert contents.read.count("0") == 1  # kept
    thumbnails.close()


def test_a_decoder_that_fails_in_any_way_leaves_the_other_thumbnails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(data: Any, side: int) -> tuple[str, bytes]:
        if data is contents.data[1]:
            raise RuntimeError("no idea")
        return "image/png", b"made"

    contents = Pictures(3)
    monkeypatch.setattr("ffrecord.view.thumbnails.thumbnail", failing)
    thumbnails = Thumbnails(contents)
    made = {each.key: each for each in thumbnails.make(["0", "1", "2"], 160, awaited)}
    thumbnails.close()
    assert {key: each.data for key, each in made.items()} == {
        "0": b"made", "1": b"no idea", "2": b"made",
    }  # fmt: skip
    assert made["1"].media_type == ""


# ---- distributions -------------------------------------------------------------------------


def bytes_reader(path: Path) -> ffrecord.DatasetReader:
    return ffrecord.DatasetReader(path, dict.fromkeys(ffrecord.decoders, stored))


def test_distributions_count_every_datapoint(dataset_path: Path) -> None:
    with bytes_reader(dataset_path) as reader:
        found = Distributions(reader)
        facts = {field: found.describe(field, awaited) for field in reader.spec}
    for field, fact in facts.items():
        counted = sum(bar["count"] for bar in fact["bars"]) + fact.get("others", 0)
        assert counted == DATAPOINTS, field
    assert {bar["label"]: bar["count"] for bar in facts["label"]["bars"]} == dict.fromkeys(
        LABELS, DATAPOINTS // 3
    )
    assert (facts["age"]["minimum"], facts["age"]["maximum"]) == (0, DATAPOINTS - 1)
    assert [bar["label"] for bar in facts["words"]["bars"]] == ["0", "1", "2", "3", "4"]
    assert facts["words"]["what"] == "length"
    assert facts["caption"]["what"] == "stored bytes"
    assert [bar["count"] for bar in facts["good"]["bars"]] == [DATAPOINTS // 2] * 2


def test_filters_select_the_datapoints_of_their_bars(dataset_path: Path) -> None:
    with bytes_reader(dataset_path) as reader:
        found = Distributions(reader)
        dogs = found.matching((Filter("label", "dog"),), awaited)
        assert dogs.tolist() == list(range(1, DATAPOINTS, 3))
        both = (Filter("label", "dog"), Filter("age", None, 10, 20))
        assert found.matching(both, awaited).tolist() == [10, 13, 16, 19]
        bars = found.describe("score", awaited)["bars"]
        parts = [
            found.matching((Filter("score", None, b["low"], b["high"], b["closed"]),), awaited)
            for b in bars
        ]
        assert [len(part) for part in parts] == [bar["count"] for bar in bars]
        assert np.sort(np.concatenate(parts)).tolist() == list(range(DATAPOINTS))
        with pytest.raises(LookupError, match="no field"):
            found.matching((Filter("missing", "x"),), awaited)


def test_damaged_values_are_counted_apart(tmp_path: Path) -> None:
    with ffrecord.DatasetWriter(tmp_path / "ds", {"label": "utf8"}) as writer:
        for number in range(50):
            writer.append({"label": f"label-{number:02}"})
    raw = (tmp_path / "ds/label.ffr").read_bytes()
    (tmp_path / "ds/label.ffr").write_bytes(raw.replace(b"label-07", b"LABEL-07"))
    with bytes_reader(tmp_path / "ds") as reader:
        facts = Distributions(reader).describe("label", awaited)
    assert facts["unread"] == 1
    assert facts["distinct"] == 50


def test_values_that_are_too_large_for_a_column_are_not_read(tmp_path: Path) -> None:
    spec = {"label": "utf8", "packed": "utf8+gzip", "number": "int", "small": "int+gzip"}
    with ffrecord.DatasetWriter(tmp_path / "ds", spec) as writer:
        for row in range(200):
            text = "x" * 5000 if row == 7 else f"label {row % 2}"
            number = 1 << 80_000 if row == 9 else row % 2
            writer.append({"label": text, "packed": text, "number": number, "small": number})
    with bytes_reader(tmp_path / "ds") as reader:
        found = Distributions(reader)
        for field in ("label", "packed"):
            bars = found.describe(field, awaited)["bars"]
            assert [(bar["label"], bar["count"]) for bar in bars] == [
                ("label 0", 100), ("label 1", 99), ("…", 1),
            ]  # fmt: skip
            assert found.matching((Filter(field, "…"),), awaited).tolist() == [7]
        for field in ("number", "small"):
            facts = found.describe(field, awaited)
            assert [bar["count"] for bar in facts["bars"]] == [100, 99]
            assert (facts["not_finite"], facts["unread"]) == (1, 0)


# ---- notebooks and the command -------------------------------------------------------------


def test_show_serves_a_page_that_a_notebook_can_frame(archive: Path) -> None:
    import urllib.request

    with notebook.show(archive, height=300) as page:
        assert page.url in page._repr_html_()
        assert 'height="300"' in page._repr_html_()
        with urllib.request.urlopen(page.url, timeout=60) as answer:
            assert "frame-ancestors *" in answer.headers["Content-Security-Policy"]
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(page.url, timeout=60)

"""`App`: answers the page's requests about what `opening` opened. It knows nothing of sockets."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from importlib import resources
from urllib.parse import quote

from ffrecord.archive.index import ROOT
from ffrecord.archive.names import to_bytes
from ffrecord.errors import (
    DecodeError,
    FFRecordError,
    MissingPackageError,
    ReadFailedError,
    SampleChecksumError,
)
from ffrecord.version import __version__
from ffrecord.view import answers, previews
from ffrecord.view.answers import Answer
from ffrecord.view.contents import message, pieces
from ffrecord.view.datasets import Dataset
from ffrecord.view.distributions import Filter
from ffrecord.view.folder import Folder
from ffrecord.view.kinds import PICTURES, SNIFFED, extension, media_type
from ffrecord.view.listings import Asked
from ffrecord.view.opening import Opened
from ffrecord.view.requests import BadRequest, Request, asked_range
from ffrecord.view.thumbnails import SIDES, Thumbnail

MOST_ROWS = 500  # of a listing in one answer
MOST_THUMBNAILS = 100
MOST_SAMPLED = 10_000
ORDERS = ("name", "size", "time", "mode")
STATIC = {
    "": ("index.html", "text/html; charset=utf-8"),
    "style.css": ("style.css", "text/css; charset=utf-8"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
    **{f"{name}.js": (f"{name}.js", "text/javascript; charset=utf-8") for name in (
        "api", "app", "bar", "browser", "charts", "dataset", "dom", "hex", "overview", "preview",
        "rows", "scroller", "state", "thumbs", "tree", "values",
    )},
}  # fmt: skip
_FRAME = struct.Struct("<III")  # lengths of a key, a media type and the data


class App:
    """The requests of the page."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._routes: dict[str, Callable[[Request], Answer]] = {
            "api/about": self._about, "api/list": self._list, "api/locate": self._locate,
            "api/thumbs": self._thumbs, "api/preview": self._preview, "api/hex": self._hex,
            "api/picture": self._picture, "api/slice": self._slice, "api/member": self._member,
            "api/rows": self._rows, "api/sequence": self._sequence, "api/column": self._column,
            "api/overview": self._overview, "api/verify": self._verify, "file": self._file,
        }  # fmt: skip

    def answer(self, request: Request) -> Answer:
        """Answer a request. Errors become answers, too."""
        try:
            if request.path in STATIC:
                name, kind = STATIC[request.path]
                return answers.of_bytes(kind, _static(name))
            route = self._routes.get(request.path)
            if route is None:
                return answers.of_error(404, "there is no such page")
            return route(request)
        except BadRequest as error:
            return answers.of_error(400, message(error))
        except MissingPackageError as error:
            return answers.of_error(501, message(error))
        except (SampleChecksumError, ReadFailedError, DecodeError) as error:
            return answers.of_error(500, message(error), "damaged")
        except FFRecordError as error:
            return answers.of_error(500, message(error))
        except (LookupError, OSError) as error:
            return answers.of_error(404, message(error))
        except ValueError as error:
            return answers.of_error(422, message(error))
        except Exception as error:  # hostile contents may make a decoder fail in any way
            return answers.of_error(500, f"cannot be shown: {type(error).__name__}: {error}")

    # ---- listings ------------------------------------------------------------------------

    def _about(self, request: Request) -> Answer:
        opened = self._opened
        return answers.of_json({
            "kind": opened.shown.kind, "name": opened.name, "path": opened.path,
            "version": __version__, "pictures": sorted(PICTURES), **opened.shown.about(),
        })  # fmt: skip

    def _list(self, request: Request) -> Answer:
        shown = self._opened.shown
        if isinstance(shown, Dataset):
            raise BadRequest("a dataset has rows")
        offset, limit = request.number("offset", 0), request.number("limit", 100, MOST_ROWS)
        return answers.of_json(shown.page(self._asked(request), offset, limit, request.go_on))

    def _locate(self, request: Request) -> Answer:
        shown = self._opened.shown
        if isinstance(shown, Dataset):
            number = request.number("path")
            if number >= len(shown.reader):
                last = len(shown.reader) - 1
                raise LookupError(f"there is no datapoint {number:,}; the last is {last:,}")
            asked = _filters(request), _sample(request)
            return answers.of_json({"position": shown.position(number, *asked, request.go_on)})
        asked_list = self._asked(request) if request.has("order") else None
        return answers.of_json(shown.locate(request.text("path"), asked_list))

    def _asked(self, request: Request) -> Asked:
        shown = self._opened.shown
        order = request.text("order", "name")
        if order not in ORDERS:
            raise BadRequest(f"the order must be one of {', '.join(ORDERS)}")
        sample = _sample(request)
        folder = shown.folder(request.text("folder", "")) if isinstance(shown, Folder) else ROOT
        return Asked(
            folder, request.has("folders"), request.text("pattern", ""),
            None if sample is None else sample[0], 0 if sample is None else sample[1],
            order, request.has("reverse"),
        )  # fmt: skip

    # ---- contents ------------------------------------------------------------------------

    def _thumbs(self, request: Request) -> Answer:
        keys = request.text("keys").split(",")[:MOST_THUMBNAILS]
        shown = self._opened.shown
        for key in keys:
            with contextlib.suppress(FFRecordError):  # damage is shown in place of the thumbnail
                shown.item(key)  # a wrong key must fail before the answer begins
        side = SIDES[request.has("fine")]
        made = self._opened.thumbnails.make(keys, side, request.go_on)
        return Answer(200, answers.BYTES, _framed(made))

    def _preview(self, request: Request) -> Answer:
        shown, key = self._opened.shown, request.text("key")
        view = request.text("view", "")
        if view and view not in previews.VIEWS:
            raise BadRequest(f"the view must be one of {', '.join(previews.VIEWS)}")
        if isinstance(shown, Dataset) and not view:
            facts = shown.preview(key)
            if facts is not None:
                return answers.of_json(facts)
        return answers.of_json(previews.preview(shown, key, view, request.number("offset", 0)))

    def _hex(self, request: Request) -> Answer:
        length = request.number("length", previews.HEX_BYTES, previews.HEX_BYTES)
        part = self._opened.shown.part(request.text("key"), request.number("offset", 0), length)
        return answers.of_bytes(answers.BYTES, part.tobytes(), contents=True)

    def _picture(self, request: Request) -> Answer:
        shown = self._opened.shown
        found = previews.picture(shown, request.text("key"), request.number("frame", 0))
        return answers.of_bytes(*found, contents=True)

    def _slice(self, request: Request) -> Answer:
        shown, key = self._opened.shown, request.text("key")
        words = request.text("at", "").split(",")
        at = [int(word) for word in words if word.isdecimal() and len(word) < 12]
        if isinstance(shown, Dataset) and shown.is_array(key):
            return answers.of_bytes("image/png", shown.slice_png(key, at), contents=True)
        member = request.number("member") if request.has("member") else None
        made = previews.array_slice(shown, key, member, at)
        return answers.of_bytes("image/png", made, contents=True)

    def _member(self, request: Request) -> Answer:
        shown = self._opened.shown
        number = request.number("member")
        return answers.of_json(previews.array_facts(shown, request.text("key"), number))

    def _file(self, request: Request) -> Answer:
        """Send a file, or a range of it. Only types that cannot run scripts keep their type."""
        shown, key = self._opened.shown, request.text("key")
        item = shown.item(key)
        headers = {"Accept-Ranges": "bytes"}
        try:
            span = asked_range(request.range, item.size)
        except LookupError as error:
            answer = answers.of_error(416, message(error))
            answer.headers["Content-Range"] = f"bytes */{item.size}"
            return answer
        begin, end = span or (0, item.size)
        # Read first: damage at the start is then an error that the page can show.
        first = shown.part(key, 0, min(SNIFFED, item.size)).tobytes()
        kind = media_type(first)
        if request.has("svg") and kind is None and extension(item.name) == "svg":
            kind = "image/svg+xml"  # the page shows it as an <img>, where no script runs
        if request.has("download") or kind is None:
            name = item.name.rpartition("/")[2] or f"record-{key}"
            headers["Content-Disposition"] = (
                f"attachment; filename*=UTF-8''{quote(to_bytes(name), safe='')}"
            )
        if span is not None:
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{item.size}"
        return Answer(
            200 if span is None else 206, kind or answers.BYTES, pieces(shown, key, begin, end),
            end - begin, True, headers,
        )  # fmt: skip

    # ---- datasets ------------------------------------------------------------------------

    def _rows(self, request: Request) -> Answer:
        offset, limit = request.number("offset", 0), request.number("limit", 50, MOST_ROWS)
        asked = _filters(request), _sample(request)
        return answers.of_json(self._dataset().rows(*asked, offset, limit, request.go_on))

    def _sequence(self, request: Request) -> Answer:
        dataset = self._dataset()
        number, field = request.number("row"), request.text("field")
        if dataset.reader.spec.get(field, "")[-2:] != "[]" or number >= len(dataset.reader):
            raise LookupError(f"there is no sequence {field!r} in row {number}")
        start, count = request.number("start", 0), request.number("count", 100)
        return answers.of_json(dataset.sequence(number, field, start, count))

    def _column(self, request: Request) -> Answer:
        dataset = self._dataset()
        return answers.of_json(dataset.distributions.describe(request.text("field"), request.go_on))

    def _dataset(self) -> Dataset:
        shown = self._opened.shown
        if not isinstance(shown, Dataset):
            raise BadRequest("this is not a dataset")
        return shown

    # ---- the whole -----------------------------------------------------------------------

    def _overview(self, request: Request) -> Answer:
        return answers.of_json(self._opened.overview())

    def _verify(self, request: Request) -> Answer:
        checking = self._opened.checking
        if request.method == "POST":
            if request.has("stop"):
                checking.stop()
            else:
                checking.start()
        return answers.of_json(checking.state())


def _sample(request: Request) -> tuple[int, int] | None:
    if not request.has("seed"):
        return None
    return request.number("seed"), request.number("count", 100, MOST_SAMPLED)


def _filters(request: Request) -> tuple[Filter, ...]:
    """Return filters from arguments such as `filter=label=cat` and `filter=age:2.0:5.0`."""
    found = []
    for text in request.texts("filter"):
        field, equals, label = text.partition("=")
        if equals:
            found.append(Filter(field, label))
            continue
        words = text.rsplit(":", 3)
        try:
            found.append(Filter(words[0], None, float(words[1]), float(words[2]), words[3] == "1"))
        except (ValueError, IndexError):
            raise BadRequest(f"the filter {text!r} is not understood") from None
    return tuple(found)


def _framed(made: Iterator[Thumbnail]) -> Iterator[bytes]:
    """Yield thumbnails as frames: three lengths, then key, media type and data."""
    for each in made:
        key, kind = each.key.encode(), each.media_type.encode()
        yield _FRAME.pack(len(key), len(kind), len(each.data)) + key + kind + each.data


def _static(name: str) -> bytes:
    return resources.files("ffrecord.view").joinpath("static").joinpath(name).read_bytes()

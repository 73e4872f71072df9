"""The page in a real browser: open, browse, preview, search, sample, filter, go back."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord.view
from ffrecord.view.server import Server
from tests.support import archives
from tests.view import browsers, corpus
from tests.view.browsers import Tab
from tests.view.conftest import DAMAGED, DATAPOINTS

MANY = 100_000


@pytest.fixture(scope="module")
def folder_tab(browser: Any, folder: Server) -> Iterator[Tab]:
    with browsers.tab(browser, folder) as opened:
        yield opened


@pytest.fixture
def tab(folder_tab: Tab) -> Iterator[Tab]:
    """Yield a tab that other tests have used: `go` loads the page anew, `move` does not."""
    folder_tab.page.set_viewport_size(browsers.DESKTOP)
    yield folder_tab
    folder_tab.check()


@pytest.fixture(scope="module")
def data_tab(browser: Any, dataset: Server) -> Iterator[Tab]:
    with browsers.tab(browser, dataset) as opened:
        yield opened


@pytest.fixture
def data(data_tab: Tab) -> Iterator[Tab]:
    yield data_tab
    data_tab.check()


def names(tab: Tab) -> list[str]:
    return list(tab.page.locator("#main .item .name").all_inner_texts())


# ---- packed folders ------------------------------------------------------------------------


def test_folders_are_entered_and_the_back_button_returns(tab: Tab) -> None:
    tab.go()
    tab.see("#main .item", "photos").click()
    tab.see("#main .item", "0003.jpg")
    assert tab.state == "/photos"
    assert tab.see("#tree .branch.chosen").inner_text() == "photos"
    tab.page.go_back()
    tab.see("#main .item", "hostile")
    assert tab.state in ("", "/")
    tab.page.go_forward()
    tab.see("#main .item", "0003.jpg")


def test_thumbnails_appear_and_damage_is_shown(tab: Tab) -> None:
    tab.go("#/photos")
    tab.see("#main .item img")
    problem = tab.see("#main .item .problem", "damaged")
    cell = problem.locator("xpath=ancestor::a")
    assert cell.locator(".name").inner_text() == Path(DAMAGED).name
    cell.click()
    said = tab.see("#preview .notice.damaged").inner_text()
    assert DAMAGED in said
    assert "checksum" in said
    tab.page.keyboard.press("ArrowRight")  # the page goes on
    tab.see("#preview h2[title='photos/0008.jpg']")
    tab.until("document.querySelector('#preview img')?.naturalWidth === 160")


@pytest.fixture(scope="module")
def in_page(folder_tab: Tab) -> Tab:
    """Return the tab with the page in it, for tests that only `move`."""
    folder_tab.go()
    folder_tab.see("#main .item")
    return folder_tab


@pytest.mark.parametrize("name", corpus.KINDS)
def test_every_kind_has_its_preview(in_page: Tab, tab: Tab, name: str) -> None:
    view = corpus.KINDS[name][0]
    tab.move(f"#/kinds?open=kinds/{name}")
    this = f"#preview:has(h2[title='kinds/{name}'])"
    body = tab.see(f"{this} .preview-body.as-{view}, {this} .notice.problem")
    if name == "pickled.npy":
        assert "never loaded" in body.inner_text()
        return
    assert f"as-{view}" in body.get_attribute("class")
    if view in ("image", "picture"):
        tab.until("document.querySelector('#preview img')?.naturalWidth > 0")
    shown = {
        "text": ".codeline[data-line='1']", "json": ".json .key", "jsonl": ".record .key",
        "csv": ".sheet td", "npy": ".numbers dd", "npz": ".tabs button", "audio": "audio",
        "video": "video", "pdf": "iframe", "hex": ".hexline .letters", "empty": ".notice",
    }  # fmt: skip
    if view in shown:
        tab.see(f"#preview {shown[view]}")
    if view in ("audio", "video"):
        tab.until(f"document.querySelector('{view}').duration > 0.9")


@pytest.mark.parametrize(
    ("name", "tag", "seconds"), [("film.webm", "video", 60), ("tone.wav", "audio", 600)]
)
def test_a_jump_in_a_film_or_sound_asks_only_for_the_rest(
    browser: Any, media: Server, name: str, tag: str, seconds: int
) -> None:
    with browsers.tab(browser, media) as tab:
        ranges: list[str] = []
        tab.page.on("response", lambda answer: ranges.append(answer.headers.get("content-range")))
        tab.go(f"#/?open={name}")
        tab.see(f"#preview {tag}")
        player = f"document.querySelector('#preview {tag}')"
        tab.until(f"{player}.readyState >= 1")
        assert tab.page.evaluate(f"{player}.duration") == pytest.approx(seconds)
        tab.page.evaluate(f"{player}.currentTime = {0.8 * seconds + 0.5}")
        tab.until(f"!{player}.seeking && {player}.readyState >= 2")
        begins = [int(each.split()[1].partition("-")[0]) for each in ranges if each]
        whole = int(next(each for each in ranges if each).rpartition("/")[2])
        assert begins[0] == 0
        assert 0.7 * whole < begins[-1] < whole
        if tag == "video":
            tab.page.evaluate(
                f"""() => {{
                  const canvas = document.createElement("canvas").getContext("2d");
                  canvas.drawImage({player}, 0, 0);
                  window.pixel = [...canvas.getImageData(32, 24, 1, 1).data];
                }}"""
            )
            pixel = tab.page.evaluate("window.pixel")[:3]
            assert np.abs(np.subtract(pixel, corpus.film_colour(48))).max() < 6


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serve a film of a minute, too long for the browser to load it ahead, and a sound of ten."""
    top = tmp_path_factory.mktemp("media")
    (top / "tree").mkdir()
    (top / "tree/film.webm").write_bytes(corpus.film(60, padding=800_000))
    (top / "tree/tone.wav").write_bytes(corpus.sound(600))
    archives.pack(top / "tree", top / "media.ffr")
    with browsers.served(top / "media.ffr") as server:
        yield server


def test_a_long_number_in_json_keeps_its_digits(tab: Tab) -> None:
    tab.go("#/kinds?open=kinds/tree.json")
    tab.see("#preview .json summary", "1 key").click()
    assert tab.see("#preview .json .num").inner_text() == str(2**70)


def test_a_long_text_is_shown_part_by_part(browser: Any, tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(6000)]
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/long.txt").write_text("\n".join(lines))
    (tmp_path / "tree/broken.json").write_text("[\n" + ",\n".join(lines))
    archives.pack(tmp_path / "tree", tmp_path / "t.ffr")
    ffrecord.write_dataset(tmp_path / "set", [{"text": "\n".join(lines)}], progress=False)
    places = [
        (tmp_path / "t.ffr", "open=long.txt", 6000),
        (tmp_path / "t.ffr", "open=broken.json", 6001),
        (tmp_path / "set", "cell=0.text", 6000),
    ]
    for path, state, count in places:
        with browsers.served(path) as server, browsers.tab(browser, server) as tab:
            tab.go(f"#/?{state}")
            tab.see(".codeline[data-line='5000']")
            assert tab.page.locator(".codeline").count() == 5000
            tab.page.locator(".more").click()
            tab.until(f"document.querySelectorAll('.codeline').length === {count}")
            assert lines[-1] in tab.page.locator(".codeline").last.inner_text()
            tab.page.locator(".more").wait_for(state="hidden")


def test_a_long_value_in_json_is_cut(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    content = '{"picture": "' + "A" * 5_000_000 + '", "digits": ' + "9" * 1_000_000 + "}"
    (tmp_path / "tree/long.json").write_text(content)
    archives.pack(tmp_path / "tree", tmp_path / "t.ffr")
    with browsers.served(tmp_path / "t.ffr") as server, browsers.tab(browser, server) as tab:
        tab.go("#/?open=long.json")
        assert "AAA… (5,000,000 letters)" in tab.see(".json .string").inner_text()
        assert "999… (1,000,000 letters)" in tab.see(".json .num").inner_text()


def test_every_file_can_be_shown_as_text_and_as_bytes(tab: Tab) -> None:
    tab.go("#/kinds?open=kinds/code.py")
    tab.see("#preview .pair button", "hex").click()
    line = tab.see("#preview .hexline", "def answer").inner_text()
    assert "64 65 66 20" in line
    assert "as=hex" in tab.state


def test_a_download_has_the_bytes_of_the_file(tab: Tab, tree: Path) -> None:
    tab.go("#/kinds?open=kinds/random.bin")
    tab.see("#preview .preview-head")
    with tab.page.expect_download() as waiting:
        tab.page.locator("#preview a[download]").click()
    assert waiting.value.suggested_filename == "random.bin"
    got = Path(waiting.value.path()).read_bytes()
    assert got == (tree / "kinds/random.bin").read_bytes()


def test_the_keyboard_moves_opens_searches_and_closes(tab: Tab) -> None:
    tab.go("#/kinds?view=table")
    tab.see("#main .item", "code.py")
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("ArrowDown")
    first = tab.see("#main .item.chosen .name").inner_text()
    tab.page.keyboard.press("Enter")
    tab.see("#preview h2", first.strip())
    tab.page.keyboard.press("Escape")
    tab.page.locator("#preview").wait_for(state="hidden")
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("*.npy")
    tab.see(".listing-head", "3 matches")
    tab.page.keyboard.press("Escape")
    tab.see(".listing-head", f"{len(corpus.KINDS)} entries")


def test_the_keys_go_on_in_a_folder_that_was_entered(tab: Tab) -> None:
    tab.go()
    tab.see("#main .item", "photos").click()  # with the mouse
    tab.see("#main .item", "0000.jpg")
    tab.page.keyboard.press("End")
    tab.see("#main .item.chosen", "0059.jpg")
    tab.page.keyboard.press("Backspace")
    tab.see("#main .item", "kinds")
    for _ in range(3):
        tab.page.keyboard.press("ArrowRight")
    tab.see("#main .item.chosen", "hostile")
    tab.page.keyboard.press("Enter")  # with the keyboard
    tab.see("#main .item", "evil.html")
    tab.page.keyboard.press("Home")
    tab.page.keyboard.press("Enter")
    tab.see("#preview h2", "script")
    tab.page.locator("[title='Overview']").click()
    tab.see(".tile", "files")
    tab.page.keyboard.press("Escape")
    tab.see("#main .item", "evil.html")
    tab.page.keyboard.press("Backspace")
    tab.see("#main .item", "kinds")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.NPY", {"kinds/matrix.npy", "kinds/pickled.npy", "kinds/series.npy"}),
        ("deep/**/*.txt", {"deep/er/and/deeper/file.txt"}),
        ("depth16", {"kinds/depth16.png", "kinds/depth16.tiff"}),
        ("nothing matches this", set()),
    ],
)
def test_a_search_finds_names_and_paths(tab: Tab, pattern: str, found: set[str]) -> None:
    tab.go("#/?view=table")
    tab.see("#main .item", "kinds")
    tab.page.locator("input[type=search]").fill(pattern)
    tab.see(".listing-head", f"for “{pattern}”")
    assert {name.strip() for name in names(tab)} == found


def test_enter_jumps_to_a_path(tab: Tab) -> None:
    tab.go()
    tab.see("#main .item", "kinds")
    tab.page.locator("input[type=search]").fill("photos/0030.jpg")
    tab.page.keyboard.press("Enter")
    tab.see("#preview h2[title='photos/0030.jpg']")
    tab.see("#main .item.chosen", "0030.jpg")


def test_enter_jumps_to_a_path_from_the_top_too(tab: Tab) -> None:
    tab.go("#/kinds")
    tab.see("#main .item", "code.py")
    tab.page.locator("input[type=search]").fill("photos/0030.jpg")
    tab.page.keyboard.press("Enter")
    tab.see("#preview h2[title='photos/0030.jpg']")


def test_another_file_in_the_url_is_chosen(tab: Tab) -> None:
    tab.go("#/photos?open=photos/0000.jpg")
    tab.see("#main .item.chosen", "0000.jpg")
    tab.move("#/photos?open=photos/0030.jpg")
    tab.see("#main .item.chosen", "0030.jpg")
    tab.page.locator("[title='Next (→)']").click()
    tab.see("#preview h2[title='photos/0031.jpg']")


def test_a_path_of_many_folders_can_be_read(tab: Tab) -> None:
    tab.go("#/" + "/".join(f"folder{number}" for number in range(60)))
    tab.see(".crumbs a", "folder59")
    ends = tab.page.locator(".crumbs a").evaluate_all(
        "each => each.map(a => [a.scrollWidth, a.clientWidth])"
    )
    assert all(needed <= room for needed, room in ends)


def test_a_sample_is_the_same_for_a_shared_link(tab: Tab) -> None:
    tab.go("#/photos?view=table")
    tab.see("#main .item", "0001.jpg")
    tab.page.locator("[title='Random sample']").click()
    tab.see(".listing-head", "drawn at random")
    state, drawn = tab.state, names(tab)
    tab.go(f"#{state}")
    tab.see(".listing-head", "drawn at random")
    assert names(tab) == drawn
    assert names(tab) != sorted(drawn)


def test_a_table_can_be_sorted(tab: Tab, tree: Path) -> None:
    tab.go("#/kinds?view=table")
    tab.see(".titles button", "Size").click()
    tab.see(".titles .active", "Size ↑")
    tab.see(".titles button", "Size").click()
    tab.see(".titles .active", "Size ↓")
    tab.see("#main .item", "random.bin")
    largest = max((tree / "kinds").iterdir(), key=lambda path: path.stat().st_size)
    assert names(tab)[0].strip() == largest.name


def test_the_overview_counts_and_verifies(tab: Tab) -> None:
    tab.go()
    tab.see("#main .item", "kinds")
    tab.page.locator("[title='Overview']").click()
    tab.see(".tile", "files")
    tab.see(".lines .line", "jpg")
    tab.see(".check button", "Verify all").click()
    tab.see(".check .bad", "1 problem in")
    assert DAMAGED in tab.see(".check .notice.damaged").inner_text()
    tab.page.go_back()
    tab.see("#main .item", "kinds")


def test_light_and_dark(browser: Any, folder: Server) -> None:
    colours = []
    for scheme in ("light", "dark"):
        with browsers.tab(browser, folder, color_scheme=scheme) as tab:
            tab.go()
            tab.see("#main .item")
            colours.append(tab.page.evaluate("getComputedStyle(document.body).backgroundColor"))
            tab.page.locator("[title='Light or dark']").click()
            colours.append(tab.page.evaluate("getComputedStyle(document.body).backgroundColor"))
    light, chosen_dark, dark, chosen_light = colours
    assert light == chosen_light
    assert dark == chosen_dark
    assert light != dark


def test_a_phone_has_room_for_everything(browser: Any, folder: Server) -> None:
    with browsers.tab(browser, folder, has_touch=True) as tab:
        tab.page.set_viewport_size(browsers.PHONE)
        tab.go()
        tab.see("#main .item", "photos")
        tab.page.locator("[title='Folders']").tap()
        tab.see("#tree .branch", "photos").tap()
        tab.see("#main .item img")
        tab.see("#main .item", "0002.jpg").tap()
        box = tab.see("#preview").bounding_box()
        assert (box["width"], box["height"]) == (390, 760)
        wide = "document.documentElement.scrollWidth <= innerWidth"
        assert tab.page.evaluate(wide)
        tab.page.locator("#preview [title^='Close']").tap()
        tab.page.locator("#preview").wait_for(state="hidden")


def test_the_head_of_a_preview_fits_every_window(tab: Tab) -> None:
    tab.go("#/photos?open=photos/0002.jpg")
    tab.see("#preview .pair button")
    for width in (320, 390, 640, 800, 1000, 1280):  # 800: a cell of a notebook
        tab.page.set_viewport_size({"width": width, "height": 600})
        assert tab.page.locator("#preview h2").bounding_box()["width"] > 60
        for part in tab.page.locator("#preview .preview-head button:visible").all():
            box = part.bounding_box()
            assert 0 <= box["x"] <= width - box["width"], (width, part.get_attribute("title"))


# ---- notebooks -----------------------------------------------------------------------------


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Serve a folder with pages of another site; yield the folder and its URL."""
    handler = partial(QuietHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield tmp_path, f"http://localhost:{server.server_address[1]}"
        server.shutdown()
        thread.join()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


def test_a_notebook_shows_the_page_in_a_frame_and_keeps_the_focus(
    browser: Any, archive: Path, notebook: tuple[Path, str]
) -> None:
    folder, url = notebook
    with ffrecord.view.show(archive, height=500) as shown:
        cell = "<!doctype html><textarea autofocus></textarea>"
        (folder / "cell.html").write_text(cell + shown._repr_html_())
        page = browser.new_page(viewport=browsers.DESKTOP)
        page.set_default_timeout(browsers.PATIENCE)
        page.goto(f"{url}/cell.html")
        frame = page.frame_locator("iframe[title='ffrecord view']")
        frame.locator("#main .item", has_text="photos").wait_for()
        assert page.evaluate("document.activeElement.tagName") == "TEXTAREA"
        frame.locator("#main .item", has_text="photos").click()
        frame.locator("#main .item img").first.wait_for()
        frame.locator("#main .item", has_text="0003.jpg").click()
        frame.locator("#preview img").wait_for()
        frame.locator("[title='Light or dark']").click()
        assert page.url == f"{url}/cell.html"
        page.close()


def test_pages_of_other_sites_cannot_frame_the_page_of_the_command(
    browser: Any, folder: Server, notebook: tuple[Path, str]
) -> None:
    place, url = notebook
    (place / "cell.html").write_text(f"<iframe src='{folder.url}'></iframe>")
    page = browser.new_page()
    with page.expect_console_message(lambda said: "frame-ancestors" in said.text):
        page.goto(f"{url}/cell.html")
    page.close()


# ---- large folders -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serve an archive with a folder of 100,000 pictures."""
    top = tmp_path_factory.mktemp("many")
    pictures = top / "tree" / "pictures"
    pictures.mkdir(parents=True)
    data = corpus.image_bytes("JPEG", corpus.photo(0, 48, 36), quality=60)
    made = 0
    while made < MANY:  # hard links, which pack fast
        first = pictures / f"{made:06}.jpg"
        first.write_bytes(data)
        for number in range(made + 1, min(made + 10_000, MANY)):
            os.link(first, pictures / f"{number:06}.jpg")
        made += 10_000
    ffrecord.pack_folder(top / "tree", top / "many.ffr")
    with browsers.served(top / "many.ffr") as server:
        yield server


def test_a_folder_of_100_000_images_scrolls(browser: Any, many: Server) -> None:
    with browsers.tab(browser, many) as tab:
        tab.go("#/pictures")
        tab.see("#main .item img")
        tab.see(".listing-head", "100,000 entries")
        list_ = "document.querySelector('#main .grid')"
        for share in (0.5, 0.123, 1.0):
            tab.page.evaluate(f"{list_}.scrollTop = {list_}.scrollHeight * {share}")
            tab.until(f"Math.abs({list_}.scrollTop - {list_}.scrollHeight * {share}) < 2000")
            near = f"Math.abs(parseInt(item.innerText, 10) - {share * MANY}) < {0.01 * MANY}"
            items = "[...document.querySelectorAll('#main .item:has(img)')]"
            tab.until(f"{items}.filter((item) => {near}).length >= 12")
        tab.see("#main .item", "099999.jpg")
        assert tab.page.locator("#main .item").count() < 200  # only visible cells exist
        tab.page.locator("#main .grid").focus()
        tab.page.keyboard.press("Home")
        tab.see("#main .item.chosen", "000000.jpg")
        tab.go("#/pictures?open=pictures/077777.jpg")
        tab.see("#main .item.chosen", "077777.jpg")


# ---- record files --------------------------------------------------------------------------


def test_records_are_shown_by_their_content(browser: Any, records: Server) -> None:
    views = [view for view, _ in corpus.KINDS.values()]
    by_view = {view: views.index(view) for view in views}
    with browsers.tab(browser, records) as tab:
        tab.go()
        tab.see("#main .item .bad", "checksum")
        tab.page.locator("input[type=search]").fill("99")
        tab.page.keyboard.press("Enter")
        tab.see(".search .bad", "no record 99")
        tab.page.locator("input[type=search]").fill(str(by_view["audio"]))
        tab.page.keyboard.press("Enter")
        tab.see("#preview audio")
        for view in ("npy", "picture", "hex", "pdf"):
            tab.go(f"#/?open={by_view[view]}")
            tab.see(f"#preview .preview-body.as-{view}")
        tab.go("#/?open=3")
        tab.see("#preview .notice.damaged", "record 3")


# ---- datasets ------------------------------------------------------------------------------


def test_a_click_in_a_histogram_filters(data: Tab) -> None:
    data.go()
    data.see("#main .datapoint img")
    data.see(".listing-head", f"{DATAPOINTS} datapoints")
    head = data.see(".head[data-field=label]")
    head.locator("g.bar").first.wait_for()
    assert head.locator("g.bar").count() == 3
    head.locator("g.bar").nth(1).click()
    data.see(".listing-head", "100 of 300 datapoints")
    data.see(".chip", "label = dog")
    labels = data.page.locator("#main .datapoint .cell:nth-child(3)").all_inner_texts()
    assert set(labels) == {"dog"}
    data.see(".head[data-field=age] g.bar").click()  # the first bar of 24: 0 … 12
    data.see(".listing-head", "4 of 300 datapoints")  # 1, 4, 7 and 10
    data.page.go_back()
    data.see(".listing-head", "100 of 300 datapoints")
    data.see(".chip").click()
    data.see(".listing-head", f"{DATAPOINTS} datapoints")


def test_values_have_previews(data: Tab) -> None:
    for field, selector in {
        "image": "img", "caption": ".codeline", "embedding": "img.pixels", "meta": ".json .key",
        "words": ".element", "frames": ".element img", "score": ".json .num",
    }.items():  # fmt: skip
        data.go(f"#/?cell=14.{field}")
        data.see(f"#preview {selector}")


def test_a_damaged_value_leaves_its_neighbours(data: Tab) -> None:
    data.go()
    row = data.see("#main .datapoint:has(.bad)")
    assert row.locator(".cell").first.inner_text() == "5"
    row.locator(".bad").click()
    data.see("#preview .notice.damaged", "caption.ffr")
    assert "owl" in row.inner_text()
    data.page.locator("input[type=search]").fill("250")
    data.page.keyboard.press("Enter")
    data.see("#main .datapoint.chosen", "250")


def test_a_sample_of_datapoints_is_seeded(data: Tab) -> None:
    data.go("#/?seed=7&count=20")
    data.see(".listing-head", "20 datapoints, drawn at random with seed 7")
    data.see("#main .datapoint:not(.waiting)")
    shown = data.page.locator("#main .datapoint .cell:first-child").all_inner_texts()
    drawn = np.random.default_rng(7).choice(DATAPOINTS, 20, replace=False).tolist()
    assert list(map(int, shown)) == list(itertools.islice(drawn, len(shown)))


# ---- hostile contents ----------------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(corpus.HOSTILE)))
def test_hostile_names_and_contents_run_no_script(in_page: Tab, tab: Tab, number: int) -> None:
    tab.move("#/hostile")
    tab.page.locator("#preview").wait_for(state="hidden")
    tab.page.evaluate("addEventListener('message', () => { window.hacked = 2 })")
    cell = tab.page.locator("#main .item").nth(number)
    cell.wait_for()
    name = cell.locator(".name").inner_text()
    cell.click()
    tab.see("#preview .preview-body[class*=as-], #preview .notice")
    for view in ("text", "hex"):
        buttons = tab.page.locator("#preview .pair button").filter(has_text=view)
        if buttons.count():
            buttons.first.click()
            tab.see(f"#preview .as-{view}")
    tab.page.wait_for_timeout(100)  # a script that runs late would run now
    assert tab.page.evaluate("window.hacked") is None, name
    assert tab.page.locator("main script, aside script, main [onerror]").count() == 0


@pytest.mark.parametrize("name", ["evil.html", "evil.svg", "polyglot.gif", "html-as.jpg"])
def test_contents_that_are_opened_by_themselves_are_confined(
    in_page: Tab, tab: Tab, name: str
) -> None:
    tab.move(f"#/hostile?open=hostile/{name}")
    tab.see(f"#preview h2[title='hostile/{name}']")
    address = tab.page.locator("#preview a[download]").evaluate("link => link.href")
    policies = tab.page.evaluate(
        """async (address) => Promise.all(["", "&svg=1"].map(async (more) => {
             const answer = await fetch(address.replace("&download=1", "") + more);
             return ["content-security-policy", "content-type", "x-content-type-options"]
               .map((name) => answer.headers.get(name));
           }))""",
        address,
    )
    for policy, kind, sniffing in policies:
        assert policy.startswith("sandbox; default-src 'none'")
        assert sniffing == "nosniff"
        assert kind in ("application/octet-stream", "image/gif", "image/svg+xml")

"""The page in a real browser: open, browse, preview, search, sample, filter, go back."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord
from ffrecord.view.server import Server
from tests.view import browsers, corpus
from tests.view.browsers import Tab
from tests.view.conftest import DAMAGED, DATAPOINTS

MANY = 100_000


@pytest.fixture
def tab(browser: Any, folder: Server) -> Iterator[Tab]:
    with browsers.tab(browser, folder) as opened:
        yield opened


@pytest.fixture
def data(browser: Any, dataset: Server) -> Iterator[Tab]:
    with browsers.tab(browser, dataset) as opened:
        yield opened


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


@pytest.mark.parametrize("name", corpus.KINDS)
def test_every_kind_has_its_preview(tab: Tab, name: str) -> None:
    view = corpus.KINDS[name][0]
    tab.go(f"#/kinds?open=kinds/{name}")
    body = tab.see(f"#preview .preview-body.as-{view}, #preview .notice.problem")
    if name == "pickled.npy":
        assert "never loaded" in body.inner_text()
        return
    assert f"as-{view}" in body.get_attribute("class")
    if view in ("image", "picture"):
        tab.until("document.querySelector('#preview img')?.naturalWidth > 0")
    shown = {
        "text": ".codeline[data-line='1']", "json": ".json .key", "jsonl": ".record .key",
        "csv": ".sheet td", "npy": ".numbers dd", "npz": ".tabs button", "audio": "audio",
        "pdf": "iframe", "hex": ".hexline .letters", "empty": ".notice",
    }  # fmt: skip
    if view in shown:
        tab.see(f"#preview {shown[view]}")
    if view == "audio":
        tab.until("document.querySelector('audio').duration > 0.9")


def test_a_long_number_in_json_keeps_its_digits(tab: Tab) -> None:
    tab.go("#/kinds?open=kinds/tree.json")
    tab.see("#preview .json summary", "1 key").click()
    assert tab.see("#preview .json .num").inner_text() == str(2**70)


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
def test_hostile_names_and_contents_run_no_script(tab: Tab, number: int) -> None:
    tab.go("#/hostile")
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
    tab: Tab, folder: Server, name: str
) -> None:
    tab.go(f"#/hostile?open=hostile/{name}")
    tab.see("#preview .preview-head")
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

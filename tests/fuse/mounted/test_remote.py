"""Mounts of archives that are read over the network: right bytes, and a loop that stays free."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
import pytest

import ffrecord
from ffrecord_fuse import MountError, mount
from ffrecord_fuse.mounting.mounttable import MOUNTINFO, find
from tests.fuse.mounted import mounting
from tests.fuse.mounted.conftest import Packed
from tests.fuse.mounted.mounting import (
    BY_FUSE,
    command,
    environment,
    fails_with,
    is_mounted,
    mounted,
    processes,
    stats,
    wait_until,
    wait_until_ended,
)
from tests.remote.proxy import Proxy, proxy
from tests.remote.servers import S3Server, nginx, s3
from tests.support import archives, trees

SIZE = 90_000
COUNT = 260
FILES = {f"d/{number:03}": trees.content(SIZE, number) for number in range(COUNT)} | {
    "large": trees.content(9_000_001), "few/link": b"small",
}  # fmt: skip
FAR_APART = list(FILES)[:COUNT:4][:64]
"""Files with more than `meter.LARGEST_GAP` between them. Each is a request of its own."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """Yield a folder, and the URL of the web server that serves it."""
    folder = tmp_path_factory.mktemp("site")
    folder.chmod(0o755)
    with nginx(folder, tmp_path_factory.mktemp("nginx")) as url:
        yield folder, url


@pytest.fixture(scope="module")
def running(site: tuple[Path, str]) -> Iterator[Proxy]:
    with proxy(site[1]) as found:
        yield found


@pytest.fixture
def through(running: Proxy) -> Iterator[Proxy]:
    running.reset()
    yield running
    running.reset()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.plain_tree(tmp_path_factory.mktemp("tree") / "top", FILES)


@pytest.fixture(scope="module")
def packed(site: tuple[Path, str], tree: Path) -> str:
    archives.pack(tree, site[0] / "tree.ffr")
    return "tree.ffr"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3() as running:
        yield running


# ---- bytes -------------------------------------------------------------------------------------


@BY_FUSE
def test_every_attribute_and_every_byte_equals_the_source(
    site: tuple[Path, str], whole: Packed, tmp_path: Path, backend: str
) -> None:
    shutil.copy(whole.archive, site[0] / "rich.ffr")
    with mounted(f"{site[1]}/rich.ffr", tmp_path / "mnt", backend=backend) as path:
        assert trees.differences(whole.source, path) == []
        network = stats(path)["network"]
        assert isinstance(network, dict)
        assert network["requests"] > 0
        assert network["bytes"] > 0
        assert network["request_seconds"] > 0


def test_an_archive_of_the_original_is_mounted(
    site: tuple[Path, str], original: Packed, tmp_path: Path
) -> None:
    """Its large files have no checksums of blocks: a thread reads them once from end to end."""
    shutil.copy(original.archive, site[0] / "original.ffr")
    with mounted(f"{site[1]}/original.ffr", tmp_path / "mnt") as path:
        for name in trees.paths(original.source):
            place = os.path.join(os.fsencode(original.source), name)
            if os.path.isfile(place):
                here = os.path.join(os.fsencode(path), name)
                assert Path(os.fsdecode(here)).read_bytes() == Path(os.fsdecode(place)).read_bytes()


@pytest.fixture
def in_s3(server: S3Server, shards: Packed, monkeypatch: pytest.MonkeyPatch) -> Packed:
    """Upload the shards to `s3://bucket/shards`, and set the variables that lead there."""
    for path in sorted(shards.archive.iterdir()):
        obstore.put(server.store, f"shards/{path.name}", path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    return shards


def test_shards_in_s3_are_mounted_with_credentials_from_the_environment(
    in_s3: Packed, tmp_path: Path
) -> None:
    with mounted("s3://bucket/shards", tmp_path / "mnt", "workers=2") as path:
        assert trees.differences(in_s3.source, path) == []
        assert os.getxattr(path, "user.ffrecord.archive") == b"s3://bucket/shards"


def test_the_kernel_serves_shards_that_are_whole_in_the_cache(
    in_s3: Packed, tmp_path: Path
) -> None:
    mounting.require("kernel")
    url, cache = "s3://bucket/shards", tmp_path / "cache"
    assert command("verify", url, "--cache", cache).returncode == 0
    for backend in ("kernel", "auto"):
        options = f"allow_other,cache={cache}"
        with mounted(url, tmp_path / "mnt", options, backend=backend) as path:
            assert trees.differences(in_s3.source, path) == []
            assert getattr(find(str(path)), "is_kernel", False)


def test_python_passes_storage_options_without_showing_them(
    server: S3Server, whole: Packed, tmp_path: Path
) -> None:
    obstore.put(server.store, "whole.ffr", whole.archive)
    log = tmp_path / "log"
    with mount("s3://bucket/whole.ffr", storage_options=server.options, log=log) as path:
        assert trees.differences(whole.source, Path(path)) == []
        assert_hidden(server.secret, path, log)
    wrong = {**server.options, "secret_access_key": "WRONG"}
    with (
        pytest.raises(MountError, match="access denied") as caught,
        mount("s3://bucket/whole.ffr", storage_options=wrong),
    ):
        pass
    assert "WRONG" not in str(caught.value)
    assert caught.value.filename == "s3://bucket/whole.ffr"
    with (
        pytest.raises(TypeError, match="must be text, numbers"),
        mount("s3://bucket/whole.ffr", storage_options={"credential_provider": print}),
    ):
        pass
    with pytest.raises(ValueError, match="is for URLs"), mount("a.ffr", storage_options={"a": "b"}):
        pass


def test_the_signature_of_a_url_is_shown_nowhere(
    through: Proxy, packed: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with mount(f"{through.url}/{packed}?sig=SECRET", log=log) as path:
        assert Path(path, "few/link").read_bytes() == b"small"
        assert all("SECRET" in request.path for request in through.requests)
        through.fault = lambda request: "403"
        with fails_with(errno.EIO):
            Path(path, "large").read_bytes()
        assert_hidden("SECRET", path, log)
        assert os.getxattr(path, "user.ffrecord.archive").decode() == f"{through.url}/{packed}"
    assert "access denied" in log.read_text()


def assert_hidden(secret: str, mountpoint: str, log: Path) -> None:
    """Check that a secret is in no argument, no log and no mount table."""
    for pid in processes(mountpoint):
        assert secret.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert secret not in Path(MOUNTINFO).read_text()
    assert secret not in log.read_text()


@pytest.mark.skipif(shutil.which("mount.fuse3") is None, reason="fuse3 is not installed")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may call mount(8)")
def test_mount8_takes_a_url(
    site: tuple[Path, str], packed: str, mountpoint: Path, tmp_path: Path
) -> None:
    program = tmp_path / "ffrecord-fuse"
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH="{mounting.ROOT}" exec "{sys.executable}" -m ffrecord_fuse "$@"\n'
    )
    program.chmod(0o755)
    source = f"{program}#{site[1]}/{packed}"
    words = f"ro,_netdev,deadline=30,requests=8,log={tmp_path}/log"
    mounting.output("mount", "-t", "fuse", source, mountpoint, "-o", words)
    assert (mountpoint / "few/link").read_bytes() == b"small"
    mounting.output("umount", mountpoint)
    assert wait_until_ended(mountpoint)


@pytest.mark.parametrize("protocol", ["file", "local"])
def test_a_protocol_of_fsspec_is_mounted(
    tree: Path, tmp_path: Path, protocol: str, site: tuple[Path, str], packed: str
) -> None:
    archive = Path(shutil.copy(site[0] / packed, tmp_path / "a.ffr"))
    with mounted(f"{protocol}://{archive}", tmp_path / "mnt") as path:
        assert (path / "large").read_bytes() == FILES["large"]
        archives.pack(trees.plain_tree(tmp_path / "other", {"d/000": b"other" * 20_000}), archive)
        with fails_with(errno.ESTALE):
            (path / "d/001").read_bytes()


# ---- requests ----------------------------------------------------------------------------------


def test_files_that_are_read_at_once_are_requested_at_once(
    through: Proxy, packed: str, tmp_path: Path
) -> None:
    with mounted(f"{through.url}/{packed}", tmp_path / "mnt") as path:
        before = len(through.requests)
        through.most = 0
        through.gates = [before + len(FAR_APART)]  # no answer before all are asked for
        with ThreadPoolExecutor(len(FAR_APART)) as pool:
            found = pool.map(lambda name: (path / name).read_bytes(), FAR_APART)
            assert list(found) == [FILES[name] for name in FAR_APART]
        assert through.most == len(FAR_APART)
        assert len(set(through.ranges()[before:])) == len(FAR_APART)


def test_a_tree_that_is_read_in_order_needs_few_requests_and_no_byte_twice(
    through: Proxy, packed: str, tree: Path, tmp_path: Path
) -> None:
    with mounted(f"{through.url}/{packed}", tmp_path / "mnt") as path:
        before = len(through.requests)
        for name in sorted(FILES):
            assert (path / name).read_bytes() == FILES[name]
        network = stats(path)["network"]
    assert isinstance(network, dict)
    spans = sorted(tuple(map(int, each.split("-"))) for each in through.ranges()[before:])
    assert network["requests"] == len(spans) < 20
    assert network["bytes"] == sum(end - begin + 1 for begin, end in spans)
    assert sum(map(len, FILES.values())) == network["bytes"]


def test_requests_limits_how_many_are_in_flight(
    through: Proxy, packed: str, tmp_path: Path
) -> None:
    with mounted(f"{through.url}/{packed}", tmp_path / "mnt", "requests=3") as path:
        through.delay, through.most = 0.01, 0
        with ThreadPoolExecutor(16) as pool:
            found = pool.map(lambda name: (path / name).read_bytes(), FAR_APART[:16])
            assert list(found) == [FILES[name] for name in FAR_APART[:16]]
        assert through.most <= 3


def test_names_are_answered_while_reads_are_stuck(
    through: Proxy, packed: str, tmp_path: Path
) -> None:
    with mounted(f"{through.url}/{packed}", tmp_path / "mnt", "workers=1") as path:
        through.is_held = True
        with ThreadPoolExecutor(4) as pool:
            before = len(through.requests)
            stuck = [pool.submit((path / name).read_bytes) for name in FAR_APART[:4]]
            assert wait_until(lambda: len(through.requests) >= before + 4)
            assert sorted(os.listdir(path)) == ["d", "few", "large"]
            assert len(os.listdir(path / "d")) == COUNT
            assert (path / "large").stat().st_size == len(FILES["large"])
            assert not any(each.done() for each in stuck)
            through.is_held = False
            assert [each.result() for each in stuck] == [FILES[name] for name in FAR_APART[:4]]


# ---- faults ------------------------------------------------------------------------------------


@BY_FUSE
def test_a_lost_network_is_eio_after_the_deadline_and_works_again_when_it_is_back(
    through: Proxy, packed: str, tmp_path: Path, backend: str
) -> None:
    log = tmp_path / "log"
    url = f"{through.url}/{packed}"
    with mounted(url, tmp_path / "mnt", "deadline=0.5", backend=backend, log=log) as path:
        through.fault = lambda request: "hang"
        for name in ("d/000", "large"):
            with fails_with(errno.EIO):
                (path / name).read_bytes()
        through.fault = lambda request: None
        time.sleep(1.1)  # reads that have just failed fail again at once
        for name in ("d/000", "large", "d/001"):
            assert (path / name).read_bytes() == FILES[name]
        assert stats(path)["damaged_reads"] == 0
        assert stats(path)["errors"] >= 2
    lines = log.read_text()
    assert lines.count("reading fails: ") == 1
    assert lines.count("reading works again after ") == 1
    assert "no whole answer within" in lines


def test_reads_that_wait_for_their_turn_do_not_wait_for_a_deadline_each(
    through: Proxy, packed: str, tmp_path: Path
) -> None:
    """With one request at a time, eight reads would otherwise make eight attempts."""
    options = "deadline=0.5,requests=1"
    with mounted(f"{through.url}/{packed}", tmp_path / "mnt", options) as path:
        before = len(through.requests)
        through.fault = lambda request: "hang"
        with ThreadPoolExecutor(8) as pool:
            found = pool.map(_errno_of_reading, [path / name for name in FAR_APART[:8]])
            assert list(found) == [errno.EIO] * 8
        assert len(through.requests) - before <= 4


def _errno_of_reading(path: Path) -> int | None:
    try:
        path.read_bytes()
    except OSError as error:
        return error.errno
    return None


@BY_FUSE
def test_a_replaced_object_is_estale_and_never_mixed(
    through: Proxy, site: tuple[Path, str], tmp_path: Path, backend: str
) -> None:
    name = f"replaced-{backend}.ffr"
    old = {f"{number:02}": trees.content(SIZE, number) for number in range(40)}
    new = {f"{number:02}": trees.content(SIZE, 100 + number) for number in range(40)}
    archives.pack(trees.plain_tree(tmp_path / "old", old), site[0] / name)
    log = tmp_path / "log"
    with mounted(f"{through.url}/{name}", tmp_path / "mnt", backend=backend, log=log) as path:
        assert (path / "00").read_bytes() == old["00"]
        archives.pack(trees.plain_tree(tmp_path / "new", new), site[0] / name)
        os.utime(site[0] / name, (0, 0))  # nginx makes its tags from seconds and sizes
        with fails_with(errno.ESTALE):
            (path / "30").read_bytes()
        assert (path / "00").read_bytes() == old["00"]  # in the page cache
        (site[0] / name).unlink()
        with fails_with(errno.ESTALE):
            (path / "20").read_bytes()
    assert f"{name}: replaced or deleted while it was mounted" in log.read_text()


@BY_FUSE
def test_bytes_that_arrive_damaged_are_fetched_once_more(
    through: Proxy, packed: str, tmp_path: Path, backend: str
) -> None:
    with mounted(f"{through.url}/{packed}", tmp_path / "mnt", backend=backend) as path:
        seen: set[str] = set()

        def every_first(request: object) -> str | None:
            asked = through.requests[request.number].range  # type: ignore[attr-defined]
            is_new = asked not in seen
            seen.add(asked)
            return "flip" if is_new else None

        through.fault = every_first
        for name in FAR_APART[:8]:
            assert (path / name).read_bytes() == FILES[name]
        through.fault = lambda request: "flip"
        with fails_with(errno.EIO):
            (path / FAR_APART[9]).read_bytes()
        assert stats(path)["damaged_reads"] > 0
        through.fault = lambda request: None
        assert (path / "large").read_bytes() == FILES["large"]


@pytest.mark.parametrize("fault", ["503", "reset", "short", "lie", "shift"])
def test_a_fault_that_does_not_last_is_not_noticed(
    through: Proxy, packed: str, tmp_path: Path, fault: str
) -> None:
    with mounted(f"{through.url}/{packed}", tmp_path / "mnt") as path:
        through.fault = lambda request: fault if request.number % 3 == 0 else None
        assert (path / "large").read_bytes() == FILES["large"]
        assert (path / FAR_APART[30]).read_bytes() == FILES[FAR_APART[30]]


# ---- processes ---------------------------------------------------------------------------------


@contextlib.contextmanager
def reader(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `cat` in a process that can be killed."""
    with subprocess.Popen(["cat", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as found:
        try:
            yield found
        finally:
            found.kill()


def test_a_mount_with_requests_in_flight_can_be_unmounted(
    through: Proxy, packed: str, tmp_path: Path
) -> None:
    with mounted(f"{through.url}/{packed}", tmp_path / "mnt") as path:
        before, through.is_held = len(through.requests), True
        with reader(path / "d/150") as cat:
            assert wait_until(lambda: len(through.requests) > before)
            done = command("umount", path)
            assert (done.returncode, is_mounted(path)) == (0, False)
            assert "still in use" in done.stderr
            through.is_held = False
            assert cat.communicate(timeout=mounting.PATIENCE)[0] == FILES["d/150"]
        assert wait_until_ended(path)


def test_sigterm_ends_a_mount_in_the_foreground_with_requests_in_flight(
    through: Proxy, packed: str, mountpoint: Path
) -> None:
    """The threads of the libraries for URLs must not get the signal."""
    arguments = [sys.executable, "-m", "ffrecord", "mount", "-f", f"{through.url}/{packed}"]
    with subprocess.Popen(
        [*arguments, mountpoint], env=environment(), stderr=subprocess.PIPE, text=True
    ) as daemon:
        assert wait_until(lambda: is_mounted(mountpoint))
        before, through.is_held = len(through.requests), True
        with reader(mountpoint / "d/150") as cat:
            assert wait_until(lambda: len(through.requests) > before)
            daemon.send_signal(signal.SIGTERM)
            said = daemon.communicate(timeout=mounting.PATIENCE)[1]
            assert cat.wait(mounting.PATIENCE) != 0
    assert daemon.returncode == 0
    assert "received SIGTERM" in said
    assert not is_mounted(mountpoint)


def test_a_killed_worker_is_replaced_and_its_reads_are_answered(
    through: Proxy, packed: str, tmp_path: Path
) -> None:
    with mounted(f"{through.url}/{packed}", tmp_path / "mnt") as path:
        assert (path / "few/link").read_bytes() == b"small"
        for name in ("d/150", "d/010"):
            _, worker = sorted(processes(path))
            before, through.is_held = len(through.requests), True
            with reader(path / name) as cat:
                assert wait_until(lambda before=before: len(through.requests) > before)  # type: ignore[misc]
                os.kill(worker, signal.SIGKILL)
                through.is_held = False
                assert cat.communicate(timeout=mounting.PATIENCE)[0] == FILES[name]
            assert worker not in processes(path)
        assert stats(path)["restarts"] == 2
        assert (path / "large").read_bytes() == FILES["large"]


def test_threads_that_read_do_not_wait_for_each_other_with_libfuse(
    through: Proxy, packed: str, tmp_path: Path
) -> None:
    mounting.require("fusepy")
    with mounted(f"{through.url}/{packed}", tmp_path / "mnt", backend="fusepy") as path:
        through.gates = [len(through.requests) + 4]
        with ThreadPoolExecutor(4) as pool:
            found = pool.map(lambda name: (path / name).read_bytes(), FAR_APART[:4])
            assert list(found) == [FILES[name] for name in FAR_APART[:4]]


# ---- options -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-o", "warm"], "warm is for local archives"),
        (["-o", "deadline=0"], "deadline must be a number of seconds up to 86400"),
        (["-o", "requests=0"], "requests must be a number from 1 to 4096"),
        (["--backend", "kernel"], "the archive has a URL, and is not whole in a cache"),
    ],
)
def test_options_that_a_url_cannot_have_are_refused(
    site: tuple[Path, str], packed: str, mountpoint: Path, options: list[str], message: str
) -> None:
    done = command("mount", f"{site[1]}/{packed}?sig=SECRET", mountpoint, *options)
    assert done.returncode != 0
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert "SECRET" not in done.stderr
    assert not is_mounted(mountpoint)


@pytest.mark.parametrize("word", ["deadline=5", "requests=2", "cache=folder", "cache_size=1GB"])
def test_options_for_urls_are_refused_for_a_path(
    whole: Packed, mountpoint: Path, word: str
) -> None:
    done = command("mount", whole.archive, mountpoint, "-o", word)
    assert done.returncode == 2
    assert f"{word.partition('=')[0]} is for URLs" in done.stderr


def test_auto_serves_a_url_with_fuse_and_says_why(
    site: tuple[Path, str], packed: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with mounted(f"{site[1]}/{packed}", tmp_path / "mnt", backend="auto", log=log) as path:
        assert (path / "few/link").read_bytes() == b"small"
    assert "the kernel back end is not used: the archive has a URL" in log.read_text()


@pytest.mark.parametrize(
    ("name", "message"),
    [("none.ffr", "no such object; check the URL"), ("text.ffr", "it has 5 bytes"),
     ("set", "this is a typed dataset")],
)  # fmt: skip
def test_a_url_that_is_no_archive_is_one_line_of_error(
    site: tuple[Path, str], mountpoint: Path, name: str, message: str
) -> None:
    (site[0] / "text.ffr").write_bytes(b"text\n")
    if not (site[0] / "set").exists():
        with ffrecord.DatasetWriter(site[0] / "set", {"number": "int"}) as points:
            points.append({"number": 1})
    done = command("mount", f"{site[1]}/{name}", mountpoint)
    assert done.returncode != 0
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not is_mounted(mountpoint)


def test_a_mount_of_a_local_archive_loads_nothing_for_urls(whole: Packed, tmp_path: Path) -> None:
    with mounted(whole.archive, tmp_path / "mnt") as path:
        assert trees.differences(whole.source, path) == []
        for pid in processes(path):
            assert "obstore" not in Path(f"/proc/{pid}/maps").read_text()


def test_an_overlay_keeps_changes_to_an_archive_with_a_url(
    site: tuple[Path, str], packed: str, tmp_path: Path
) -> None:
    changes = tmp_path / "changes"
    for content in (b"small", b"changed"):
        options = f"overlay={changes}"
        with mounted(f"{site[1]}/{packed}?sig=SECRET", tmp_path / "mnt", options) as path:
            assert (path / "few/link").read_bytes() == content
            (path / "few/link").write_bytes(b"changed")
            assert command("umount", path).returncode == 0
    assert "SECRET" not in (changes / "about.json").read_text()


# ---- the cache ---------------------------------------------------------------------------------


@BY_FUSE
def test_bytes_are_fetched_once_and_then_read_from_the_cache(
    through: Proxy, site: tuple[Path, str], whole: Packed, tmp_path: Path, backend: str
) -> None:
    name = f"cached-{backend}.ffr"
    shutil.copy(whole.archive, site[0] / name)
    options = f"cache={tmp_path}/cache,cache_size=1GB"
    for due in (True, False):
        with mounted(f"{through.url}/{name}", tmp_path / "mnt", options, backend=backend) as path:
            before = len(through.requests)
            assert trees.differences(whole.source, path) == []
            assert (len(through.requests) > before) == due
            assert mounting.command("umount", path).returncode == 0
            assert wait_until_ended(path)


@pytest.mark.parametrize("verify", ["always", "off"])
def test_damage_in_the_cache_is_repaired_from_the_network(
    through: Proxy, packed: str, tmp_path: Path, verify: str
) -> None:
    options = f"cache={tmp_path}/cache,verify={verify}"
    url = f"{through.url}/{packed}"
    with mounted(url, tmp_path / "mnt", options) as path:
        assert (path / "large").read_bytes() == FILES["large"]
        assert mounting.command("umount", path).returncode == 0
        assert wait_until_ended(path)
    (copy,) = (tmp_path / "cache").glob("*.copy")
    content = bytearray(copy.read_bytes())
    content[content.index(FILES["large"][5_000_000:5_001_000])] ^= 1
    copy.write_bytes(content)
    for is_repaired in (False, True):
        with mounted(url, tmp_path / "mnt", options) as path:
            before = len(through.requests)
            assert (path / "large").read_bytes() == FILES["large"]
            assert (len(through.requests) == before) == is_repaired
            assert stats(path)["damaged_reads"] == 0
            assert mounting.command("umount", path).returncode == 0
            assert wait_until_ended(path)


def test_two_mounts_share_a_cache(through: Proxy, packed: str, tmp_path: Path) -> None:
    options, url = f"cache={tmp_path}/cache", f"{through.url}/{packed}"
    with (
        mounted(url, tmp_path / "one", options) as one,
        mounted(url, tmp_path / "two", options) as two,
        ThreadPoolExecutor(8) as pool,
    ):
        found = pool.map(lambda name: [(top / name).read_bytes() for top in (one, two)], FILES)
        assert list(found) == [[content] * 2 for content in FILES.values()]


def test_the_kernel_serves_an_archive_that_is_whole_in_the_cache_and_pins_it(
    through: Proxy, site: tuple[Path, str], packed: str, tmp_path: Path
) -> None:
    mounting.require("kernel")
    cache, url, point = tmp_path / "cache", f"{through.url}/{packed}", tmp_path / "mnt"
    assert command("verify", url, "--cache", cache).returncode == 0
    with mounted(url, point, f"cache={cache}", backend="kernel") as path:
        for name in FAR_APART:
            assert (path / name).read_bytes() == FILES[name]
        # Another archive has no room in the cache, because this one is not dropped.
        (site[0] / "other.ffr").write_bytes((site[0] / packed).read_bytes())
        other = f"{through.url}/other.ffr"
        done = command("verify", other, "--cache", cache, "--cache-size", "33MB")
        assert done.returncode == 0, done.stderr
        assert "all files in it are in use" in done.stderr
        listed = command("cache", "ls", "--cache", cache).stdout.splitlines()
        (line,) = (line for line in listed if line.endswith(url))
        assert "100 %" in line
        assert "in use" in line
        through.fault = lambda request: "503"
        with (path / "large").open("rb") as file:
            assert "still in use" in command("umount", path).stderr
            assert file.read() == FILES["large"]
            assert processes(path)  # the copy is pinned until the last file is closed
        assert wait_until_ended(path)

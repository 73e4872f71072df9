"""S3 with signatures, by moto's server: credentials of all kinds, listing, versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import S3Store

import ffrecord
from ffrecord import (
    ChangedError,
    DatasetError,
    DatasetReader,
    FFRecordError,
    FileReader,
    PackedFolder,
    RemoteError,
    ShardedDatasetReader,
    UploadError,
    UrlError,
)
from ffrecord.remote import endpoints
from ffrecord.remote.cache import listing, publisher
from ffrecord.remote.cache.folder import CacheFolder
from tests.remote.servers import LISTED, S3Server, s3
from tests.support import archives, handmade, trees

FILES = {f"d/{i:02}": trees.content(3000 * i, i) for i in range(30)}
VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", *endpoints.VARIABLES,
             "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN")  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3() as running:
        yield running


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture(scope="module")
def uploaded(server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> S3Server:
    """Upload an archive, its shards and a dataset in 40 shards."""
    place = tmp_path_factory.mktemp("s3")
    top = trees.plain_tree(place / "top", FILES)
    archives.pack(top, place / "packed.ffr")
    archives.pack(top, place / "shards", shard_size=300_000)
    with ffrecord.ShardedDatasetWriter(place / "points", {"n": "int"}, shardlen=2) as writer:
        for number in range(79):
            writer.append({"n": number})
    (place / "odd name #1?.ffr").write_bytes((place / "packed.ffr").read_bytes())
    for path in sorted(place.rglob("*")):
        if path.is_file() and top not in path.parents:
            obstore.put(server.store, str(path.relative_to(place)), path)
    return server


def all_right(folder: PackedFolder) -> bool:
    return handmade.as_bytes(folder.read(list(FILES))) == list(FILES.values())


@pytest.mark.parametrize("way", ["options", "s3fs names", "environment", "profile", "AWS_PROFILE",
                                 "default profile", "store"])  # fmt: skip
def test_credentials_are_found_where_the_provider_keeps_them(
    uploaded: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: str
) -> None:
    url, remote = "s3://bucket/packed.ffr", dict[str, Any]()
    if way == "options":
        remote = {"storage_options": uploaded.options}
    elif way == "s3fs names":
        names = {"key": uploaded.key, "secret": uploaded.secret, "endpoint_url": uploaded.url}
        remote = {"storage_options": {**names, "region": "us-east-1"}}
    elif way == "environment":
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", uploaded.key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", uploaded.secret)
        monkeypatch.setenv("AWS_ENDPOINT_URL", uploaded.url)
        monkeypatch.setenv("AWS_REGION", "us-east-1")
    elif way == "store":
        url, remote = "packed.ffr", {"store": uploaded.store}
    else:
        name = "default" if way == "default profile" else "work"
        section = "default" if name == "default" else f"profile {name}"
        (tmp_path / ".aws").mkdir()
        (tmp_path / ".aws/config").write_text(
            f"[{section}]\nregion = us-east-1\nendpoint_url = {uploaded.url}\n"
        )
        (tmp_path / ".aws/credentials").write_text(
            f"[{name}]\naws_access_key_id = {uploaded.key}\n"
            f"aws_secret_access_key = {uploaded.secret}\n"
        )
        if way == "profile":
            remote = {"storage_options": {"profile": "work"}}
        elif way == "AWS_PROFILE":
            monkeypatch.setenv("AWS_PROFILE", "work")
    with PackedFolder(url, **remote) as folder:
        assert all_right(folder)


def test_a_cached_archive_in_s3_is_opened_with_one_request(
    uploaded: S3Server, tmp_path: Path
) -> None:
    ways: list[tuple[str, dict[str, Any]]] = [
        ("s3://bucket/packed.ffr", {"storage_options": uploaded.options}),
        ("s3://bucket/packed.ffr", {"storage_options": uploaded.options}),
        ("packed.ffr", {"store": uploaded.store}),
    ]
    counts = []
    for url, remote in ways:
        with PackedFolder(url, cache=tmp_path / "cache", **remote) as folder:
            assert all_right(folder)
            counts.append(folder.reader.stats()["requests"])
        publisher.publish_all()
    assert counts[0] >= 2
    assert counts[1:] == [1, 1]
    for path in (tmp_path / "cache").iterdir():
        assert uploaded.secret.encode() not in path.read_bytes()


def test_wrong_credentials_are_a_permission_error_that_does_not_show_them(
    uploaded: S3Server,
) -> None:
    options = {**uploaded.options, "secret_access_key": "a-wrong-SECRET"}
    with pytest.raises(PermissionError, match="check the credentials") as caught:
        FileReader("s3://bucket/packed.ffr", storage_options=options)
    assert "SECRET" not in str(caught.value)
    assert caught.value.filename == "s3://bucket/packed.ffr"


def test_wrong_options_and_profiles_are_named(
    uploaded: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UrlError, match="'acess_key_id'") as caught:
        FileReader("s3://KEY:SECRET@bucket/a.ffr", storage_options={"acess_key_id": "SECRET"})
    assert "SECRET" not in str(caught.value)
    with pytest.raises(UrlError, match="no profile 'none'"):
        FileReader("s3://bucket/a.ffr", storage_options={"profile": "none"})
    monkeypatch.setenv("AWS_PROFILE", "nope")
    with pytest.raises(UrlError, match=r"no profile 'nope' in ~/\.aws; check AWS_PROFILE"):
        FileReader("s3://bucket/a.ffr")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    with pytest.raises(UrlError, match="set AWS_SECRET_ACCESS_KEY, or secret_access_key in"):
        FileReader("s3://bucket/a.ffr")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(UrlError, match="set AWS_ACCESS_KEY_ID, or access_key_id in"):
        FileReader("s3://bucket/a.ffr", storage_options={"secret": "SECRET", "anon": False})
    for url in ("s3://", "s3:///x", "gs:///x", "az://"):
        with pytest.raises(UrlError, match="the URL has no bucket; write"):
            FileReader(url)


def test_a_missing_bucket_is_named_once(server: S3Server) -> None:
    with (
        pytest.raises(UploadError, match="the server has no such bucket, or lost a part") as caught,
        ffrecord.FileWriter("s3://none/a.ffr", storage_options=server.options) as writer,
    ):
        writer.write_one(b"one")
    assert "check the URL" not in str(caught.value)


def test_options_of_the_client_stand_beside_those_of_the_store(uploaded: S3Server) -> None:
    options = uploaded.options
    with pytest.raises(RemoteError, match="set allow_http in storage_options"):
        FileReader("packed.ffr", store=S3Store("bucket", **options))
    more = {"allow_http": True, "timeout": "9m", "user_agent": "test"}
    for given in ({**options, **more}, {"config": {**options, **more}}):
        with PackedFolder("s3://bucket/packed.ffr", storage_options=given) as folder:
            assert all_right(folder)
    for scheme in ("gs", "az", "http"):
        with pytest.raises(UrlError, match="'timeout'"):
            FileReader(f"{scheme}://bucket/a.ffr", storage_options={"timeout": "SECRET"})


@pytest.mark.parametrize("endpoint", ["127.0.0.1:5517", "u:SECRET@h:1", "ftp://u:SECRET@h",
                                      "https://", "http://a b", "http://h:99999"])  # fmt: skip
def test_an_endpoint_that_is_no_url_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], endpoint: str
) -> None:
    for name in ("endpoint", "endpoint_url", "aws_endpoint_url"):
        with pytest.raises(UrlError, match=r"the endpoint in storage_options .* must begin with"):
            FileReader("s3://bucket/a.ffr", storage_options={name: endpoint})
    with pytest.raises(UrlError, match=r"the endpoint in storage_options .* must begin with"):
        FileReader("az://bucket/a.ffr", storage_options={"endpoint": endpoint})
    for variable in endpoints.VARIABLES:
        scheme = "az" if variable.startswith("AZURE") else "s3"
        monkeypatch.setenv(variable, endpoint)
        with pytest.raises(UrlError, match=f"{variable} is '.*'; it must begin") as caught:
            FileReader(f"{scheme}://bucket/a.ffr", storage_options={"region": "us-east-1"})
        assert "SECRET" not in str(caught.value)
        monkeypatch.delenv(variable)
    assert capfd.readouterr().err == ""  # obstore prints stack traces of its panics


def test_an_empty_endpoint_counts_as_unset(
    uploaded: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endpoint(**options: str) -> Any:
        return endpoints.completed({"endpoint_url": "", **options}, "AWS").get("endpoint")

    assert endpoint() is None
    monkeypatch.setenv("AWS_ENDPOINT_URL", "")
    assert endpoint() == "https://s3.us-east-1.amazonaws.com"
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert endpoint() == "https://s3.eu-west-1.amazonaws.com"
    assert endpoint(region="us-west-2") == "https://s3.us-west-2.amazonaws.com"
    with PackedFolder("s3://bucket/packed.ffr", storage_options=uploaded.options) as folder:
        assert all_right(folder)
    monkeypatch.setenv("AWS_ENDPOINT", uploaded.url)
    assert endpoint() == uploaded.url
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "")
    with pytest.raises(UrlError, match="AWS_ENDPOINT_URL_S3 is empty; unset it"):
        FileReader("s3://bucket/packed.ffr", storage_options=uploaded.options)


def test_the_server_of_a_profile_comes_after_options_and_the_environment(
    uploaded: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = f"[profile work]\naws_access_key_id = {uploaded.key}\n"
    text += f"aws_secret_access_key = {uploaded.secret}\nendpoint_url = http://127.0.0.1:1\n"
    (tmp_path / "config").write_text(text)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    options = {"profile": "work", "region": "us-east-1"}
    with pytest.raises(RemoteError, match="no connection"):
        FileReader("s3://bucket/packed.ffr", storage_options=options)
    given = {**options, "aws_endpoint_url": uploaded.url}
    FileReader("s3://bucket/packed.ffr", storage_options=given).close()
    for variable in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(variable, uploaded.url)
        FileReader("s3://bucket/packed.ffr", storage_options=options).close()
        monkeypatch.delenv(variable)


def test_a_panic_of_obstore_is_an_error_that_names_the_options() -> None:
    with pytest.raises(UrlError, match="'aws_allow_http'"):
        FileReader("s3://bucket/a.ffr", storage_options={"aws_allow_http": True})


@pytest.mark.parametrize("folder", ["shards/", "shards"])
def test_a_folder_of_shards_is_listed(uploaded: S3Server, folder: str) -> None:
    with PackedFolder(f"s3://bucket/{folder}", storage_options=uploaded.options) as opened:
        assert all_right(opened)


def test_a_missing_object_or_folder_is_a_file_not_found_error(uploaded: S3Server) -> None:
    for name in ("none.ffr", "none", "none/"):
        with pytest.raises(FileNotFoundError) as caught:
            PackedFolder(f"s3://bucket/{name}", storage_options=uploaded.options)
        assert caught.value.filename == f"s3://bucket/{name}".rstrip("/")


def test_a_sharded_dataset_is_listed_and_read(uploaded: S3Server) -> None:
    with ShardedDatasetReader("s3://bucket/points", storage_options=uploaded.options) as reader:
        assert reader.shards == 40
        assert [reader[i]["n"] for i in range(79)] == list(range(79))


def test_keys_may_contain_any_character(uploaded: S3Server) -> None:
    with PackedFolder("s3://bucket/odd name #1?.ffr", storage_options=uploaded.options) as folder:
        assert all_right(folder)


@pytest.mark.parametrize("name", ["run#1", "what?now", "50%"])
def test_folders_may_have_any_name(server: S3Server, tmp_path: Path, name: str) -> None:
    target = f"s3://bucket/{name}"
    remote: dict[str, Any] = {"storage_options": server.options}
    top = trees.plain_tree(tmp_path / "top", FILES)
    ffrecord.pack_folder(top, target, shard_size="1MB", **remote)
    for url in (target, f"{target}/"):
        with PackedFolder(url, **remote) as folder:
            assert all_right(folder)
    with pytest.raises(FileNotFoundError) as caught:
        FileReader(f"{target}/none.ffr", **remote)
    assert caught.value.filename == f"{target}/none.ffr"


def test_copies_in_the_cache_have_the_names_of_their_objects(
    uploaded: S3Server, tmp_path: Path
) -> None:
    url = "s3://bucket/odd name #1?.ffr"
    with PackedFolder(url, cache=tmp_path / "cache", storage_options=uploaded.options):
        found = listing.listed(CacheFolder(str(tmp_path / "cache"), None))
    assert [each.url for each in found] == [url]
    publisher.publish_all()


def test_names_that_no_object_can_have_are_an_error_that_says_why(uploaded: S3Server) -> None:
    for name in ("a/../packed.ffr", "./packed.ffr", "a//b.ffr"):
        with pytest.raises(RemoteError, match=r"a part of it is empty, `\.` or `\.\.`"):
            FileReader(f"s3://bucket/{name}", storage_options=uploaded.options)
        with pytest.raises(RemoteError, match="check the URL or key"):
            FileReader(name, store=uploaded.store)


def test_empty_objects_are_errors_of_the_dataset_and_of_the_file(uploaded: S3Server) -> None:
    obstore.put(uploaded.store, "empty/spec.json", b"")
    obstore.put(uploaded.store, "empty.ffr", b"")
    with pytest.raises(DatasetError, match=r"spec\.json"):
        DatasetReader("s3://bucket/empty", storage_options=uploaded.options)
    with pytest.raises(FFRecordError, match="it has 0 bytes"):
        FileReader("s3://bucket/empty.ffr", storage_options=uploaded.options)


def test_a_replaced_object_is_an_error(uploaded: S3Server, tmp_path: Path) -> None:
    path = handmade.write_records(tmp_path / "a.ffr", [b"a" * 300_000, b"b", b"c" * 300_000])
    obstore.put(uploaded.store, "changing.ffr", path)
    with FileReader("s3://bucket/changing.ffr", storage_options=uploaded.options) as reader:
        assert bytes(reader.read_one(1)) == b"b"
        handmade.write_records(path, [b"a" * 300_000, b"B", b"c" * 300_000])
        obstore.put(uploaded.store, "changing.ffr", path)
        with pytest.raises(ChangedError, match=r"s3://bucket/changing\.ffr: replaced"):
            reader.read_one(1)


def test_more_files_than_a_page_of_a_listing_are_found_and_opened(
    uploaded: S3Server, tmp_path: Path
) -> None:
    path = handmade.write_records(tmp_path / "a.ffr", [b"one"])
    count = 3 * LISTED + 1
    for number in range(count):
        obstore.put(uploaded.store, f"many/{number:04}.ffr", path)
    with FileReader("s3://bucket/many/", storage_options=uploaded.options) as reader:
        assert reader.n == count
        assert bytes(reader.read_one(count - 1)) == b"one"

"""`-o` strings: every option, every mistake, and values with any characters."""

from __future__ import annotations

import contextlib
import dataclasses
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffrecord import FFRecordError
from ffrecord_fuse.errors import OptionError
from ffrecord_fuse.mounting.options import BACKENDS, IDLE, VERIFY, Options, escape, parse

# Any path: all of Unicode, and the surrogates for bytes that are not UTF-8, but no NUL.
paths = st.text(
    st.characters(exclude_characters="\0")
    | st.sampled_from(["\\", ",", "=", "\n", " ", "x", "-", "\udcff"]),
    min_size=1,
)


def test_an_empty_string_gives_the_defaults() -> None:
    assert parse("") == parse([]) == parse(["", ""]) == parse(",,") == Options()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("allow_other", Options(allow_other=True)),
        ("allow_root", Options(allow_root=True)),
        ("warm", Options(warm=True)),
        ("warm,verify=off", Options(warm=True, verify="off")),
        ("uid=0", Options(uid=0)),
        ("uid=1000,gid=100", Options(uid=1000, gid=100)),
        ("uid=4294967294", Options(uid=4294967294)),
        ("umask=0", Options(umask=0)),
        ("umask=022", Options(umask=0o022)),
        ("umask=777", Options(umask=0o777)),
        ("umask=0077", Options(umask=0o077)),
        ("verify=first", Options(verify="first")),
        ("verify=before", Options(verify="before")),
        ("verify=always", Options(verify="always")),
        ("verify=off", Options(verify="off")),
        ("workers=1", Options(workers=1)),
        ("workers=256", Options(workers=256)),
        ("spin=0", Options(spin=0)),
        ("spin=500", Options(spin=500)),
        ("idle=poll", Options(idle="poll")),
        ("memory=0", Options(memory=0)),
        ("memory=8GB", Options(memory=8 * 10**9)),
        ("idle=halt", Options(idle="halt")),
        ("requests=1,deadline=0.25", Options(requests=1, deadline=0.25)),
        (r"cache=a\,b,cache_size=2GB", Options(cache="a,b", cache_size=2 * 10**9)),
        ("log=/var/log/a b", Options(log="/var/log/a b")),
        ("log=a=b", Options(log="a=b")),
        (r"log=a\,b", Options(log="a,b")),
        (r"log=a\\,spin=1", Options(log="a\\", spin=1)),
        (r"log=a\\\,b", Options(log="a\\,b")),
        ("log=a\\\n,spin=1", Options(log="a\n", spin=1)),
        ("backend=native", Options()),
        ("backend=fusepy", Options(backend="fusepy")),
        ("backend=kernel,subdir=a/b", Options(backend="kernel", subdir="a/b")),
        (r"backend=auto,subdir=a\,b", Options(backend="auto", subdir="a,b")),
        ("noexec", Options(kernel=("noexec",))),
        ("noatime,noexec", Options(kernel=("noatime", "noexec"))),
        ("nosuid,nodev,nodiratime", Options(kernel=("nosuid", "nodev", "nodiratime"))),
    ],
)
def test_each_word_sets_its_field(text: str, expected: Options) -> None:
    assert parse(text) == expected
    assert parse([text]) == expected
    assert parse(f"ro,,{text},") == expected


def test_a_backslash_at_the_end_is_kept() -> None:
    assert parse("log=a\\") == Options(log="a\\")


def test_several_strings_are_applied_in_order() -> None:
    assert parse(["uid=1,noexec", "gid=2", "uid=3"]) == Options(uid=3, gid=2, kernel=("noexec",))
    assert parse("uid=1,gid=2,uid=3") == Options(uid=3, gid=2)


@pytest.mark.parametrize(
    "text",
    [
        "ro", "defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group", "_netdev",
        "nofail", "x-systemd.automount", "x-systemd.idle-timeout=10min", "X-mount.mkdir=0755", "x-",
        "comment=anything", "comment=", r"comment=a\,rw", "user=alice", "async", "relatime", "sync",
        "default_permissions", "silent", "uhelper=udisks2",
    ],
)  # fmt: skip
def test_words_meant_for_mount8_change_nothing(text: str) -> None:
    assert parse(text) == Options()


def test_words_that_mount8_adds_remove_no_protection() -> None:
    assert parse("ro,dev,suid") == Options()
    assert parse("nosuid,nodev,dev,suid").kernel == ("nosuid", "nodev")


def test_the_last_of_a_flag_and_its_opposite_takes_precedence() -> None:
    assert parse("noexec,exec").kernel == ()
    assert parse("exec,noexec").kernel == ("noexec",)
    assert parse("noexec,noatime,nodiratime,atime,diratime").kernel == ("noexec",)
    assert parse("noexec,noatime,noexec").kernel == ("noatime", "noexec")


@pytest.mark.parametrize("text", ["rw", "ro,rw", "rw,ro", "defaults,rw,allow_other"])
def test_rw_from_mount8_changes_nothing(text: str) -> None:
    assert parse(text, by_mount8=True) == parse(text.replace("rw", "ro"), by_mount8=True)


@pytest.mark.parametrize("text", ["rw", "ro,rw", "defaults,rw,allow_other"])
def test_rw_from_a_user_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"^rw is not possible, because mounts are read-only"):
        parse(text)


def test_the_last_of_ro_and_rw_takes_precedence() -> None:
    assert parse("rw,ro") == parse(["defaults,rw", "ro"]) == Options()


@pytest.mark.parametrize("word", ["noexce", "ALLOW_OTHER", " ro", "nonempty", "=1", "x", "é"])
def test_an_unknown_word_is_reported_with_the_known_words(word: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(f"ro,{word},noexec")
    line = str(caught.value)
    assert line.startswith(f"unknown option {word.partition('=')[0]!r}; ")
    fields = {field.name for field in dataclasses.fields(Options)} - {"kernel"}
    for each in fields | {"ro", "noexec", "nosuid", "nodev", "noatime", "nodiratime"}:
        assert each in line


@pytest.mark.parametrize(
    "name", ["uid", "gid", "umask", "verify", "workers", "spin", "idle", "log"]
)
@pytest.mark.parametrize("equals", ["", "="])
def test_a_missing_value_is_reported(name: str, equals: str) -> None:
    with pytest.raises(OptionError, match=f"^{name} needs a value; write {name}="):
        parse(f"{name}{equals}")


@pytest.mark.parametrize(
    "name", ["allow_other", "allow_root", "warm", "noexec", "exec", "ro", "rw", "nofail"]
)
def test_a_switch_with_a_value_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=f"^{name} takes no value; write {name} alone"):
        parse(f"{name}=1")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("uid=alice", "a user's number, as `id -u` prints it"),
        ("uid=-1", "a user's number"),
        ("uid=4294967295", "a user's number"),
        ("gid=1e3", "a group's number, as `id -g` prints it"),
        ("gid=" + "9" * 10_000, "a group's number"),
        ("umask=8", "an octal number from 0 to 777"),
        ("umask=0o22", "an octal number"),
        ("umask=1000", "an octal number"),
        ("verify=never", "one of first, always, off"),
        ("verify=First", "one of first, always, off"),
        ("workers=0", "a number from 1 to 256"),
        ("workers=257", "a number from 1 to 256"),
        ("workers= 2", "a number from 1 to 256"),
        ("workers=1_0", "a number from 1 to 256"),
        ("workers=٣", "a number from 1 to 256"),
        ("workers=²", "a number from 1 to 256"),
        ("spin=1000001", "a number from 0 to 1000000"),
        ("spin=0.5", "a number from 0 to 1000000"),
        ("idle=sleep", "one of poll, halt"),
        ("memory=much", "a size such as 8GB, or 0"),
        ("cache_size=much", "a size such as 100GB"),
        ("requests=0", "a number from 1 to 4096"),
        *(
            (f"deadline={value}", "a number of seconds up to 86400, such as 30 or 0.5")
            for value in ("0", "-1", "1e3", "nan", "86401", "٣", ".5", "1.")
        ),
        ("backend=libfuse", "one of native, fusepy"),
        ("log=a\0b", "a file name without a NUL character"),
    ],
)
def test_an_invalid_value_is_reported_with_the_valid_ones(text: str, reason: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(text)
    name = text.partition("=")[0]
    assert str(caught.value).startswith(f"{text} is not valid; {name} must be {reason}")


@pytest.mark.parametrize("text", ["allow_other,allow_root", "allow_root,overlay=/changes"])
def test_options_that_exclude_each_other(text: str) -> None:
    with pytest.raises(OptionError, match="exclude each other"):
        parse(text)


@pytest.mark.parametrize(("text", "flags"), [("", ()), ("rw", ()), ("ro", ("ro",)), ("ro,rw", ())])
def test_an_overlay_can_be_changed_unless_ro_is_given(text: str, flags: tuple[str, ...]) -> None:
    assert parse([text, "overlay=/a\\,b"]) == Options(overlay="/a,b", kernel=flags)


def test_an_option_error_is_a_value_error_and_an_ffrecord_error_with_exit_code_2() -> None:
    assert issubclass(OptionError, ValueError)
    assert issubclass(OptionError, FFRecordError)
    assert OptionError.exit_code == 2
    copy = pickle.loads(pickle.dumps(OptionError("why")))
    assert (type(copy), str(copy)) == (OptionError, "why")


@given(paths)
def test_an_escaped_value_is_parsed_unchanged(path: str) -> None:
    assert parse(f"log={escape(path)}") == Options(log=path)
    assert parse(f"uid=1,log={escape(path)},gid=2") == Options(uid=1, gid=2, log=path)


@given(st.text())
def test_escaped_text_is_one_word_however_many_commas_it_has(text: str) -> None:
    assert parse(f"noexec,comment={escape(text)},noatime").kernel == ("noexec", "noatime")


@given(st.text(st.sampled_from(",=\\\nabro-x1") | st.characters()) | st.text())
def test_any_text_is_parsed_or_is_an_option_error(text: str) -> None:
    with contextlib.suppress(OptionError):
        assert isinstance(parse(text), Options)


@given(
    st.builds(
        Options,
        allow_other=st.booleans(),
        uid=st.integers(0, 2**32 - 2),
        gid=st.integers(0, 2**32 - 2),
        umask=st.integers(0, 0o777),
        verify=st.sampled_from(VERIFY),
        workers=st.integers(1, 256),
        spin=st.integers(0, 1_000_000),
        idle=st.sampled_from(IDLE),
        kernel=st.permutations(["noexec", "noatime", "nodev"]).map(tuple),
        log=paths,
        subdir=paths,
        backend=st.sampled_from(BACKENDS),
        warm=st.booleans(),
    )
)
def test_options_written_out_parse_to_themselves(options: Options) -> None:
    words = [f"umask={options.umask:o}", *options.kernel]
    words += ["allow_other"] if options.allow_other else []
    words += ["warm"] if options.warm else []
    for name in ("uid", "gid", "verify", "workers", "spin", "idle", "log", "subdir", "backend"):
        words.append(f"{name}={escape(str(getattr(options, name)))}")
    assert parse(",".join(words)) == options
    assert parse(words) == options

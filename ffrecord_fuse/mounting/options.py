"""Parse `-o` strings into `Options`, and escape values for them.

Options come from the command line, from /etc/fstab and from mount(8). mount(8) adds words: for
`-o ro` it passes `ro,dev,suid`, and without `ro` it passes `rw`. Words that are meant for mount(8)
are accepted and ignored. An unknown word is an error: ignoring a misspelled `noexec` would be worse
than refusing to mount.

Commas separate the words. A backslash escapes the next character: `log=/var/log/a\\,b` is a file
name with a comma. If a word is given twice, the last one counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ffrecord.text import parse_size
from ffrecord_fuse.errors import OptionError

VERIFY = ("first", "always", "off", "before")
IDLE = ("poll", "halt")
BACKENDS = ("native", "fusepy", "kernel", "auto")
MAX_ID = 2**32 - 2  # 2**32 - 1 means "no user" to the kernel
MAX_WORKERS = 256
MAX_SPIN = 1_000_000  # microseconds
MAX_REQUESTS = 4096
MAX_DEADLINE = 86_400  # seconds


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a mount. None means that the module that uses the option has a default."""

    allow_other: bool = False
    allow_root: bool = False
    uid: int | None = None
    gid: int | None = None
    umask: int | None = None
    verify: str | None = None  # None: "first", or with the kernel back end "off"
    workers: int | None = None
    spin: int | None = None  # microseconds; 0 means: do not spin
    idle: str | None = None  # whether idle cores poll or halt while requests keep coming
    kernel: tuple[str, ...] = ()  # names of mount(2) flags, besides those that every mount has
    log: str | None = None
    backend: str = "native"
    memory: int | None = None  # bytes of the archive that may be read into the page cache
    warm: bool = False  # read the archive into the page cache in the background
    subdir: str | None = None  # the folder of the archive that becomes the root
    overlay: str | None = None  # the folder that keeps changes; without it, nothing can change
    requests: int | None = None  # most requests in flight, for archives with a URL
    deadline: float | None = None  # seconds after which a request over the network fails
    cache: str | None = None  # the folder that keeps what was read over the network
    cache_size: int | None = None  # most bytes of this folder

    @property
    def remote(self) -> dict[str, int | float | str]:
        """The options for URLs that were given, as arguments of readers."""
        given = {
            "requests": self.requests, "deadline": self.deadline, "cache": self.cache,
            "cache_size": self.cache_size,
        }  # fmt: skip
        return {name: value for name, value in given.items() if value is not None}


def parse(text: str | Sequence[str], *, by_mount8: bool = False) -> Options:
    """Parse one `-o` string, or the strings of several `-o` in their order.

    `rw` is an error, unless the words come from mount(8), which adds `rw` wherever `ro` is missing.
    """
    fields: dict[str, object] = {}
    kernel: list[str] = []
    writable = read_only = False
    for word in _words([text] if isinstance(text, str) else text):
        name, equals, value = word.partition("=")
        if word in ("ro", "rw"):
            writable, read_only = word == "rw", word == "ro"
        if name in _VALUES:
            fields[name] = _value(name, equals, value)
        elif name in _SWITCHES and not equals:
            fields[name] = True
        elif name in _KERNEL and not equals:
            kernel = [*(each for each in kernel if each != name), name]
        elif name in _UNDO and not equals:
            kernel = [each for each in kernel if each != _UNDO[name]]
        elif not _is_for_mount8(name, equals):
            raise OptionError(_refusal(name, equals))
    if fields.get("allow_other") and fields.get("allow_root"):
        raise OptionError("allow_other and allow_root exclude each other; leave one of them out")
    if fields.get("allow_root") and fields.get("overlay"):
        raise OptionError("allow_root and overlay exclude each other; leave one of them out")
    if writable and not by_mount8 and not fields.get("overlay"):
        raise OptionError(
            "rw is not possible, because mounts are read-only; leave rw out, or add overlay=FOLDER"
        )
    if read_only and fields.get("overlay"):  # other mounts are read-only in any case
        kernel.append("ro")
    return Options(kernel=tuple(kernel), **fields)  # type: ignore[arg-type]


def offered() -> list[str]:
    """Return the supported words for shell completion, such as `verify=first` and `uid=`."""
    values = [
        f"{name}={choice}"
        for name, (meaning, _) in _VALUES.items()
        for choice in (meaning.split("|") if "|" in meaning else [""])
    ]
    return [*_SWITCHES, *values, "ro", *_KERNEL]


def escape(value: str) -> str:
    """Return a value escaped for an `-o` string."""
    return re.sub(r"([\\,])", r"\\\1", value)


def _words(texts: Sequence[str]) -> Iterator[str]:
    """Yield the words between the commas, without escapes. Empty words are skipped."""
    for text in texts:
        for word in re.findall(r"(?:\\.|[^,\\]|\\\Z)+", text, re.DOTALL):
            yield re.sub(r"\\(.)", r"\1", word, flags=re.DOTALL)


# ---- values ----------------------------------------------------------------------------------


def _value(name: str, equals: str, value: str) -> object:
    meaning, convert = _VALUES[name]
    if not equals or not value:
        raise OptionError(f"{name} needs a value; write {name}={meaning}")
    try:
        return convert(value)
    except ValueError as error:
        raise OptionError(f"{name}={value} is not valid; {name} must be {error}") from None


def _number(low: int, high: int, what: str, base: int = 10) -> Callable[[str], int]:
    digits = "01234567" if base == 8 else "0123456789"

    def convert(value: str) -> int:
        # int() also accepts signs, spaces, underscores and digits of other scripts.
        if set(value) <= set(digits) and len(value) < 20 and low <= int(value, base) <= high:
            return int(value, base)
        raise ValueError(what)

    return convert


def _choice(allowed: tuple[str, ...]) -> Callable[[str], str]:
    def convert(value: str) -> str:
        if value in allowed:
            return value
        raise ValueError(f"one of {', '.join(allowed)}")

    return convert


def _path(value: str) -> str:
    if "\0" in value:
        raise ValueError("a file name without a NUL character")
    return value


def _memory(value: str) -> int:
    try:
        return 0 if value == "0" else parse_size(value)
    except ValueError:
        raise ValueError("a size such as 8GB, or 0") from None


def _size(value: str) -> int:
    try:
        return parse_size(value)
    except ValueError:
        raise ValueError("a size such as 100GB") from None


def _seconds(value: str) -> float:
    if re.fullmatch(r"[0-9]{1,5}(\.[0-9]{1,3})?", value) and 0 < float(value) <= MAX_DEADLINE:
        return float(value)
    raise ValueError(f"a number of seconds up to {MAX_DEADLINE}, such as 30 or 0.5")


# name -> (placeholder for the value in messages, function from text to value)
_VALUES: dict[str, tuple[str, Callable[[str], object]]] = {
    "uid": ("NUMBER", _number(0, MAX_ID, "a user's number, as `id -u` prints it")),
    "gid": ("NUMBER", _number(0, MAX_ID, "a group's number, as `id -g` prints it")),
    "umask": ("OCTAL", _number(0, 0o777, "an octal number from 0 to 777", base=8)),
    "verify": ("|".join(VERIFY), _choice(VERIFY)),
    "workers": ("NUMBER", _number(1, MAX_WORKERS, f"a number from 1 to {MAX_WORKERS}")),
    "spin": ("MICROSECONDS", _number(0, MAX_SPIN, f"a number from 0 to {MAX_SPIN}")),
    "idle": ("|".join(IDLE), _choice(IDLE)),
    "log": ("FILE", _path),
    "memory": ("SIZE", _memory),
    "subdir": ("FOLDER", _path),
    "overlay": ("FOLDER", _path),
    "backend": ("|".join(BACKENDS), _choice(BACKENDS)),
    "requests": ("NUMBER", _number(1, MAX_REQUESTS, f"a number from 1 to {MAX_REQUESTS}")),
    "deadline": ("SECONDS", _seconds),
    "cache": ("FOLDER", _path),
    "cache_size": ("SIZE", _size),
}
_SWITCHES = ("allow_other", "allow_root", "warm")


# ---- words of mount(8) -----------------------------------------------------------------------

_KERNEL = ("noexec", "nosuid", "nodev", "noatime", "nodiratime")
_UNDO = {"exec": "noexec", "atime": "noatime", "diratime": "nodiratime"}
# These words change nothing. Some have no effect, because an archive is never written to: syncing
# and access times do not matter. Others are meant for mount(8) and systemd. mount(8) adds `rw`,
# `dev` and `suid` by itself, also for `defaults` in fstab; they do not undo ro, nodev and nosuid.
_IGNORED = frozenset({
    "ro", "rw", "default_permissions", "dev", "suid", "async", "sync", "dirsync", "relatime",
    "norelatime", "strictatime", "nostrictatime", "lazytime", "nolazytime", "iversion",
    "noiversion", "mand", "nomand", "silent", "loud", "auto", "noauto", "defaults", "user",
    "nouser", "users", "owner", "noowner", "group", "nogroup", "_netdev", "nofail",
})  # fmt: skip
_IGNORED_WITH_VALUE = frozenset({"comment", "user", "uhelper", "helper"})


def _is_for_mount8(name: str, equals: str) -> bool:
    if name.startswith(("x-", "X-")):
        return True
    return name in (_IGNORED_WITH_VALUE if equals else _IGNORED)


def _refusal(name: str, equals: str) -> str:
    if equals and name in {*_SWITCHES, *_KERNEL, *_UNDO, *_IGNORED}:
        return f"{name} takes no value; write {name} alone"
    offered = [*_SWITCHES, *(f"{each}={meaning}" for each, (meaning, _) in _VALUES.items())]
    return f"unknown option {name!r}; the options are {', '.join([*offered, 'ro', *_KERNEL])}"

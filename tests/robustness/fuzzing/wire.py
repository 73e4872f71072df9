"""Targets: input from the kernel and from users who mount: requests, handshake, options."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable
from typing import Any

from ffrecord import pack_folder
from ffrecord.archive.archive import Archive
from ffrecord_fuse.errors import MountError, OptionError
from ffrecord_fuse.filesystem import Filesystem
from ffrecord_fuse.mounting import options
from ffrecord_fuse.serve.blocks import CheckedContent
from ffrecord_fuse.serve.session import Session
from ffrecord_fuse.wire import handshake, request
from ffrecord_fuse.wire.request import MalformedError
from tests.robustness.fuzzing.scratch import folder
from tests.robustness.fuzzing.target import Target
from tests.support import kernel, trees

CONTENT = {
    "a": b"hello, kernel\n",
    "big": trees.content(2 * kernel.BLOCK_SIZE + 77, 1),
    "empty": b"",
    "sub/deep": trees.content(5000, 2),
}
NODES = {"": 1, "a": 2, "big": 3, "empty": 4, "sub": 5, "sub/deep": 6}
LARGEST_READ = 150_000
KEPT: list[object] = []
"""Objects that targets keep open until the process ends."""

REQUESTS = (
    kernel.lookup(1, b"a"), kernel.lookup(5, b"deep"), kernel.lookup(1, b"missing"),
    kernel.getattr_(2), kernel.read(2, 0, 100), kernel.read(3, 131_000, 5000),
    kernel.read(6, 100, 4096), kernel.read(4, 0, 4096), kernel.readdir(1, 0, 4096, plus=False),
    kernel.readdir(1, 1, 4096, plus=True), kernel.getxattr(2, b"user.ffrecord.crc32", 64),
    kernel.listxattr(2, 256), kernel.request(kernel.STATFS), kernel.request(kernel.READLINK, 2),
    kernel.request(kernel.FORGET, 2, bytes(8)), kernel.request(kernel.BATCH_FORGET, 0, bytes(24)),
    kernel.request(14, 2, bytes(8)), kernel.request(38), kernel.init(7, 45, 0xFFFFFFFF),
)  # fmt: skip


def with_length(data: bytes) -> bytes:
    """Return a request with its correct length."""
    return struct.pack("=I", len(data)) + data[4:] if len(data) >= 4 else data


# ---- parsing ---------------------------------------------------------------------------------


def requests() -> Target:
    def run(data: bytes) -> str:
        expected = _parsed(data)
        try:
            found = request.parse(memoryview(data))
        except MalformedError as error:
            _require(expected is None, "a valid request is refused")
            unique = struct.unpack_from("=Q", data, 8)[0] if len(data) >= 40 else 0
            _require(error.unique == unique, "the error has the number of another request")
            raise
        argument = found.argument
        plain = tuple(argument) if isinstance(argument, tuple) else argument
        assert (found.opcode, found.unique, found.node, plain) == expected
        return "taken" if argument is None else "taken with an argument"

    return Target("request", run, REQUESTS, with_length, errors=(MalformedError,))


def _require(right: bool, what: str) -> None:
    if not right:
        raise AssertionError(what)


def _parsed(data: bytes) -> tuple[int, int, int, Any] | None:
    """Parse by the kernel's header file: opcode, unique, node and arguments."""
    if len(data) < 40:
        return None
    length, opcode, unique, node = struct.unpack_from("=IIQQ", data)
    body = data[40:]
    if length != len(data):
        return None
    argument: Any = None
    if opcode == kernel.LOOKUP:
        if len(body) < 2 or body[-1]:
            return None
        argument = body[:-1]
    elif opcode in (kernel.READ, kernel.READDIR, kernel.READDIRPLUS):
        if len(body) < 40:
            return None
        argument = struct.unpack_from("=8xQI", body)
    elif opcode in (kernel.GETXATTR, kernel.LISTXATTR):
        if len(body) < 8 or (opcode == kernel.GETXATTR and (len(body) < 10 or body[-1])):
            return None
        name = body[8:-1] if opcode == kernel.GETXATTR else b""
        argument = (struct.unpack_from("=I", body)[0], name)
    elif opcode == kernel.INIT:
        if len(body) < 16:
            return None
        major, minor, readahead, flags = struct.unpack_from("=4I", body)
        if len(body) >= 64 and flags & 1 << 30:
            flags |= struct.unpack_from("=I", body, 16)[0] << 32
        argument = (major, minor, readahead, flags)
    return opcode, unique, node, argument


# ---- a session -------------------------------------------------------------------------------


def sessions() -> Target:
    """Fuzz requests to a session: every reply is correct, and the kernel would accept it."""
    top = folder()
    trees.plain_tree(top / "tree", CONTENT)
    pack_folder(top / "tree", top / "tree.ffr")
    archive = Archive.open(top / "tree.ffr", mode="buffered")
    ours, theirs = kernel.socket_pair()
    ours.setblocking(False)
    session = Session(
        theirs.fileno(),
        Filesystem(archive),
        CheckedContent(archive, "always"),
        spin=0,
        log=_nothing,
    )
    KEPT.append((archive, ours, theirs))

    def run(data: bytes) -> str:
        if _size(data) > LARGEST_READ:
            return "larger than a socket takes"
        session._serve(memoryview(data))
        while session._reading.is_under_way:
            session._turn()
        replies = list(_received(ours))
        assert len(replies) <= 1
        return _judged(data, replies[0] if replies else None)

    return Target("session", run, REQUESTS, with_length)


def _nothing(line: str) -> None:
    """Log that discards its lines."""


def _size(data: bytes) -> int:
    """Return the number of bytes that a read requests."""
    parsed = _parsed(data)
    if parsed is None or parsed[0] not in (kernel.READ, kernel.READDIR, kernel.READDIRPLUS):
        return 0
    return int(parsed[3][1])


def _received(ours: socket.socket) -> list[kernel.Reply]:
    found = []
    while True:
        try:
            found.append(kernel.parsed(ours.recv(4 << 20)))
        except BlockingIOError:
            return found


def _judged(data: bytes, reply: kernel.Reply | None) -> str:
    parsed = _parsed(data)
    if parsed is None:
        unique = struct.unpack_from("=Q", data, 8)[0] if len(data) >= 40 else 0
        assert reply == (kernel.Reply(unique, errno.EINVAL) if unique else None)
        return "malformed"
    opcode, unique, node, argument = parsed
    if opcode in kernel.UNANSWERED:
        assert reply is None
        return "not answered"
    assert reply is not None
    assert reply.unique == unique
    names = {number: name for name, number in NODES.items()}
    if opcode == kernel.READ and names.get(node) in CONTENT:
        offset, size = argument
        assert reply.error == 0
        assert reply.payload == CONTENT[names[node]][offset : offset + size]
        return "read"
    if opcode == kernel.LOOKUP:
        assert isinstance(argument, bytes)
        due = _looked_up(names.get(node), node, argument)
        there = struct.unpack_from("=Q", reply.payload)[0] if reply.payload else 0
        assert there == due
    return f"errno {reply.error}" if reply.error else "answered"


def _looked_up(folder_: str | None, node: int, name: bytes) -> int:
    """Return the node of a name. NFS also asks for "." of files, and for ".." of folders."""
    if name == b".":
        return node if folder_ is not None else 0
    if folder_ not in ("", "sub") or b"/" in name:
        return 0
    path = f"{folder_}/{name.decode('latin-1')}".lstrip("/")
    return 1 if name == b".." else NODES.get(path, 0)


# ---- the handshake ---------------------------------------------------------------------------

OFFERS = (
    kernel.init(7, 45, 0xFFFFFFFF), kernel.init(7, 31, 0), kernel.init(8, 0, 1 << 30),
    kernel.init(7, 19, 1), kernel.old_init(7, 31, 0xFFFF), kernel.getattr_(1),
)  # fmt: skip


def handshakes() -> Target:
    ours, theirs = kernel.socket_pair()
    ours.setblocking(False)
    KEPT.append((ours, theirs))

    def run(data: bytes) -> str:
        if not data:
            return "nothing"
        ours.send(data)
        try:
            agreed = handshake.agree(theirs.fileno(), "/mnt", seconds=0)
        except MountError as error:
            answered = error.errno == errno.ETIMEDOUT or "this kernel has FUSE" in str(error)
            _require(len(_received(ours)) == answered, "a request was not answered exactly once")
            return f"MountError {errno.errorcode[error.errno or 0]}"
        parsed = _parsed(data)
        assert parsed is not None
        major, minor, readahead, flags = parsed[3]
        (reply,) = _received(ours)
        answer = struct.unpack_from("=IIII", reply.payload)
        assert (reply.unique, reply.error, major) == (parsed[1], 0, 7)
        assert answer[:2] == (7, min(minor, 45))
        assert answer[2] == (min(readahead, 1 << 20) or 1 << 20)
        assert answer[3] & ~(flags & 0xFFFFFFFF) == 0, "the reply has a flag that was not offered"
        assert agreed.minor == answer[1] >= 31
        return "agreed"

    return Target("handshake", run, OFFERS, with_length)


# ---- options ---------------------------------------------------------------------------------

WORDS = (
    b"ro,dev,suid", b"allow_other,uid=1000,gid=0,umask=022", b"log=/var/log/a\\,b,workers=4",
    b"noexec,exec,verify=always,spin=100", b"x-systemd.automount,backend=fusepy,,nofail",
    b"user=me,comment=a\\\\b", b"\\",
)  # fmt: skip


def option_strings() -> Target:
    def run(data: bytes) -> str:
        text = data.decode("utf-8", "surrogateescape")
        found = options.parse(text)
        words = _words(text)
        for name, of in _NUMBERS.items():
            due = [of(word.split("=", 1)[1]) for word in words if word.startswith(f"{name}=")]
            assert getattr(found, name) == (due[-1] if due else None)
        assert found.allow_other == ("allow_other" in words)
        assert not (found.allow_other and found.allow_root)
        assert found.verify in (None, "first", "always", "off", "before")
        logs = [word[4:] for word in words if word.startswith("log=")]
        assert found.log == (logs[-1] if logs else None)
        if found.log is not None:
            assert options.parse(f"log={options.escape(found.log)}").log == found.log
        return "understood"

    words = [word for each in WORDS for word in each.split(b",")]
    tokens = (*words, b",", b"=", b"\\", b"\0")
    return Target("options", run, WORDS, tokens=tokens, errors=(OptionError,))


_NUMBERS: dict[str, Callable[[str], int]] = {
    "uid": int, "gid": int, "workers": int, "spin": int, "umask": lambda text: int(text, 8)
}  # fmt: skip


def _words(text: str) -> list[str]:
    """Split options at commas, character by character."""
    words: list[str] = []
    word, escaped = "", False
    for character in text:
        if escaped:
            word, escaped = word + character, False
        elif character == "\\":
            escaped = True
        elif character == ",":
            words, word = [*words, word], ""
        else:
            word += character
    return [each for each in [*words, word + "\\" * escaped] if each]

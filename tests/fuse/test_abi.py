"""The structs, opcodes and flags of the FUSE protocol, compared with handwritten bytes."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest

from ffrecord_fuse.wire import abi

HEADER = Path("/usr/include/linux/fuse.h")


def test_a_request_header_is_40_bytes_in_the_kernels_order() -> None:
    raw = struct.pack("=IIQQIIIHH", 48, 1, 0x1122334455667788, 7, 1000, 1000, 4321, 3, 0)
    assert len(raw) == 40
    assert abi.IN_HEADER.unpack(raw) == (48, 1, 0x1122334455667788, 7)


def test_a_reply_header_has_a_signed_error() -> None:
    assert abi.OUT_HEADER.pack(16, -2, 9) == (
        (16).to_bytes(4, "little") + b"\xfe\xff\xff\xff" + (9).to_bytes(8, "little")
    )


def test_a_read_has_its_offset_and_size_after_the_handle() -> None:
    raw = struct.pack("=QQIIQII", 1 << 60, 123_456_789_012, 65536, 5, 6, 7, 8)
    assert len(raw) == 40
    assert abi.READ_IN.unpack(raw) == (123_456_789_012, 65536)


def test_an_init_request_has_its_flags_in_two_halves() -> None:
    raw = struct.pack("=IIIII11I", 7, 45, 131072, 0x40000001, 0x80, *range(1, 12))
    assert len(raw) == 64
    assert abi.INIT_IN.unpack(raw) == (7, 45, 131072, 0x40000001, 0x80)
    assert abi.INIT_IN_OLD.unpack(raw[:16]) == (7, 45, 131072, 0x40000001)


def test_an_init_reply_is_64_bytes_and_ends_in_zeros() -> None:
    raw = abi.INIT_OUT.pack(7, 31, 1 << 20, 2, 256, 192, 4096, 1, 255, 0, 128)
    fields = struct.pack("=IIIIHHIIHHI", 7, 31, 1 << 20, 2, 256, 192, 4096, 1, 255, 0, 128)
    assert raw == fields + bytes(28)


def test_a_statfs_reply_is_80_bytes_and_ends_in_zeros() -> None:
    raw = abi.STATFS_OUT.pack(1, 2, 3, 4, 5, 6, 7, 8)
    assert raw == struct.pack("=5Q3I", 1, 2, 3, 4, 5, 6, 7, 8) + bytes(28)


def test_sizes_of_extended_attributes_are_four_bytes_and_padding() -> None:
    assert abi.GETXATTR_OUT.pack(0x01020304) == b"\x04\x03\x02\x01\0\0\0\0"
    assert abi.GETXATTR_IN.unpack(struct.pack("=II", 77, 0xFFFFFFFF)) == (77,)


def test_attributes_have_their_sixteen_fields_in_order() -> None:
    values = list(range(100, 116))
    attr = struct.pack("=6Q10I", *values)
    assert len(attr) == 88
    assert abi.ATTR_OUT.pack(1, 2, *values) == struct.pack("=QII", 1, 2, 0) + attr
    entry = struct.pack("=4Q2I", 1, 2, 3, 4, 5, 6) + attr
    assert abi.ENTRY_OUT.pack(1, 2, 3, 4, 5, 6, *values) == entry
    assert abi.ENTRY_REPLY.pack(144, 0, 9, 1, 2, 3, 4, 5, 6, *values) == (
        struct.pack("=IiQ", 144, 0, 9) + entry
    )


def test_directory_entries_have_no_gaps() -> None:
    dirent = struct.pack("=QQII", 1, 2, 3, 4)
    (row,) = np.frombuffer(dirent, abi.DIRENT).tolist()
    assert row == (1, 2, 3, 4)
    values = list(range(1, 27))
    plus = struct.pack("=4Q2I6Q10IQQII", *values)
    (row,) = np.frombuffer(plus, abi.DIRENTPLUS).tolist()
    assert list(row) == values


def test_the_clone_ioctl_is_composed_of_direction_size_group_and_number() -> None:
    read, size, group, number = 2, 4, 229, 0
    due = read << 30 | size << 16 | group << 8 | number
    assert due == abi.DEV_IOC_CLONE


@pytest.fixture(scope="module")
def kernel_header() -> str:
    if not HEADER.exists():
        pytest.skip(f"{HEADER} is missing; the C library's headers contain it")
    return HEADER.read_text()


def test_opcodes_equal_the_kernels_header(kernel_header: str) -> None:
    body = re.search(r"enum fuse_opcode \{(.*?)\};", kernel_header, re.DOTALL)
    assert body is not None
    theirs = {name: int(value) for name, value in re.findall(r"FUSE_(\w+)\s*=\s*(\d+)", body[1])}
    ours = {opcode.name: opcode.value for opcode in abi.Opcode}
    newer = set(ours) - set(theirs)
    assert {name: ours[name] for name in ours if name not in newer} == {
        name: theirs[name] for name in ours if name not in newer
    }
    assert all(ours[name] > max(v for v in theirs.values() if v < 4096) for name in newer)


def test_init_flags_equal_the_kernels_header(kernel_header: str) -> None:
    found = re.findall(r"#define FUSE_(\w+)\s+\(1(?:ULL)? << (\d+)\)", kernel_header)
    theirs = {name: 1 << int(bit) for name, bit in found}
    for flag in abi.InitFlag:
        assert flag.name is not None
        assert theirs.get(flag.name, flag.value) == flag.value, flag
    assert len({flag.name for flag in abi.InitFlag} & set(theirs)) >= 7

"""Attacks on the index of the original FFRecord, which is a pickle."""

from __future__ import annotations

import pickle
import struct
from collections import OrderedDict

from ffrecord import PackedFolder
from ffrecord.errors import (
    IndexStructureError,
)
from tests.robustness.attacks.builders import (
    ORDERED_DICT,
    PICKLED_FILES,
    folder,
    legacy,
    sample,
    sealed,
    text,
)
from tests.robustness.attacks.case import U32, U64, Archive, Attacks

CANARY = "the-canary"
"""The file that pickles with code make in the current folder."""

attack = Attacks()

# ---- pickles: names and records --------------------------------------------------------------


@attack(IndexStructureError, "file name")
def a_pickled_name_is_not_a_file_name() -> list[Archive]:
    names = ("", ".", "..", "a/b", "/", "../a", "a\0b", "\0", "a" * 256, "é" * 128, "\ud800",
             "a" * 100_000)  # fmt: skip
    return [legacy(folder(text(name) + b"K\0")) for name in names]


@attack(IndexStructureError, "twice")
def a_pickled_name_occurs_twice() -> list[Archive]:
    twice = text("a") + b"K\0" + text("a") + b"K\1"
    one_by_one = b"\x80\x04}" + text("a") + b"K\0s" + text("a") + b"K\1s."
    inside = text("a") + b"}(" + twice + b"u"
    return [legacy(folder(twice)), legacy(one_by_one), legacy(folder(inside))]


@attack(IndexStructureError)
def two_pickled_names_are_the_same_bytes() -> list[Archive]:
    """The escaped bytes of the second name are the UTF-8 bytes of the first."""
    names = "é", "\udcc3\udca9"
    found: list[Archive] = []
    for values in ((b"K\0", b"K\1"), (b"}", b"}"), (b"K\0", b"}"), (b"}", b"K\1")):
        items = b"".join(text(name) + value for name, value in zip(names, values, strict=True))
        found.append(legacy(folder(items)))
    return found


@attack(IndexStructureError, "not UTF-8")
def a_pickled_name_is_not_utf_8() -> list[Archive]:
    names = (b"\xff", b"\xc3", b"a\x80", b"\xf8\x88\x80\x80\x80", b"\xc0\xaf")
    return [legacy(folder(b"\x8c" + bytes([len(name)]) + name + b"K\0")) for name in names]


@attack(IndexStructureError, "is record")
def a_pickled_record_is_negative_or_beyond_the_last_file() -> list[Archive]:
    records = (-1, -2, -(1 << 31), 2, 3, 65_535, (1 << 31) - 1, 1 << 31, 1 << 62, -(1 << 63))
    return [
        legacy(pickle.dumps(OrderedDict(a=record), protocol))
        for record in records
        for protocol in (2, 3, 4, 5)
    ]


@attack(IndexStructureError, "8 bytes")
def a_pickled_record_has_more_than_8_bytes() -> list[Archive]:
    return [legacy(pickle.dumps(OrderedDict(a=record))) for record in (1 << 63, U64, 1 << 2000)]


@attack(IndexStructureError, "opcode")
def a_pickled_record_is_something_else() -> list[Archive]:
    others: list[object] = [
        True, False, None, 1.0, float("nan"), b"1", (1,), [], [0], {1}, frozenset({1}),
    ]  # fmt: skip
    found: list[Archive] = [legacy(pickle.dumps(OrderedDict(a=other), 4)) for other in others]
    return [*found, legacy(folder(text("a") + b"I01\n")), legacy(folder(text("a") + b"F1.5\n"))]


@attack(IndexStructureError, "item")
def a_pickled_item_is_not_a_name_with_a_record_or_a_folder() -> list[Archive]:
    ordered = b"ccollections\nOrderedDict\n"
    pairs = (
        b"K\0K\0", b"}K\0", b")K\0", text("a") + text("b"), text("a") + b")", b"}}",
        text("a") + ordered, ordered + b"K\0", b"K\0" + text("a"),
    )  # fmt: skip
    return [legacy(folder(pair)) for pair in pairs]


@attack(IndexStructureError)
def a_pickled_name_has_no_value() -> list[Archive]:
    return [
        legacy(folder(text("a"))),
        legacy(folder(text("a") + b"K\0" + text("b"))),
        legacy(b"\x80\x04}" + text("a") + b"s."),
        legacy(b"\x80\x04}s."),
        legacy(b"\x80\x04}u."),
        legacy(b"\x80\x04}" + text("a") + b"K\0(" + text("b") + b"sss."),
    ]


@attack(IndexStructureError)
def a_pickle_is_not_one_folder() -> list[Archive]:
    return [
        legacy(b"\x80\x04" + rest + b".")
        for rest in (b"K\0", text("a"), b")", b"", b"}}", b"}(", b"(", b"}K\0",
                     b"ccollections\nOrderedDict\n", b"(K\0u", text("a") + b"K\0s")
    ]  # fmt: skip


# ---- pickles: code ---------------------------------------------------------------------------

COMMAND = f": > {CANARY}"
EXPRESSION = f"open({CANARY!r}, 'w').close() or 0"
CALLS = {
    "GLOBAL os.system": b"cos\nsystem\n" + text(COMMAND) + b"\x85R",
    "GLOBAL posix.system": b"cposix\nsystem\n(" + text(COMMAND) + b"tR",
    "GLOBAL builtins.eval": b"cbuiltins\neval\n" + text(EXPRESSION) + b"\x85R",
    "STACK_GLOBAL os.system": text("os") + text("system") + b"\x93" + text(COMMAND) + b"\x85R",
    "STACK_GLOBAL builtins.eval": (
        b"\x8c\x08builtins\x94\x8c\x04eval\x94\x93\x94" + text(EXPRESSION) + b"\x94\x85\x94R\x94"
    ),
    "INST": b"(" + text(COMMAND) + b"ios\nsystem\n",
    "OBJ": b"(cbuiltins\neval\n" + text(EXPRESSION) + b"o",
    "NEWOBJ_EX of partial": (  # partial.__new__ takes the function; REDUCE calls it
        b"cfunctools\npartial\ncos\nsystem\n" + text(COMMAND) + b"\x86}\x92)R"
    ),
    "BUILD with a __setstate__": (
        b"ctypes\nSimpleNamespace\n)R}" + text("__setstate__") + b"cos\nsystem\nsb"
        + text(COMMAND) + b"b0K\0"
    ),
}  # fmt: skip
"""Values of an item that make the canary file when `pickle.loads` reads them."""


def calling(name: str) -> bytes:
    return legacy(folder(text("a") + CALLS[name]))


@attack(IndexStructureError, "asks for")
def a_pickle_calls_os_system() -> list[Archive]:
    return [calling("GLOBAL os.system"), calling("GLOBAL posix.system")]


@attack(IndexStructureError, "asks for")
def a_pickle_calls_eval() -> list[Archive]:
    old_name = b"\x80\x02}" + text("a") + b"c__builtin__\neval\n" + text(EXPRESSION) + b"\x85Rs."
    return [calling("GLOBAL builtins.eval"), legacy(old_name)]


@attack(IndexStructureError, "asks for")
def a_pickle_takes_its_function_from_the_stack() -> list[Archive]:
    return [calling("STACK_GLOBAL os.system"), calling("STACK_GLOBAL builtins.eval")]


@attack(IndexStructureError)
def a_pickle_makes_an_instance_in_other_ways() -> list[Archive]:
    return [calling(name) for name in ("INST", "OBJ", "NEWOBJ_EX of partial")]


@attack(IndexStructureError)
def a_pickle_makes_an_ordered_dict_in_other_ways() -> list[Archive]:
    """Make the right class, but with opcodes that take arguments or look up names."""
    name = b"collections\nOrderedDict\n"
    makes = (b"(i" + name, b"(c" + name + b"o", b"c" + name + b")}\x92", b"c" + name + b"]\x85R")
    return [legacy(folder(b"", make)) for make in makes]


@attack(IndexStructureError)
def a_pickle_sets_the_state_of_something() -> list[Archive]:
    state = ORDERED_DICT + b"}" + text("x") + b"K\0sb"
    return [calling("BUILD with a __setstate__"), legacy(b"\x80\x02" + state + b".")]


@attack(IndexStructureError)
def a_pickle_calls_something_that_is_not_a_class() -> list[Archive]:
    ordered = b"ccollections\nOrderedDict\n"
    calls = (text("os.system") + b")R", b"})R", b"K\0)R", b"))R", ordered + b"}R",
             ordered + ordered + b"R", ordered + text("a") + b"\x81", b"))\x81")  # fmt: skip
    return [legacy(folder(text("a") + call)) for call in calls]


@attack(IndexStructureError)
def a_pickle_asks_for_another_class() -> list[Archive]:
    by_line = (b"collections\nCounter", b"collections.abc\nOrderedDict",
               b"Collections\nOrderedDict", b"collections\nOrderedDict.fromkeys",
               b"\nOrderedDict", b"collections\n", b"collections \nOrderedDict",
               b"\xff\nOrderedDict")  # fmt: skip
    from_stack = (text("collections") + text("OrderedDict.fromkeys"), text("os") + b"K\0",
                  b"K\0" + text("OrderedDict"), b"))", b"}}")  # fmt: skip
    asks = [b"c" + lines + b"\n" for lines in by_line] + [names + b"\x93" for names in from_stack]
    return [legacy(b"\x80\x04" + asking + b")R.") for asking in asks]


@attack(IndexStructureError)
def a_pickle_asks_for_a_class_with_an_endless_name() -> list[Archive]:
    """The end of the line is too far away, or missing."""
    return [
        legacy(b"\x80\x02c" + b"a" * 101 + b"\n)R."),
        legacy(b"\x80\x02ccollections\n" + b"O" * (1 << 20) + b"\n)R."),
        legacy(b"\x80\x02c" + b"collections" * 1000),
        legacy(b"\x80\x02ccollections"),
        legacy(b"\x80\x02c"),
        legacy(b"\x80\x02}\nc"),
    ]


@attack(IndexStructureError, "asks for")
def a_pickle_asks_for_a_class_whose_name_is_a_deep_folder() -> Archive:
    """Showing such a name would take 3,000 nested calls."""
    deep = b"}" + (text("a") + b"}") * 3_000 + b"s" * 3_000
    return legacy(b"\x80\x04" + deep + text("a") + b"\x93.")


@attack(IndexStructureError, "opcode")
def a_pickle_asks_for_data_outside_it() -> list[Archive]:
    """Use extension registries, persistent ids and buffers outside the pickle."""
    opcodes = (b"\x82\1", b"\x83\1\0", b"\x84\1\0\0\0", b"P1\n", text("1") + b"Q", b"\x97",
               text("1") + b"\x98")  # fmt: skip
    return [legacy(folder(text("a") + opcode)) for opcode in opcodes]


# ---- pickles: size ---------------------------------------------------------------------------


@attack(IndexStructureError)
def a_pickle_is_cut_off_at_any_byte() -> list[Archive]:
    inner = OrderedDict(x=1)
    whole = OrderedDict(a=0, b=inner, c=OrderedDict(x=1, y=0), d=OrderedDict())
    return [
        legacy(raw[:end])
        for raw in (pickle.dumps(whole, protocol) for protocol in (2, 4))
        for end in range(len(raw))
    ]


@attack(IndexStructureError)
def a_pickle_asks_for_gigabytes() -> list[Archive]:
    """Claim lengths far beyond the end: for text, bytes, numbers and frames, in every width."""
    asking = [
        code + struct.pack("<Q", size)
        for code in (b"\x8d", b"\x8e", b"\x95", b"\x96")
        for size in (1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, U64)
    ]
    asking += [
        code + struct.pack("<I", size)
        for code in (b"X", b"B", b"T", b"\x8b")
        for size in (1 << 30, (1 << 31) - 1, 1 << 31, U32)
    ]
    asking += [b"\x8c\xff", b"C\xff", b"U\xff", b"\x8a\xff"]
    return [legacy(b"\x80\x04}" + start + b"abc") for start in asking]


@attack(IndexStructureError, "of its memo, which is out of range")
def a_pickle_memorises_at_the_highest_number() -> Archive:
    """LONG_BINPUT 2**32 - 1: a memo of that length would take 32 GB."""
    inner = b"}j\xff\xff\xff\xffK\1s"
    return legacy(folder(text("folder") + b"r\xff\xff\xff\xff" + inner))


@attack(IndexStructureError, "item")
def a_pickle_opens_a_million_things() -> list[Archive]:
    things = (b"}", b"(", b")", b"K\0", text("a"), ORDERED_DICT, b"}(", b"(}", b"}(" + text("a"))
    return [legacy(b"\x80\x04" + thing * (1_000_000 // len(thing))) for thing in things]


@attack(IndexStructureError)
def a_pickle_opens_eight_million_things_behind_4_000_marks() -> Archive:
    return legacy(b"\x80\x04}" + b"(" * 4_096 + b"}" * 8_000_000 + b".")


@attack(IndexStructureError)
def a_pickle_memorises_one_thing_ten_million_times() -> Archive:
    return legacy(b"\x80\x04}" + b"\x94" * 10_000_000)


@attack(IndexStructureError, "names")
def a_pickle_has_more_names_than_its_files_can_need() -> Archive:
    """Fetch the same names from the memo again and again: four bytes for each file."""
    names = b"".join(text(f"{number}") + b"\x94K\0" for number in range(256))
    again = b"".join(b"h" + bytes([number]) + b"K\0" for number in range(256))
    folders = [text(f"folder {number}") + b"}(" + again + b"u" for number in range(2_000)]
    return legacy(folder(names + b"".join(folders)))


@attack(IndexStructureError)
def a_pickle_is_30_000_levels_deep() -> list[Archive]:
    """Use SETITEMS, SETITEM, both in turn, and OrderedDicts, each also with one level too many."""
    found: list[Archive] = []
    for levels in (30_000, 4_097):
        name = text("d")
        found += [
            legacy(b"\x80\x04}" + (b"(" + name + b"}") * levels + b"u" * levels + b"."),
            legacy(b"\x80\x04}" + (name + b"}") * levels + b"s" * levels + b"."),
            legacy(
                b"\x80\x04}"
                + (name + b"}(" + name + b"}") * (levels // 2 + 1)
                + b"us" * (levels // 2 + 1)
                + b"."
            ),
            legacy(
                b"\x80\x02"
                + ORDERED_DICT
                + (b"(" + name + ORDERED_DICT) * levels
                + b"u" * levels
                + b"."
            ),
        ]
    return found


@attack(IndexStructureError)
def a_pickle_hides_300_000_levels_behind_marks() -> Archive:
    """Marks extend the stack, and a chain of single items fills it."""
    levels = 300_000
    chained = (text("d") + b"}") * levels + b"s" * levels
    return legacy(b"\x80\x04}" + b"(" * 4_096 + chained + b"u" * 4_096 + b".")


# ---- pickles: the machine --------------------------------------------------------------------


@attack(IndexStructureError, "not a name")
def a_pickle_fetches_an_item_it_never_memorised() -> list[Archive]:
    return [
        legacy(folder(text("a") + fetch))
        for fetch in (b"h\0", b"h\xff", b"j\0\0\0\0", b"j\xff\xff\xff\xff")
    ]


@attack(IndexStructureError)
def a_pickle_puts_a_folder_into_itself() -> list[Archive]:
    return [
        legacy(b"\x80\x04}\x94(" + text("a") + b"h\0u."),
        legacy(b"\x80\x04}q\0" + text("a") + b"h\0s."),
        legacy(b"\x80\x04}r\1\0\0\0(" + text("a") + b"}(" + text("b") + b"j\1\0\0\0uu."),
    ]


@attack(IndexStructureError)
def a_pickle_puts_a_folder_into_two_places() -> list[Archive]:
    shared: OrderedDict[str, int] = OrderedDict(x=0)
    billion: OrderedDict[str, object] = OrderedDict()
    for _ in range(40):  # 2**40 folders, if each reference were another folder
        billion = OrderedDict(a=billion, b=billion)
    return [
        legacy(pickle.dumps(structure, protocol))
        for structure in (OrderedDict(a=shared, b=shared), billion)
        for protocol in (2, 3, 4, 5)
    ]


@attack(IndexStructureError)
def a_pickle_takes_from_an_empty_stack() -> list[Archive]:
    opcodes = (b"\x94", b"q\0", b"r\0\0\0\0", b"u", b"s", b"R", b"\x81", b"\x93", b".", b"(u")
    return [legacy(b"\x80\x04" + opcode + b"}.") for opcode in opcodes]


@attack(IndexStructureError, "protocol")
def a_pickle_has_an_unknown_protocol() -> list[Archive]:
    return [legacy(bytes([0x80, protocol]) + b"}.") for protocol in (6, 9, 255)]


@attack(IndexStructureError, "opcode")
def a_pickle_has_opcodes_that_no_folder_needs() -> list[Archive]:
    """Try all opcodes that the parser does not know."""
    known = b"\x8c\x94KMJXqrhju(s)R\x81}.\x80\x95\x8d\x8a\x93c"
    return [
        legacy(b"\x80\x04}" + bytes([code]) + b"\0" * 16)
        for code in range(256)
        if code not in known
    ]


def reading_the_pickled_file(packed: PackedFolder) -> None:
    assert packed.list() == ["a", "b"]
    assert packed.read_one("a").tobytes() == PICKLED_FILES[0]
    assert packed.read_one("b").tobytes() == PICKLED_FILES[1]


@attack(None, use=reading_the_pickled_file)
def a_pickle_is_followed_by_garbage() -> list[Archive]:
    """`pickle.loads` ignores it too. In archives for both libraries, our index lies there."""
    whole = pickle.dumps(OrderedDict(a=0, b=1))
    return [
        legacy(whole + garbage)
        for garbage in (b"\0", b"cos\nsystem\n", whole, bytes(100), b"FFRINDEX"[:7])
    ]


def reading_one_file_by_many_names(packed: PackedFolder) -> None:
    assert packed.num_files() == 3
    for name in ("a", "b", "folder/c"):
        assert packed.read_one(name).tobytes() == PICKLED_FILES[1]
        assert packed.stat(name).st_nlink == 1


@attack(None, use=reading_one_file_by_many_names)
def pickled_names_share_a_record() -> Archive:
    return legacy(pickle.dumps(OrderedDict(a=1, b=1, folder=OrderedDict(c=1))))


@attack(IndexStructureError)
def our_index_is_wrong_after_a_pickle_that_is_right() -> Archive:
    """Our index takes precedence. The pickle is only for the original, and is no fallback."""
    draft = sample()
    draft.inode(b"alpha").data = 99
    before = b"piouhjgbr" + pickle.dumps(OrderedDict(alpha=0))
    return sealed(draft.files, draft.image(), before=before)


def finding_the_names_of_our_index(packed: PackedFolder) -> None:
    assert packed.list() == ["alpha", "beta", "folder", "link"]


@attack(None, use=finding_the_names_of_our_index)
def a_pickle_that_runs_code_lies_before_our_index() -> list[Archive]:
    """The pickle is never read."""
    draft = sample()
    return [
        sealed(draft.files, draft.image(), before=b"piouhjgbr" + folder(text("a") + call))
        for call in CALLS.values()
    ]

"""A pool of AIO contexts for one test, and contexts from it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from ffrecord.disk import aio

needs_libaio = pytest.mark.skipif(aio._lib is None, reason="libaio is not installed")


@pytest.fixture(autouse=True)
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[aio.ContextPool]:
    """Replace the pool of the process by one for this test, emptied after it.

    A test module that imports this fixture gets it for every test.
    """
    pool = aio.ContextPool()
    monkeypatch.setattr(aio, "contexts", pool)
    yield pool
    gc.collect()
    for idle in pool._idle.values():
        for context in idle:
            context.close()


def borrow(pool: aio.ContextPool, wanted: int) -> aio.Context:
    context = pool.borrow(wanted)
    if context is None:
        pytest.skip("this machine has no AIO context left")
    return context

"""A shuffle that keeps neighbours together for a while, computed in O(1) memory.

The numbers 0 … n-1 are cut into blocks of neighbours. The blocks come in random order, and
`window` blocks at a time are mixed: the order takes one number of each block of the window in turn,
and the numbers of a block are in random order themselves:

    block order  2 0 3 1, window 2      |  2a 0b 2c 0a 2b 0c  |  3c 1a 3a 1c 3b 1b  |

So a reader that keeps the blocks of a window reads each block once. If the number of ranks divides
the window, a rank that takes every ranks-th number takes whole blocks, and no two ranks read the
same block.

The last block may be short. It has a random place among the others, and from the row on where it
has ended, its window goes on without it. Blocks that do not fill a window join the last window: a
few blocks alone would hardly be mixed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Ints
from ffrecord.torch.permutation import Permutation


class BlockPermutation:
    """The order of the numbers below n for a seed and an epoch, as `Permutation` has it.

    Args:
        n: the number of numbers.
        block: numbers in a block.
        window: blocks that are mixed.
        seed: an integer.
        epoch: another integer.
    """

    def __init__(self, n: int, block: int, window: int, seed: int, epoch: int = 0) -> None:
        self.n = n
        # A block or a window beyond the data would only make numbers large.
        self._block = block = max(min(block, n), 1)
        whole, self._short = divmod(n, block)
        self._blocks = whole + bool(self._short)
        self._window = max(min(window, self._blocks), 1)
        self._windows = max(self._blocks // self._window, 1)
        self._missing = block - self._short if self._short else 0  # numbers of the last block
        self._order = Permutation(whole, seed, epoch, "blocks")
        self._inside = Permutation(block, seed, epoch, "numbers of a block")
        self._inside_short = Permutation(self._short, seed, epoch, "numbers of the short block")
        # The place of the short block among the blocks; after all of them if there is none.
        self._place = whole
        if self._short:
            self._place = int(Permutation(whole + 1, seed, epoch, "place of the short block")(0))

    def __len__(self) -> int:
        return self.n

    def __call__(self, positions: npt.ArrayLike) -> Ints:
        """Return the numbers at `positions`. Positions and numbers are from 0 to n - 1."""
        asked = np.asarray(positions, np.int64)
        at = asked.ravel()
        if at.size and not 0 <= int(at.min()) <= int(at.max()) < self.n:
            raise IndexError(
                f"a position is out of range; pass positions from 0 to {self.n - 1} (n is {self.n})"
            )
        place, row = self._places(at)
        return self._numbers(place, row).reshape(asked.shape)

    def _places(self, at: Ints) -> tuple[Ints, Ints]:
        """Return the place of each position's block in the order of blocks, and the row."""
        size = self._window * self._block  # numbers of a window
        last = self._windows - 1
        own = min(self._place // self._window, last)  # the window with the short block
        if own < last:
            # Positions behind that window are moved, as if its short block were a whole one.
            at = np.where(at < (own + 1) * size - self._missing, at, at + self._missing)
        window = np.minimum(at // size, last)
        at = at - window * size
        width = np.where(window < last, self._window, self._blocks - last * self._window)
        row, column = at // width, at % width
        if self._short:
            # Rows without the short block are narrower, and its column is left out.
            rest = at - self._short * width
            late = ((window == own) & (rest >= 0)).nonzero()[0]
            narrow = width[late] - 1
            row[late], column[late] = self._short + rest[late] // narrow, rest[late] % narrow
            column[late] += column[late] >= self._place - own * self._window
        return window * self._window + column, row

    def _numbers(self, place: Ints, row: Ints) -> Ints:
        """Return the numbers in some rows of blocks."""
        found = np.empty_like(place)
        short = place == self._place
        found[short] = self.n - self._short + self._inside_short(row[short])
        whole = ~short
        block = self._order(place[whole] - (place[whole] > self._place))
        found[whole] = block * self._block + self._inside(row[whole], block)
        return found

"""The entry point of a fresh process: `python -m scripts.benchmarks.worker MODULE:FUNCTION`.

Arguments are a JSON object on standard input. The result is the last line of standard output,
because libraries may print before it.
"""

from __future__ import annotations

import importlib
import json
import sys


def main() -> None:
    """Call the named function once. The parent shortens the traceback of an exception."""
    module, _, function = sys.argv[1].partition(":")
    result = getattr(importlib.import_module(module), function)(**json.load(sys.stdin))
    print("\n" + json.dumps(result))


if __name__ == "__main__":
    main()

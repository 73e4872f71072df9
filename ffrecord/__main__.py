"""Entry point of the `ffrecord` command and of `python -m ffrecord`.

Ctrl-C is blocked until all imports are done: an interrupted import ends in a traceback, or in a
message of numpy that it is not installed properly. `ffrecord.cli` unblocks it.
"""

import signal
import sys


def command() -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    from ffrecord import cli

    return cli.command()


if __name__ == "__main__":
    sys.exit(command())

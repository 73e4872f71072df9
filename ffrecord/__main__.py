"""Entry point of the `ffrecord` command and of `python -m ffrecord`.

Ctrl-C is blocked until all imports are done. An interrupted import would end in a traceback, or in
a message that numpy is not installed properly. `ffrecord.cli` unblocks Ctrl-C.
"""

import signal
import sys


def command() -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    from ffrecord import cli

    return cli.command()


if __name__ == "__main__":
    sys.exit(command())

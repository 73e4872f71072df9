"""The `ffrecord` command, which `python -m ffrecord` is too.

A Ctrl-C waits until everything is imported: before that it would end in a traceback, or in numpy
saying that it is not installed properly. `ffrecord.cli` lets it through.
"""

import signal
import sys


def command() -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    from ffrecord import cli

    return cli.command()


if __name__ == "__main__":
    sys.exit(command())

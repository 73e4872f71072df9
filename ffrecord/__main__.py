"""`python -m ffrecord` is the `ffrecord` command."""

from ffrecord.cli import command

raise SystemExit(command())

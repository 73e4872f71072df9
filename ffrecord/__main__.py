"""`python -m ffrecord` is the `ffrecord` command."""

from ffrecord.cli import main

raise SystemExit(main())

"""`python -m ffrecord_fuse` is the `ffrecord-fuse` command."""

from ffrecord_fuse.cli import main

raise SystemExit(main())

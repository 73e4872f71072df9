"""Run `ffrecord-fuse` as `python -m ffrecord_fuse`."""

from ffrecord_fuse.cli import main

raise SystemExit(main())

"""The FUSE daemon that mounts a packed archive: a later release, nothing is here yet."""

"""Mount and unmount: options, the mount table, and mounts that end with their program."""

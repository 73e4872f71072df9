"""Mount points: options, the table of mounts, mount and unmount, and who a mount ends with."""

"""The back end that lets the kernel serve an archive: image, probes and mount, without a daemon."""

"""The kernel's FUSE protocol: requests and replies as bytes."""

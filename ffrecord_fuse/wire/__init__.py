"""The kernel's protocol: requests and replies as bytes."""

"""Tests with real mounts, for every form of archive and both back ends."""

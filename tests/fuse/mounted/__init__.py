"""Tests over real mounts, of every form of archive and through both back ends."""

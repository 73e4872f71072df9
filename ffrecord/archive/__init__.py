"""Packed folders: pack a folder, read its files by name, extract it, check it."""

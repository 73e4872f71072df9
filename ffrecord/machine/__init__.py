"""Limits of this process: the memory and the processors that the machine leaves to it."""

"""A page in the browser that shows packed folders, record files and typed datasets.

`ffrecord view PATH` serves it; `show` is for notebooks. docs/view.md is the guide.
"""

from ffrecord.view.notebook import Page, show

__all__ = ["Page", "show"]

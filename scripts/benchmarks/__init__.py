"""Benchmarks against the libraries users would otherwise take, as ratios within one run.

`scripts/bench NAME` runs the module NAME of this package. These know nothing of a particular
benchmark:

    datasets   the records, the same for every contestant, and their creation
    peers      one class per contestant: write a file, open it, read batches
    harness    fresh processes, caches, interleaving
    worker     the entry point of a fresh process
    results    samples, medians, ratios, goals
    fio        the disk's limit
    machine    what it ran on
    report     markdown and JSON
    plot       PNG

A benchmark is a module with `add_command` (see `read`); what only it needs is named after it:
`read_cases` loops in the parent process, `read_worker` measures in a fresh one.
"""

"""Benchmarks against the tools users would otherwise take, as ratios within one run.

`scripts/bench NAME` runs the module NAME of this package. These know nothing of a particular
benchmark:

    benchmark    what a benchmark is: its options, its run, what is kept of it
    datasets     records, the same for every contestant, and their creation
    harness      fresh processes and caches
    batches      random batches and the clock around them
    rounds       the loop over contestants: repeats, interleaving
    worker       the entry point of a fresh process
    memory       what the kernel says of a process's memory
    processes    daemons: finding them, their processor time, their end
    results      samples, medians, ratios, goals
    machine      what it ran on
    report       markdown and JSON
    plot         PNG
    everything   all benchmarks in one run
    pages        the tables in README.md and docs/benchmarks.md
    summary      the short ones of them

A benchmark is a module with `BENCHMARK`; what only it needs is named after it: `read_cases`
loops in the parent process, `read_worker` measures in a fresh one. Beside that:

    read         peers (one class per contestant: write a file, open it, read batches), fio (the
                 disk's limit)
    pack         packers (one object per contestant), trees (folders of files to pack)
    folder       folder_archives (archives of files that never were)
    mount        mounters (one object per contestant), mount_archives (what they mount),
                 mount_client (what reads there); packers, trees, folder_archives
    loader       loaders (one object per contestant), decode (work of a fixed cost), pictures (JPEG
                 files), loader_archives (what they read); mounters, packers, peers
    dataset      dataset_samples (what is stored), dataset_peers (one class per contestant)
    profile      where a read's time goes (`profile_read`)
    compare      compare_checkouts (the tree before); the data of read, mount, folder and loader
"""

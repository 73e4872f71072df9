"""Benchmarks against the tools that users would otherwise choose, as ratios within one run.

`scripts/bench NAME` runs the module NAME of this package. These modules serve all benchmarks:

    benchmark    the definition of a benchmark: options, run, stored results
    datasets     the records that every contestant stores, and their files
    harness      fresh processes and caches
    batches      random batches and the clock around them
    rounds       the loop over contestants: repeats, interleaving
    worker       the entry point of a fresh process
    memory       memory of a process, from the kernel
    processes    other processes: find them, measure their processor time and reads, end them
    results      samples, medians, ratios, goals
    machine      description of the machine
    report       Markdown and JSON
    plot         bars as PNG
    everything   all benchmarks in one run
    pages        the tables in README.md, docs/benchmarks.md and docs/benchmarks/; charts
    summary      the short tables of docs/benchmarks.md
    headline     the tables with the fastest peers, in README.md and docs/benchmarks.md
    charts       the charts of docs/benchmarks/: their questions and their bars

A benchmark is a module that defines `BENCHMARK`. Modules that serve only one benchmark begin with
its name: `read_cases` loops in the parent process, `read_worker` measures in a fresh one.
Benchmarks also use these modules:

    read         peers (one class per contestant: write a file, open it, read batches), fio (the
                 disk's limit)
    disks        throttle (slow disks and small memory), disks_dataset (for our loader); peers,
                 mounters, mount_client, trees, fio
    remote       remote_server (nginx), remote_relay (delays its answers), remote_loaders and
                 remote_readers (one class per contestant), remote_archives (their files),
                 remote_fsspec (local archives through fsspec); peers, folder_archives
    pack         packers (one object per contestant), trees (folders of files to pack)
    folder       folder_archives (archives made without their files)
    mount        mounters (one object per contestant), mount_archives (their archives),
                 mount_client (the reading program); packers, trees, folder_archives
    loader       loaders (one object per contestant), decode (work of a fixed cost), pictures (JPEG
                 files), loader_archives (their files); mounters, packers, peers
    dataset      dataset_samples (the stored samples), dataset_peers (one class per contestant)
    profile      where a read's time goes (`profile_read`)
    view         folder_archives, loader_archives (their archives)
    cluster      cluster_data (the same contents in every form), cluster_engines (one class per
                 engine); trees
    compare      compare_checkouts (the tree before); the data of read, mount, folder and loader
"""

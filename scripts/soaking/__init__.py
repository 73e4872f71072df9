"""`scripts/soak`: read with many readers at once while workers and readers are killed at random.

    contents ──▶ stage: files, packed and mounted
        │              │
        └─ due ──▶ readers: through_mount, through_library ──▶ ledger ──▶ report
                       ▲                                          ▲
                 disturbances: kills, stops, dropped caches   trends: descriptors, memory

The expected data of a read (`due`) is computed from the seed, never read from the archive.
"""

"""`scripts/soak`: many readers at once, disturbed at random; is every byte right, and nothing lost?

    contents ──▶ stage: files, packed and mounted
        │              │
        └─ due ──▶ readers: through_mount, through_library ──▶ ledger ──▶ report
                       ▲                                          ▲
                 disturbances: kills, stops, dropped caches   trends: descriptors, memory

What a read must return is computed from the seed, never read from the archive.
"""

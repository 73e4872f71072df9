"""The daemon and its workers: started, watched, started again, ended."""

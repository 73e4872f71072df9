"""Read record files over the network: object stores, web servers and fsspec's file systems."""

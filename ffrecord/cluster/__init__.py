"""Reading and writing on clusters: Ray Data, Spark and Dask.

`reading` and `writing` are what the engines' adapters share. Each adapter is a module with the name
of its engine, and imports that engine.
"""

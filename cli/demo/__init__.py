"""`tierlog demo`: sends a year of flights through tierlog. `run` runs the steps, one module each.

Everything is compared with the source: the acknowledgements, the consumed records, and Spark's results.
"""

"""`tierlog demo`: a year of flights goes through tierlog, one module per step; `run` puts them in order.

Everything is checked against the source: what the producer was told, what consumers saw, what Spark finds.
"""

"""Jobs over a topic's whole history: `python -m tierlog.spark.jobs.NAME`, or `tierlog spark NAME`.

`backfill`, `replay`, `audit` and `stats` are jobs, with a `run` for the driver. Their arguments are in
`arguments`, and `runner` runs their tasks. Code for executors is in modules of its own (`export`,
`segment_check`, `replay_stream`, `record_stats`).
"""

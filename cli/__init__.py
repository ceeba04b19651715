"""The `tierlog` command: starts nodes, and operates running clusters.

`main` parses the command line, `commands` holds one module per command group, `client` speaks the Kafka
protocol and `admin` the HTTP API. Modules import inside functions, so that `tierlog dev` starts fast.
"""

"""The `tierlog` command: a broker to start, and everything an operator or a developer asks of a running one.

`main` takes the words apart, `commands` holds one module per group, `client` speaks the Kafka protocol and
`admin` the HTTP API. Every module imports what it needs when it needs it: `tierlog dev` must be up fast.
"""

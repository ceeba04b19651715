"""Commands, one module per group: parse options, call `client` or `admin`, print a table or JSON."""

"""One module per group of commands: options in, a call to `client` or `admin`, a table or JSON out."""

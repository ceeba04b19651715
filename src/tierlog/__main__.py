"""Runs `python -m tierlog`, for a machine where the `tierlog` script is not on the PATH."""

from tierlog.cli.main import main

if __name__ == "__main__":
    main()

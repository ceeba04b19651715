"""Defaults of balancing by load: of the settings, of the admin route, and of `tierlog partition balance`."""

from typing import Final

MEASUREMENT_S: Final = 10
"""Length of a measurement that an operator asks for. Balancing by itself measures for much longer."""

MAX_MOVES: Final = 10  # partitions
MAX_BYTES_PER_SECOND: Final = 50 << 20  # a broker

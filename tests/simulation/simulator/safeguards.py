"""The product's safeguards, and what replaces each in a run that must notice its loss.

Their order is that of the table in docs/explanation/simulation.md. A replacement gets the original function
and its arguments.
"""

import simulator.broker_safeguards
import simulator.consumer_safeguards
import simulator.tier_safeguards
import simulator.transaction_safeguards  # noqa: F401 (all register theirs)
from simulator.switches import SAFEGUARDS, switched_off

__all__ = ["SAFEGUARDS", "switched_off"]

"""Hypothesis draws new examples on every run. With HYPOTHESIS_PROFILE=fixed, as in CI, it draws the same ones
each time, so that what fails there is what was changed. No example has a time limit: the machine may be busy.
"""

import os

from hypothesis import settings

settings.register_profile("drawn", deadline=None)
settings.register_profile("fixed", deadline=None, derandomize=True, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "drawn"))

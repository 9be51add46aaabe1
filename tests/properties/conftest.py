"""How long and how freely the laws are tried: ``HYPOTHESIS_PROFILE=soak`` tries far more histories, new ones each time.

The default is the same on every machine and in every run, so that a red build is about the change and not about luck.
"""

import os

from hypothesis import HealthCheck, Phase, settings

_TOLERANT = (HealthCheck.too_slow, HealthCheck.data_too_large)

settings.register_profile(
    "ci",
    max_examples=15,
    deadline=None,
    database=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=_TOLERANT,
)
settings.register_profile(
    "soak",
    max_examples=3_000,
    deadline=None,
    print_blob=True,
    suppress_health_check=_TOLERANT,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

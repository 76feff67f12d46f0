"""The stages of the unified method."""

import stages  # noqa: F401  sets the environment, and says so where packages are missing

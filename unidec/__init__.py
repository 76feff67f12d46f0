"""The stages of the unified method."""

import stages  # noqa: F401  sets the environment; ends with a sentence where packages are missing

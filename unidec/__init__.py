"""The unified method's own stages; they start as those of the other pipeline do."""

import stages  # noqa: F401  sleeping OpenMP workers, and a sentence where the packages are missing

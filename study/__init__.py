"""The papers' findings and the sweeps of K, losses and encoders: every comparison is a DVC experiment."""

"""The papers' findings and the sweeps of K and encoders, each comparison a DVC experiment."""

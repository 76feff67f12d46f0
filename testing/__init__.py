"""What tests, robustness programs and benchmarks share: tiny data, processes that can be killed, printed tables."""

"""What tests and benchmarks share: tiny data, and stages in processes that can be killed."""

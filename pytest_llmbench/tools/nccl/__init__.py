"""`llmbench nccl`: the operations in NCCL traces, and what changed between two
traces."""

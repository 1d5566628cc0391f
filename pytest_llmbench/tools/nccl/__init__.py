"""`llmbench nccl`: summarize NCCL traces and compare two of them."""

"""NCCL traces (`NCCL_DEBUG=INFO`, sub-system COLL): what they say in sum, and what changed since another one."""

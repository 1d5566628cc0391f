"""A Slurm cluster for each test run (each worker, under xdist)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from support.clusters import Cluster, missing, running


def started(database: bool = True) -> Iterator[Cluster]:
    """Start a cluster; without Slurm skip the test, or fail it under
    LLMB_REQUIRE_SLURM."""
    if absent := missing():
        if os.environ.get("LLMB_REQUIRE_SLURM"):
            pytest.fail(absent)
        pytest.skip(absent)
    with running(database) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    yield from started()


@pytest.fixture(scope="session")
def cluster_without_database() -> Iterator[Cluster]:
    yield from started(database=False)


@pytest.fixture(autouse=True)
def no_job_is_left(cluster: Cluster) -> Iterator[None]:
    """Check that every test leaves no job on the cluster."""
    yield
    if left := cluster.jobs():
        cluster.cancel_all()
        pytest.fail(f"jobs {', '.join(left)} are left")

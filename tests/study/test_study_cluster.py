"""Blocks on a dask cluster; workers and schedulers that are killed."""

import os

import pytest
import study_work as work

import attnlab as al

pytest.importorskip("distributed")
import cluster_work

# Connections that are torn leave warnings behind.
pytestmark = pytest.mark.filterwarnings("ignore")

SMALL = {"p": [0.2, 0.7], "n": [1, 2]}


def test_a_client_of_this_process(tmp_path):
    from distributed import Client

    alone = al.Study(work.coins, SMALL, trials=10, store=tmp_path / "alone")
    alone.run()
    with Client(processes=False, n_workers=1, threads_per_worker=2, dashboard_address=None) as client:
        for shared in (True, False):
            study = al.Study(work.coins, SMALL, trials=10, block=5, store=tmp_path / f"store-{shared}")
            ran = study.run(client=client, shared=shared)
            assert (ran.computed, ran.blocks, ran.log) == (40, 8, ())
            assert study.frame().equals(alone.frame())
            assert study.run(client=client).kept == 40
        failing = al.Study(work.partly_bad, SMALL, trials=10, block=4, store=tmp_path / "failing")
        assert failing.run(client=client, retries=1).failed == 8


def test_a_client_that_takes_no_blocks_any_more(tmp_path, monkeypatch):
    from distributed import Client, LocalCluster

    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(processes=False, **options) as cluster, Client(cluster) as client:
        given_up = []

        def submit(*args, **options):
            given_up.append(args)
            raise RuntimeError("the scheduler was given up")

        monkeypatch.setattr(client, "submit", submit)
        study = al.Study(work.coins, SMALL, trials=10, block=5, store=tmp_path)
        ran = study.run(client=client)  # goes on with a client of its own, at the same address
    assert given_up
    assert (ran.computed, ran.failed) == (40, 0)
    assert "scheduler was lost" in ran.log[0]


def test_nobody_at_the_address(tmp_path, monkeypatch):
    monkeypatch.setattr("attnlab.study.cluster.PATIENCE", 0.1)
    study = al.Study(work.coins, SMALL, trials=2, store=tmp_path)
    with pytest.raises(al.AttnlabError, match="no dask scheduler at nonsense"):
        study.run(client="nonsense://")


@pytest.mark.slow
@pytest.mark.parametrize(
    "hidden", [False, pytest.param(True, marks=pytest.mark.skipif(os.getuid() != 0, reason="root"))]
)
def test_killed_workers_cost_their_blocks(tmp_path, hidden):
    (tmp_path / "store").mkdir()
    cluster = cluster_work.Cluster(tmp_path, 4, hidden=tmp_path / "store" if hidden else None)

    def disturb():
        cluster.kill_worker()
        cluster.kill_worker()

    try:
        ran = cluster_work.disturbed(tmp_path, cluster, disturb)
    finally:
        cluster.close()
    assert (ran.computed, ran.failed) == (480, 0)
    assert any("a worker was lost" in sentence for sentence in ran.log)
    assert cluster_work.study(tmp_path).frame().equals(cluster_work.undisturbed(tmp_path))


@pytest.mark.slow
def test_a_killed_scheduler_loses_nothing_that_was_finished(tmp_path, monkeypatch):
    monkeypatch.setattr("attnlab.study.cluster.PATIENCE", 300.0)
    cluster = cluster_work.Cluster(tmp_path, 2)

    def disturb():
        cluster.kill_scheduler()
        cluster.start_scheduler()
        cluster.start_workers(2)

    try:
        ran = cluster_work.disturbed(tmp_path, cluster, disturb)
    finally:
        cluster.close()
    assert (ran.computed, ran.failed) == (480, 0)
    assert any("scheduler was lost" in sentence for sentence in ran.log)
    assert cluster_work.study(tmp_path).frame().equals(cluster_work.undisturbed(tmp_path))

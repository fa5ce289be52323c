"""Kept numbers are found again only while the code that decides them is the same."""

from attnlab import Store
from attnlab.claims import Claim, check as check_claims
from attnlab.claims.claim import within
from attnlab.store import sources as module
from attnlab.store.sources import NUMBERS, PACKAGE, digest_of, sources


def tree(root, **files):
    for name, text in files.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_any_change_to_the_code_is_seen(tmp_path):
    tree(tmp_path, data__a="x = 1", data__deep__b="y = 2", cli__c="z = 3")
    before = digest_of(tmp_path, ("data",))
    tree(tmp_path, cli__c="z = 4")
    assert digest_of(tmp_path, ("data",)) == before
    tree(tmp_path, data__deep__b="y = 3")
    changed = digest_of(tmp_path, ("data",))
    tree(tmp_path, data__deep__b="y = 2", data__new="")
    added = digest_of(tmp_path, ("data",))
    (tmp_path / "data" / "new.py").rename(tmp_path / "data" / "other.py")
    renamed = digest_of(tmp_path, ("data",))
    assert len({before, changed, added, renamed}) == 4
    (tmp_path / "data" / "other.py").unlink()
    assert digest_of(tmp_path, ("data",)) == before


def test_text_does_not_wander_between_files(tmp_path):
    tree(tmp_path / "one", data__a="ab", data__b="c")
    tree(tmp_path / "two", data__a="a", data__b="bc")
    assert digest_of(tmp_path / "one", ("data",)) != digest_of(tmp_path / "two", ("data",))


def test_papers_have_their_own_and_share_the_rooms_below():
    assert all((PACKAGE / name).exists() for name in NUMBERS)
    assert sources("figures/svm") != sources("figures/rates")
    assert sources("figures/mine") != sources("figures/yours")  # no such folders


def test_a_claim_is_measured_again_when_a_helper_changes(tmp_path, monkeypatch):
    calls = []

    def measure(scale):
        calls.append(scale)
        return within(0.0, 1.0, instances=1)

    claim = Claim(id="mine-1", title="Mine", statement="It holds.", reason="none", measure=measure)
    store = Store(tmp_path / "store")
    # The closure over `calls` would change the name of the run: it is the same list, but not the same content.
    monkeypatch.setattr("attnlab.store.keys.fingerprint", lambda config: {**config, "measure": "same"})
    for _ in range(2):
        check_claims([claim], "smoke", store=store)
    assert len(calls) == 1
    monkeypatch.setattr(module, "PACKAGE", tmp_path)
    module.sources.cache_clear()
    check_claims([claim], "smoke", store=store)
    module.sources.cache_clear()
    assert len(calls) == 2

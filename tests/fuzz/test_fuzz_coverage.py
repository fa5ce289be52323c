"""Every public name has a case."""

from fuzz import coverage


def test_every_public_name_has_a_case_or_a_reason_for_having_none():
    assert coverage.missing() == []


def test_no_case_or_exemption_is_of_a_name_that_is_gone():
    assert coverage.stale() == []
    import attnlab.explore

    assert callable(attnlab.explore)  # both the room and its function from here on
    assert coverage.stale() == []


def test_a_new_public_name_is_noticed(monkeypatch):
    import attnlab.svm

    def solve_everything():
        """New, and without a case."""

    solve_everything.__module__ = "attnlab.svm"
    monkeypatch.setattr(attnlab.svm, "solve_everything", solve_everything, raising=False)
    assert coverage.missing() == ["svm.solve_everything"]


def test_a_new_public_method_is_noticed(monkeypatch):
    from attnlab.data import Tokens

    def reversed_in_time(self):
        """New, and without a case."""

    reversed_in_time.__module__ = "attnlab.data.tokens"
    monkeypatch.setattr(Tokens, "reversed_in_time", reversed_in_time, raising=False)
    assert "data.Tokens.reversed_in_time" in coverage.missing()

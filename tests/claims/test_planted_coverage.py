"""Every claim has a planted fault that turns it, or stands in a short list that says why not."""

import importlib
from pathlib import Path

from planting import faulty_source, located

from attnlab.claims import claims

TABLES = [importlib.import_module(file.stem) for file in sorted(Path(__file__).parent.glob("test_planted_*_?.py"))]
FAULTS = [fault for table in TABLES for fault in table.FAULTS]
# By claim, or by claim and fault ("rates-K25: gamma/4 -> 0.99 gamma") where other faults turn it.
UNTURNED = {name: why for table in TABLES for name, why in getattr(table, "UNTURNED", {}).items()}
COUNTING = {id: why for table in TABLES for id, why in getattr(table, "COUNTING", {}).items()}
IDS = {claim.id for claim in claims()}
# At least this share of all claims turns under a fault of a factor of ten or less.
TURNING = 0.85


def test_every_claim_is_in_a_table():
    turned = {fault.claim for fault in FAULTS}
    unturned = {name.split(":")[0] for name in UNTURNED}
    assert not IDS - turned - unturned - set(COUNTING)
    assert turned | unturned | set(COUNTING) <= IDS


def test_most_claims_turn():
    turned = {fault.claim for fault in FAULTS}
    assert len(turned) >= TURNING * len(IDS)


def test_what_does_not_turn_is_explained():
    turned = {fault.claim for fault in FAULTS}
    for tightness, why in UNTURNED.values():
        assert tightness is None or 0 <= tightness <= 1
        assert len(why.split()) >= 6
    assert all(len(why.split()) >= 4 for why in COUNTING.values())
    assert not set(COUNTING) & turned


def test_rows_are_different():
    rows = [(fault.claim, fault.where, fault.old, fault.new) for fault in FAULTS]
    assert len(set(rows)) == len(rows)
    assert all(fault.old != fault.new for fault in FAULTS)


def test_no_row_is_stale():
    """Rows are slow, and only some are run each time; whether their text is still there is quickly seen."""
    for fault in FAULTS:
        _, original, _ = located(fault)
        if fault.old:
            faulty_source(original, fault)

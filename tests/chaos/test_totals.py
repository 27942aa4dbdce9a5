"""The totals of a chaos run: a sum that doesn't hold is seen."""

from collections import Counter

from tests.chaos.totals import End, Hearing, Totals

ENDS = {
    End.LANDED: Counter("ab"),
    End.QUARANTINED: Counter("c"),
    End.CONSUMED: Counter("d"),
    End.SPLIT: Counter("eea"),
    End.DEAD: Counter("f"),
}


def totals(sent: str, *, too_late: int = 3) -> Totals:
    offers = Counter({Hearing.ANSWERED: 2, Hearing.UNHEARD: 2, Hearing.CUT_OFF: 1})
    return Totals(sent=set(sent), ends=ENDS, offers=offers, too_late=too_late)


def test_each_message_counts_once_at_the_first_of_its_ends() -> None:
    found = totals("abcdef")
    assert [found.at(end) for end in End] == [2, 1, 1, 1, 1]
    assert (found.unaccounted, found.unknown, found.repeated) == (set(), set(), 2)


def test_what_is_at_no_end_is_unaccounted_for() -> None:
    assert totals("abcdefg").unaccounted == {"g"}


def test_what_nobody_sent_is_nobodys() -> None:
    assert totals("abcde").unknown == {"f"}


def test_an_offer_that_heard_nothing_was_too_late_or_is_unexplained() -> None:
    assert [totals("abcdef", too_late=number).unexplained for number in (0, 2, 3, 4)] == [3, 1, 0, 0]


def test_the_sum_is_written_out() -> None:
    assert totals("abcdef").text() == (
        "6 sent = 2 landed + 1 quarantined + 1 consumed + 1 split + 1 dead-lettered; "
        "0 unaccounted for, 0 of nobody's, 2 repeated\n"
        "5 offers: 2 answered, 0 denied, 2 unheard, 1 cut off, 0 unsent; 3 too late"
    )

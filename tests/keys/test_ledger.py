"""What a ledger promises, on both stores."""

import pickle
from collections.abc import Callable
from decimal import Decimal

import pytest
from ledger_tools import Clock

from loopguard_core.keys import (
    DEFAULT_TTL,
    KeyLimitExceeded,
    Ledger,
    LedgerValueError,
    ReservationError,
    open_ledger,
)


def test_reserve_settle_status(ledger: Ledger) -> None:
    ledger.set_limit("k", Decimal("1.00"), "monthly")
    first = ledger.reserve("k", Decimal("0.60"))
    assert (first.keys, first.amount) == (("k",), Decimal("0.60"))
    status = ledger.status("k")
    assert (status.limit, status.spent, status.reserved, status.remaining) == (
        Decimal(1),
        Decimal(0),
        Decimal("0.60"),
        Decimal("0.40"),
    )
    ledger.settle(first, Decimal("0.25"))
    status = ledger.status("k")
    assert (status.spent, status.reserved, status.remaining) == (Decimal("0.25"), 0, Decimal("0.75"))


def test_a_reservation_fits_exactly_or_not_at_all(ledger: Ledger) -> None:
    ledger.set_limit("k", 1)
    ledger.reserve("k", "0.4")
    with pytest.raises(KeyLimitExceeded) as caught:
        ledger.reserve("k", "0.600000001")
    assert (caught.value.key, caught.value.requested) == ("k", Decimal("0.600000001"))
    assert caught.value.status.remaining == Decimal("0.6")
    assert "$0.60 of $1.00 left ($0.00 spent, $0.40 held by running calls)" in str(caught.value)
    ledger.reserve("k", "0.6")
    assert ledger.status("k").remaining == 0


def test_an_unknown_cost_is_granted_while_something_is_left(ledger: Ledger) -> None:
    ledger.set_limit("k", 1)
    ledger.settle(ledger.reserve("k", 0), "0.999999999")
    ledger.settle(ledger.reserve("k", 0), "0.5")
    assert ledger.status("k").spent == Decimal("1.499999999")
    with pytest.raises(KeyLimitExceeded):
        ledger.reserve("k", 0)


def test_a_limit_of_nothing_allows_nothing(ledger: Ledger) -> None:
    ledger.set_limit("k", 0)
    with pytest.raises(KeyLimitExceeded):
        ledger.reserve("k", 0)


def test_a_key_without_a_limit_is_counted_and_unlimited(ledger: Ledger) -> None:
    assert ledger.status("k") == ledger.status("k")
    assert ledger.names() == []
    held = ledger.reserve("k", 1000)
    ledger.settle(held, 2000)
    status = ledger.status("k")
    assert (status.limit, status.remaining, status.resets_at, status.spent) == (None, None, None, 2000)
    assert ledger.names() == ["k"]
    ledger.set_limit("k", 1500)
    assert ledger.status("k").remaining == 0
    ledger.set_limit("k", None)
    ledger.reserve("k", 1)


def test_a_call_may_cost_more_than_was_reserved_and_counts_in_full(ledger: Ledger) -> None:
    ledger.set_limit("k", 1)
    ledger.settle(ledger.reserve("k", "0.1"), 7)
    assert ledger.status("k").spent == 7
    assert ledger.status("k").remaining == 0


def test_settled_or_released_once(ledger: Ledger) -> None:
    ledger.set_limit("k", 1)
    settled, released = ledger.reserve("k", "0.1"), ledger.reserve("k", "0.1")
    ledger.settle(settled, "0.1")
    ledger.release(released)
    for held in (settled, released):
        for again in (lambda held=held: ledger.settle(held, 1), lambda held=held: ledger.release(held)):
            with pytest.raises(ReservationError, match="settled or released before"):
                again()
        with pytest.raises(ReservationError):
            ledger.renew(held)
    assert ledger.status("k").spent == Decimal("0.1")


def test_several_keys_all_or_none(ledger: Ledger) -> None:
    ledger.set_limit("team", 10)
    ledger.set_limit("alice", 1)
    held = ledger.reserve(["team", "alice", "unlimited", "team"], "0.7")
    assert held.keys == ("team", "alice", "unlimited")
    with pytest.raises(KeyLimitExceeded) as caught:
        ledger.reserve(["team", "alice"], "0.7")
    assert caught.value.key == "alice"
    assert ledger.status("team").reserved == Decimal("0.7")
    ledger.settle(held, "0.5")
    for name in held.keys:
        assert (ledger.status(name).spent, ledger.status(name).reserved) == (Decimal("0.5"), 0)


def test_what_a_crash_left_comes_back_after_the_ttl(ledger: Ledger, clock: Clock) -> None:
    ledger.set_limit("k", 1)
    ledger.reserve("k", 1)
    clock.move(DEFAULT_TTL - 0.001)
    assert ledger.status("k").remaining == 0
    clock.move(0.001)
    assert ledger.status("k").remaining == 1
    ledger.reserve("k", 1)
    with pytest.raises(KeyLimitExceeded):
        ledger.reserve("k", "0.1")


def test_settling_after_expiry_counts_in_full_and_once(ledger: Ledger, clock: Clock) -> None:
    ledger.set_limit("k", 1)
    late = ledger.reserve("k", 1, ttl=60)
    clock.move(61)
    other = ledger.reserve("k", 1)  # the money was free again
    ledger.settle(late, "0.8")
    ledger.settle(other, "0.9")
    assert ledger.status("k").spent == Decimal("1.7")
    assert ledger.status("k").reserved == 0
    with pytest.raises(ReservationError):
        ledger.settle(late, "0.8")


def test_renewed_it_stays(ledger: Ledger, clock: Clock) -> None:
    ledger.set_limit("k", 1)
    held = ledger.reserve("k", 1, ttl=60)
    for _ in range(5):
        clock.move(40)
        held = ledger.renew(held)
        assert held.expires_at.timestamp() == clock.now + 60
    with pytest.raises(KeyLimitExceeded):
        ledger.reserve("k", "0.1")
    ledger.settle(held, 1)
    assert ledger.status("k").reserved == 0


def test_renewed_after_it_expired_it_is_held_again(ledger: Ledger, clock: Clock) -> None:
    ledger.set_limit("k", 1)
    late = ledger.reserve("k", 1, ttl=60)
    clock.move(61)
    ledger.reserve("k", "0.5")
    ledger.renew(late)
    assert ledger.status("k").reserved == Decimal("1.5")
    with pytest.raises(KeyLimitExceeded):
        ledger.reserve("k", "0.1")
    ledger.settle(late, "0.25")
    assert (ledger.status("k").spent, ledger.status("k").reserved) == (Decimal("0.25"), Decimal("0.5"))


def test_expired_holds_are_remembered_for_a_month(ledger: Ledger, clock: Clock) -> None:
    ledger.set_limit("k", 1)
    late = ledger.reserve("k", 1, ttl=60)
    clock.move(29 * 86400)
    ledger.status("k")
    ledger.close()  # opening it again is when SQLite forgets
    ledger.settle(late, "0.5")
    assert ledger.status("k").spent == Decimal("0.5")
    later = ledger.reserve("k", "0.5", ttl=60)
    clock.move(31 * 86400)
    ledger.status("k")
    ledger.close()
    assert ledger.status("k").reserved == 0
    with pytest.raises(ReservationError):
        ledger.settle(later, "0.5")


def test_a_clock_that_goes_back_gives_nothing_twice(ledger: Ledger, clock: Clock) -> None:
    ledger.set_limit("k", 1, "daily")
    held = ledger.reserve("k", 1, ttl=60)
    clock.move(61)
    ledger.settle(ledger.reserve("k", 1), 1)
    clock.move(-61)
    with pytest.raises(KeyLimitExceeded):
        ledger.reserve("k", "0.1")
    clock.move(-86400)  # the day before has a limit of its own, and that one holds as well
    ledger.settle(ledger.reserve("k", 1), 1)
    with pytest.raises(KeyLimitExceeded):
        ledger.reserve("k", "0.1")
    clock.move(86400 + 120)
    with pytest.raises(KeyLimitExceeded):
        ledger.reserve("k", "0.1")
    ledger.settle(held, 1)
    assert ledger.status("k").spent == 2


def test_spending_by_hand_goes_above_the_limit(ledger: Ledger) -> None:
    ledger.set_limit("k", 1)
    ledger.spend("k", "1.5")
    ledger.spend(["k", "other"], "0.25")
    assert ledger.status("k").spent == Decimal("1.75")
    assert ledger.status("other").spent == Decimal("0.25")
    assert ledger.status("k").remaining == 0


def test_a_lowered_limit_holds_for_the_next_reservation(ledger: Ledger) -> None:
    ledger.set_limit("k", 10)
    held = ledger.reserve("k", 8)
    ledger.set_limit("k", 5)
    with pytest.raises(KeyLimitExceeded):
        ledger.reserve("k", "0.01")
    ledger.settle(held, 2)
    ledger.reserve("k", 3)


def test_a_deleted_key_is_forgotten(ledger: Ledger) -> None:
    ledger.set_limit("k", 1)
    ledger.spend("k", 1)
    both, alone = ledger.reserve(["other", "new"], 1), ledger.reserve("new", 1)
    assert ledger.names() == ["k", "new", "other"]
    assert ledger.delete("k")
    assert not ledger.delete("k")
    assert ledger.delete("new")
    assert ledger.names() == ["other"]
    assert ledger.history("k") == {}
    assert ledger.status("k").limit is None
    ledger.settle(both, 1)  # the other key still counts it
    assert ledger.status("other").spent == 1
    with pytest.raises(ReservationError, match="the key was deleted"):
        ledger.settle(alone, 1)


def test_amounts_of_every_size_are_exact(ledger: Ledger) -> None:
    ledger.set_limit("k", 1_000_000)
    ledger.settle(ledger.reserve("k", "999999.999999998"), "999999.999999998")
    assert ledger.status("k").remaining == Decimal("0.000000002")
    ledger.settle(ledger.reserve("k", "0.000000001"), "0.000000001")
    with pytest.raises(KeyLimitExceeded):
        ledger.reserve("k", "0.000000002")
    ledger.reserve("k", "0.000000001")
    assert ledger.status("k").remaining == 0
    for _ in range(12):
        ledger.spend("u", 1_000_000)
    ledger.spend("u", "0.000000003")
    assert ledger.history("u").popitem()[1] == Decimal("12000000.000000003")


def test_names_of_every_kind_are_kept_apart(ledger: Ledger) -> None:
    names = ["a", "A", "a:b", "{a}", "ключ", "鍵 1", "a'b", 'a"b', "%"]
    for number, name in enumerate(names):
        ledger.spend(name, number + 1)
    assert ledger.names() == sorted(names)
    assert [ledger.status(name).spent for name in names] == list(range(1, len(names) + 1))


def test_history_is_by_day_and_checked(ledger: Ledger, clock: Clock) -> None:
    for _ in range(3):
        ledger.spend("k", 1)
        clock.move(2 * 86400)
    assert [str(day) for day in ledger.history("k")] == ["2028-03-01", "2028-03-03", "2028-03-05"]
    assert len(ledger.history("k", 5)) == 2
    assert ledger.history("k", 2) == {}
    for wrong in (0, 367, True, 1.5):
        with pytest.raises(LedgerValueError, match="days = "):
            ledger.history("k", wrong)  # type: ignore[arg-type]


def test_two_openings_share_a_store(url: str, open_at: Callable[..., Ledger]) -> None:
    one, two = open_at(url), open_at(url)
    one.set_limit("k", 1)
    held = two.reserve("k", 1)
    with pytest.raises(KeyLimitExceeded):
        one.reserve("k", "0.1")
    one.settle(pickle.loads(pickle.dumps(held)), 1)
    assert two.status("k").spent == 1


@pytest.mark.parametrize("ttl", [0, -1, True, float("nan"), float("inf"), 8 * 86400, "60"])
def test_a_ttl_is_a_number_of_seconds(ttl: object) -> None:
    with pytest.raises(LedgerValueError, match="ttl = "):
        open_ledger("memory://", ttl=ttl)  # type: ignore[arg-type]
    with open_ledger("memory://") as ledger, pytest.raises(LedgerValueError, match="ttl = "):
        ledger.reserve("k", 1, ttl="soon")  # type: ignore[arg-type]


def test_a_used_up_limit_can_be_pickled(ledger: Ledger) -> None:
    ledger.set_limit("k", 1, "daily")
    with pytest.raises(KeyLimitExceeded) as caught:
        ledger.reserve("k", 2)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.key, copy.requested, copy.status) == (
        str(caught.value),
        "k",
        Decimal(2),
        caught.value.status,
    )

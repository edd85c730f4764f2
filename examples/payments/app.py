"""Payments: booked in the order of each account, also when one of them fails.

headwater up examples/payments/app.py
"""

from decimal import Decimal
from typing import Annotated

import headwater as hw

RATES = {"EUR": Decimal(1), "USD": Decimal("0.9")}

app = hw.App("bank")


class Payment(hw.Event):
    account: str
    number: int
    amount: Annotated[Decimal, hw.Decimal(18, 2)]
    currency: str = "EUR"


class Booking(hw.Event):
    account: str
    number: int
    euros: Annotated[Decimal, hw.Decimal(18, 2)]


app.stream("payments", Payment, key="account", time=hw.ARRIVAL)
bookings = app.stream("bookings", Booking, key="account", time=hw.ARRIVAL)


@app.worker("payments", order_by="key", park=True, retry=hw.backoff("1s", attempts=3))
def book(payment: Payment, ctx: hw.Work) -> None:
    """One payment of an account at a time. A booking is there exactly when its payment is done."""
    if payment.currency not in RATES:
        raise hw.RejectError(f"no rate for {payment.currency!r}")
    euros = round(payment.amount * RATES[payment.currency], 2)
    ctx.write(bookings, Booking(payment.account, payment.number, euros))

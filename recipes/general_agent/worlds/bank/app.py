"""A bank: accounts, payees with verification, limits, cards, standing orders, disputes. FastAPI and SQLAlchemy Core."""

import os
from datetime import date
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Query
from pydantic import BaseModel, Field
from sqlalchemy import create_engine, text

TODAY = "2026-03-16"
DISPUTE_DAYS = 60
MOST_PER_DAY = {"basic": 100000, "full": 500000}

engine = create_engine(os.environ.get("DATABASE_PATH", "sqlite:///bank.db"), connect_args={"check_same_thread": False})
app = FastAPI(title="Bank", description=f"Today is {TODAY}. Amounts are in cents of the account's currency.")


def transaction():
    with engine.begin() as db:
        yield db


def rows(db, sql: str, **given) -> list[dict[str, Any]]:
    return [dict(row._mapping) for row in db.execute(text(sql), given)]


def one(db, table: str, key: int) -> dict[str, Any]:
    found = rows(db, f"SELECT * FROM {table} WHERE id = :key", key=key)
    if not found:
        raise HTTPException(404, f"{table}: there is no {key}")
    return found[0]


def put(db, table: str, key: int, **values) -> dict[str, Any]:
    columns = ", ".join(f"{name} = :{name}" for name in values)
    db.execute(text(f"UPDATE {table} SET {columns} WHERE id = :key"), {**values, "key": key})
    return one(db, table, key)


def add(db, table: str, **values) -> dict[str, Any]:
    names = ", ".join(values)
    marks = ", ".join(f":{name}" for name in values)
    return one(db, table, db.execute(text(f"INSERT INTO {table} ({names}) VALUES ({marks})"), values).lastrowid)


def open_account(db, key: int) -> dict[str, Any]:
    account = one(db, "accounts", key)
    if account["status"] != "open":
        raise HTTPException(409, f"account {key} is {account['status']}")
    return account


def book(db, account: dict[str, Any], amount: int, kind: str, counterparty: str) -> None:
    balance = account["balance_cents"] + amount
    if balance < -account["overdraft_cents"]:
        left = account["balance_cents"] + account["overdraft_cents"]
        raise HTTPException(409, f"account {account['id']} has {left} cents available; {-amount} are needed")
    put(db, "accounts", account["id"], balance_cents=balance)
    add(
        db,
        "entries",
        account_id=account["id"],
        amount_cents=amount,
        kind=kind,
        counterparty=counterparty,
        posted_on=TODAY,
    )


def valid_iban(iban: str) -> bool:
    if not (15 <= len(iban) <= 34 and iban.isalnum() and iban[:2].isalpha()):
        return False
    return int("".join(str(int(c, 36)) for c in iban[4:] + iban[:4])) % 97 == 1


class Move(BaseModel):
    source: int = Field(..., description="Account that gives")
    target: int = Field(..., description="Account of the same customer that gets")
    amount_cents: int = Field(..., ge=1, description="In the source's currency")


class NewPayee(BaseModel):
    name: str = Field(..., min_length=2)
    iban: str = Field(..., description="With or without blanks")


class Code(BaseModel):
    code: str = Field(..., pattern=r"^\d{6}$", description="From the customer's messages")


class NewPayment(BaseModel):
    payee_id: int
    amount_cents: int = Field(..., ge=1)
    note: str | None = Field(None, max_length=140)


class Limit(BaseModel):
    limit_cents: int = Field(..., ge=0)


class NewStandingOrder(BaseModel):
    payee_id: int
    amount_cents: int = Field(..., ge=1)
    day: int = Field(..., ge=1, le=28)


class ChangedStandingOrder(BaseModel):
    amount_cents: int | None = Field(None, ge=1)
    day: int | None = Field(None, ge=1, le=28)


class NewDispute(BaseModel):
    reason: str = Field(..., min_length=5)


@app.get("/customers", operation_id="find_customers")
def find_customers(
    name: str | None = Query(None, description="Part of the name"),
    level: str | None = Query(None, description="basic or full identification"),
    db=Depends(transaction),
):
    """Finds customers; without filters, all of them."""
    return rows(
        db,
        "SELECT * FROM customers WHERE (:name IS NULL OR name LIKE '%' || :name || '%') "
        "AND (:level IS NULL OR level = :level) ORDER BY id",
        name=name,
        level=level,
    )


@app.get("/customers/{customer_id}", operation_id="get_customer")
def get_customer(customer_id: int, db=Depends(transaction)):
    """A customer, with the daily limit and what was sent today."""
    return one(db, "customers", customer_id)


@app.put("/customers/{customer_id}/daily_limit", operation_id="change_daily_limit")
def change_daily_limit(customer_id: int, new: Limit, db=Depends(transaction)):
    """Changes how much a customer may send in a day: up to 1000 euros with basic, 5000 with full identification."""
    customer = one(db, "customers", customer_id)
    most = MOST_PER_DAY[customer["level"]]
    if new.limit_cents > most:
        raise HTTPException(403, f"{most} cents is the most for {customer['level']} identification")
    return put(db, "customers", customer_id, daily_limit_cents=new.limit_cents)


@app.get("/customers/{customer_id}/messages", operation_id="list_messages")
def list_messages(customer_id: int, db=Depends(transaction)):
    """The customer's inbox, codes included."""
    one(db, "customers", customer_id)
    return rows(db, "SELECT * FROM messages WHERE customer_id = :c ORDER BY id", c=customer_id)


@app.get("/customers/{customer_id}/accounts", operation_id="list_accounts")
def list_accounts(customer_id: int, db=Depends(transaction)):
    """Accounts of a customer."""
    one(db, "customers", customer_id)
    return rows(db, "SELECT * FROM accounts WHERE customer_id = :c ORDER BY id", c=customer_id)


@app.get("/accounts/{account_id}", operation_id="get_account")
def get_account(account_id: int, db=Depends(transaction)):
    """One account."""
    return one(db, "accounts", account_id)


@app.get("/accounts/{account_id}/entries", operation_id="list_entries")
def list_entries(
    account_id: int,
    counterparty: str | None = Query(None, description="Part of the name"),
    since: date | None = None,
    db=Depends(transaction),
):
    """What was booked on an account."""
    one(db, "accounts", account_id)
    return rows(
        db,
        "SELECT * FROM entries WHERE account_id = :a AND (:c IS NULL OR counterparty LIKE '%' || :c || '%') "
        "AND (:s IS NULL OR posted_on >= :s) ORDER BY id",
        a=account_id,
        c=counterparty,
        s=str(since) if since else None,
    )


@app.post("/accounts/{account_id}/close", operation_id="close_account")
def close_account(account_id: int, db=Depends(transaction)):
    """Closes an account with a balance of 0, without active cards and standing orders."""
    account = open_account(db, account_id)
    if account["balance_cents"]:
        raise HTTPException(409, f"account {account_id} has a balance of {account['balance_cents']} cents")
    for table in ("standing_orders", "cards"):
        left = rows(db, f"SELECT id FROM {table} WHERE account_id = :a AND status = 'active'", a=account_id)
        if left:
            raise HTTPException(409, f"account {account_id} still has active {table}: {[r['id'] for r in left]}")
    return put(db, "accounts", account_id, status="closed")


@app.post("/moves", operation_id="move_money")
def move_money(new: Move, db=Depends(transaction)):
    """Moves money between two accounts of one customer in one currency."""
    source, target = open_account(db, new.source), open_account(db, new.target)
    if source["customer_id"] != target["customer_id"] or source["id"] == target["id"]:
        raise HTTPException(403, "these are not two accounts of one customer")
    if source["currency"] != target["currency"]:
        raise HTTPException(409, f"{source['currency']} and {target['currency']}: exchange it instead")
    book(db, source, -new.amount_cents, "move", f"account {target['id']}")
    book(db, target, new.amount_cents, "move", f"account {source['id']}")
    return [one(db, "accounts", source["id"]), one(db, "accounts", target["id"])]


@app.get("/rates", operation_id="list_rates")
def list_rates(db=Depends(transaction)):
    """Exchange rates: target units for a million source units."""
    return rows(db, "SELECT * FROM rates")


@app.post("/exchanges", operation_id="exchange_money")
def exchange_money(new: Move, db=Depends(transaction)):
    """Exchanges money between two accounts of one customer in different currencies."""
    source, target = open_account(db, new.source), open_account(db, new.target)
    if source["customer_id"] != target["customer_id"]:
        raise HTTPException(403, "these are not two accounts of one customer")
    rate = rows(
        db,
        "SELECT per_million FROM rates WHERE source = :s AND target = :t",
        s=source["currency"],
        t=target["currency"],
    )
    if not rate:
        raise HTTPException(409, f"there is no rate from {source['currency']} to {target['currency']}")
    received = new.amount_cents * rate[0]["per_million"] // 1000000
    book(db, source, -new.amount_cents, "exchange", f"account {target['id']}")
    book(db, target, received, "exchange", f"account {source['id']}")
    return {"received_cents": received, "currency": target["currency"]}


@app.get("/customers/{customer_id}/payees", operation_id="list_payees")
def list_payees(customer_id: int, db=Depends(transaction)):
    """Whom a customer can pay."""
    one(db, "customers", customer_id)
    return rows(db, "SELECT * FROM payees WHERE customer_id = :c ORDER BY id", c=customer_id)


@app.post("/customers/{customer_id}/payees", operation_id="add_payee", status_code=201)
def add_payee(customer_id: int, new: NewPayee, db=Depends(transaction)):
    """A new payee; it must be verified before it is paid."""
    one(db, "customers", customer_id)
    iban = new.iban.replace(" ", "").upper()
    if not valid_iban(iban):
        raise HTTPException(422, f"{iban} is no valid IBAN: its check digits do not fit")
    if rows(db, "SELECT 1 FROM payees WHERE customer_id = :c AND iban = :i", c=customer_id, i=iban):
        raise HTTPException(409, f"{iban} is among the payees already")
    return add(db, "payees", customer_id=customer_id, name=new.name, iban=iban, verified=0)


@app.post("/payees/{payee_id}/verification", operation_id="start_verification", status_code=201)
def start_verification(payee_id: int, db=Depends(transaction)):
    """Sends the customer a code for a payee."""
    payee = one(db, "payees", payee_id)
    if payee["verified"]:
        raise HTTPException(409, f"payee {payee_id} is verified already")
    sent = rows(db, "SELECT count(*) AS n FROM codes WHERE payee_id = :p", p=payee_id)[0]["n"]
    code = str(100000 + (payee_id * 7919 + sent * 104729 + 31337) % 900000)
    add(db, "codes", payee_id=payee_id, code=code)
    add(db, "messages", customer_id=payee["customer_id"], body=f"Your code for the payee {payee['name']} is {code}.")
    return {"sent_to": "the customer's messages"}


@app.post("/payees/{payee_id}/verify", operation_id="verify_payee")
def verify_payee(payee_id: int, given: Code, db=Depends(transaction)):
    """Verifies a payee with the latest code; a code can be tried once."""
    payee = one(db, "payees", payee_id)
    codes = rows(db, "SELECT * FROM codes WHERE payee_id = :p AND used = 0 ORDER BY id DESC", p=payee_id)
    if not codes:
        raise HTTPException(409, "there is no code to be tried: start the verification")
    put(db, "codes", codes[0]["id"], used=1)
    if codes[0]["code"] != given.code:
        db.commit()
        raise HTTPException(403, "wrong code; start the verification again")
    return put(db, "payees", payee["id"], verified=1)


@app.post("/payees/{payee_id}/remove", operation_id="remove_payee")
def remove_payee(payee_id: int, db=Depends(transaction)):
    """Removes a payee that was never used."""
    one(db, "payees", payee_id)
    for table in ("payments", "standing_orders", "codes"):
        if rows(db, f"SELECT 1 FROM {table} WHERE payee_id = :p", p=payee_id):
            raise HTTPException(409, f"payee {payee_id} has {table}")
    db.execute(text("DELETE FROM payees WHERE id = :p"), {"p": payee_id})
    return {"removed": payee_id}


@app.post("/accounts/{account_id}/payments", operation_id="send_payment", status_code=201)
def send_payment(account_id: int, new: NewPayment, db=Depends(transaction)):
    """Pays a verified payee from a checking account, within balance, overdraft and daily limit."""
    account, payee = open_account(db, account_id), one(db, "payees", new.payee_id)
    customer = one(db, "customers", account["customer_id"])
    if payee["customer_id"] != customer["id"]:
        raise HTTPException(403, f"payee {payee['id']} belongs to another customer")
    if account["kind"] != "checking" or account["currency"] != "EUR":
        raise HTTPException(409, "payments go out from checking accounts in EUR; move the money there first")
    if not payee["verified"]:
        raise HTTPException(403, f"payee {payee['id']} is not verified")
    left = customer["daily_limit_cents"] - customer["sent_today_cents"]
    if new.amount_cents > left:
        raise HTTPException(409, f"the daily limit leaves {left} cents")
    book(db, account, -new.amount_cents, "payment", payee["name"])
    put(db, "customers", customer["id"], sent_today_cents=customer["sent_today_cents"] + new.amount_cents)
    return add(
        db,
        "payments",
        account_id=account_id,
        payee_id=payee["id"],
        amount_cents=new.amount_cents,
        note=new.note,
        status="sent",
    )


@app.get("/accounts/{account_id}/payments", operation_id="list_payments")
def list_payments(account_id: int, db=Depends(transaction)):
    """Payments sent from an account."""
    one(db, "accounts", account_id)
    return rows(db, "SELECT * FROM payments WHERE account_id = :a ORDER BY id", a=account_id)


@app.get("/accounts/{account_id}/cards", operation_id="list_cards")
def list_cards(account_id: int, db=Depends(transaction)):
    """Cards of an account."""
    one(db, "accounts", account_id)
    return rows(db, "SELECT * FROM cards WHERE account_id = :a ORDER BY id", a=account_id)


@app.post("/cards/{card_id}/freeze", operation_id="freeze_card")
def freeze_card(card_id: int, db=Depends(transaction)):
    """Stops a card for the time being."""
    if one(db, "cards", card_id)["status"] != "active":
        raise HTTPException(409, f"card {card_id} is not active")
    return put(db, "cards", card_id, status="frozen")


@app.post("/cards/{card_id}/unfreeze", operation_id="unfreeze_card")
def unfreeze_card(card_id: int, db=Depends(transaction)):
    """Makes a frozen card work again."""
    if one(db, "cards", card_id)["status"] != "frozen":
        raise HTTPException(409, f"card {card_id} is not frozen")
    return put(db, "cards", card_id, status="active")


@app.post("/cards/{card_id}/replace", operation_id="replace_card", status_code=201)
def replace_card(card_id: int, db=Depends(transaction)):
    """Orders a new card in place of a frozen one, with the same limit."""
    card = one(db, "cards", card_id)
    if card["status"] != "frozen":
        raise HTTPException(409, f"card {card_id} is {card['status']}; freeze it first")
    put(db, "cards", card_id, status="replaced")
    last4 = f"{(int(card['last4']) * 7 + 13) % 10000:04d}"
    return add(
        db, "cards", account_id=card["account_id"], last4=last4, status="active", limit_cents=card["limit_cents"]
    )


@app.put("/cards/{card_id}/limit", operation_id="set_card_limit")
def set_card_limit(card_id: int, new: Limit, db=Depends(transaction)):
    """Changes the monthly limit of an active card."""
    if one(db, "cards", card_id)["status"] != "active":
        raise HTTPException(409, f"card {card_id} is not active")
    return put(db, "cards", card_id, limit_cents=new.limit_cents)


@app.get("/accounts/{account_id}/standing_orders", operation_id="list_standing_orders")
def list_standing_orders(account_id: int, db=Depends(transaction)):
    """Standing orders of an account, cancelled ones too."""
    one(db, "accounts", account_id)
    return rows(
        db,
        "SELECT s.*, p.name AS payee FROM standing_orders s JOIN payees p ON p.id = s.payee_id WHERE account_id = :a",
        a=account_id,
    )


@app.post("/accounts/{account_id}/standing_orders", operation_id="create_standing_order", status_code=201)
def create_standing_order(account_id: int, new: NewStandingOrder, db=Depends(transaction)):
    """Pays a verified payee every month."""
    account, payee = open_account(db, account_id), one(db, "payees", new.payee_id)
    if payee["customer_id"] != account["customer_id"] or not payee["verified"]:
        raise HTTPException(403, f"payee {payee['id']} is not a verified payee of this customer")
    return add(db, "standing_orders", account_id=account_id, status="active", **new.model_dump())


@app.patch("/standing_orders/{order_id}", operation_id="change_standing_order")
def change_standing_order(order_id: int, new: ChangedStandingOrder, db=Depends(transaction)):
    """Changes amount or day of an active standing order."""
    if one(db, "standing_orders", order_id)["status"] != "active":
        raise HTTPException(409, f"standing order {order_id} is not active")
    values = new.model_dump(exclude_none=True)
    if not values:
        raise HTTPException(422, "give amount_cents or day")
    return put(db, "standing_orders", order_id, **values)


@app.post("/standing_orders/{order_id}/cancel", operation_id="cancel_standing_order")
def cancel_standing_order(order_id: int, db=Depends(transaction)):
    """Ends a standing order."""
    if one(db, "standing_orders", order_id)["status"] != "active":
        raise HTTPException(409, f"standing order {order_id} is not active")
    return put(db, "standing_orders", order_id, status="cancelled")


@app.post("/entries/{entry_id}/dispute", operation_id="open_dispute", status_code=201)
def open_dispute(entry_id: int, new: NewDispute, db=Depends(transaction)):
    """Disputes a card charge of the last 60 days."""
    entry = one(db, "entries", entry_id)
    if entry["kind"] != "card":
        raise HTTPException(409, f"entry {entry_id} is no card charge")
    age = (date.fromisoformat(TODAY) - date.fromisoformat(entry["posted_on"])).days
    if age > DISPUTE_DAYS:
        raise HTTPException(409, f"entry {entry_id} is {age} days old; {DISPUTE_DAYS} are allowed")
    if rows(db, "SELECT 1 FROM disputes WHERE entry_id = :e", e=entry_id):
        raise HTTPException(409, f"entry {entry_id} is disputed already")
    return add(db, "disputes", entry_id=entry_id, reason=new.reason, status="open")


@app.get("/disputes", operation_id="list_disputes")
def list_disputes(db=Depends(transaction)):
    """All disputes."""
    return rows(db, "SELECT * FROM disputes ORDER BY id")


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")))

"""A support desk: tickets with teams, roles, locks, versions and approvals. FastAPI and SQLAlchemy's Core."""

import os
from typing import Any

from fastapi import FastAPI, HTTPException, Query
from pydantic import BaseModel, Field
from sqlalchemy import create_engine, text

TODAY = "2026-03-16"
MAX_OPEN = 4
PRIORITIES = ("low", "normal", "high", "urgent")
TEAMS = ("billing", "network", "accounts")
STEPS = {
    "new": ("open",),
    "open": ("pending", "solved"),
    "pending": ("open", "solved"),
    "solved": ("open", "closed"),
    "closed": (),
}

engine = create_engine(os.environ.get("DATABASE_PATH", "sqlite:///desk.db"), connect_args={"check_same_thread": False})
app = FastAPI(title="Support desk", description=f"Today is {TODAY}.")


def rows(db, sql: str, **given) -> list[dict[str, Any]]:
    return [dict(row._mapping) for row in db.execute(text(sql), given)]


def one(db, kind: str, key: int) -> dict[str, Any]:
    found = rows(db, f"SELECT * FROM {kind} WHERE id = :key", key=key)
    if not found:
        raise HTTPException(404, f"there is no {kind[:-1]} {key}")
    return found[0]


def writer(db, ticket_id: int, agent_id: int, version: int | None = None):
    """The ticket and the agent, if that agent may change it now."""
    ticket, agent = one(db, "tickets", ticket_id), one(db, "agents", agent_id)
    if not agent["active"]:
        raise HTTPException(403, f"{agent['name']} is not active")
    if ticket["status"] == "closed" or ticket["merged_into"]:
        raise HTTPException(409, f"ticket {ticket_id} is closed")
    if ticket["locked_by"] not in (None, agent_id):
        holder = one(db, "agents", ticket["locked_by"])["name"]
        raise HTTPException(423, f"ticket {ticket_id} is locked by {holder}; a lead of its team can break the lock")
    if version is not None and version != ticket["version"]:
        raise HTTPException(409, f"version {version} is not the latest one; read ticket {ticket_id} again")
    return ticket, agent


def update(db, ticket_id: int, agent_id: int, what: str, **values) -> dict[str, Any]:
    columns = ", ".join(f"{name} = :{name}" for name in values)
    db.execute(
        text(f"UPDATE tickets SET {columns}, version = version + 1 WHERE id = :ticket_id"),
        {**values, "ticket_id": ticket_id},
    )
    note(db, ticket_id, agent_id, what)
    return one(db, "tickets", ticket_id)


def note(db, ticket_id: int, agent_id: int, what: str) -> None:
    db.execute(
        text("INSERT INTO history (ticket_id, agent_id, what) VALUES (:t, :a, :w)"),
        {"t": ticket_id, "a": agent_id, "w": what},
    )


class By(BaseModel):
    agent_id: int = Field(..., description="The agent in whose name this is done")


class Versioned(By):
    version: int = Field(..., description="The ticket's version as you read it")


class NewTicket(By):
    customer_id: int
    subject: str = Field(..., min_length=3)
    team: str
    priority: str = "normal"


class NewComment(By):
    body: str = Field(..., min_length=1)
    internal: bool = Field(False, description="True hides it from the customer")


class Priority(Versioned):
    priority: str = Field(..., description="low, normal, high or urgent")


class Status(Versioned):
    status: str = Field(..., description="open, pending, solved or closed")


class Assignee(Versioned):
    assignee_id: int


class Team(Versioned):
    team: str = Field(..., description="billing, network or accounts")


class DueDate(Versioned):
    due_on: str = Field(..., pattern=r"^\d{4}-\d{2}-\d{2}$")


class Tag(By):
    tag: str = Field(..., min_length=2, pattern="^[a-z0-9-]+$")


class Merge(By):
    into: int = Field(..., description="The ticket that stays")


class Approval(By):
    action: str = Field(..., description="refund, deletion or urgent")


class Decision(By):
    grant: bool


class Article(By):
    title: str = Field(..., min_length=3)
    body: str = Field(..., min_length=3)


@app.get("/agents", operation_id="list_agents")
def list_agents(team: str | None = None, name: str | None = Query(None, description="Part of the name")):
    """Agents with their team, role and number of open or pending tickets."""
    with engine.connect() as db:
        return rows(
            db,
            "SELECT a.*, (SELECT count(*) FROM tickets t WHERE t.assignee_id = a.id "
            "AND t.status IN ('open', 'pending')) AS open_tickets FROM agents a WHERE (:team IS NULL OR team = :team) "
            "AND (:name IS NULL OR name LIKE '%' || :name || '%') ORDER BY id",
            team=team,
            name=name,
        )


@app.get("/customers", operation_id="find_customers")
def find_customers(name: str | None = Query(None, description="Part of the name"), plan: str | None = None):
    """Finds customers."""
    with engine.connect() as db:
        return rows(
            db,
            "SELECT * FROM customers WHERE (:name IS NULL OR name LIKE '%' || :name || '%') "
            "AND (:plan IS NULL OR plan = :plan) ORDER BY id",
            name=name,
            plan=plan,
        )


@app.get("/tickets", operation_id="search_tickets")
def search_tickets(
    subject: str | None = Query(None, description="Part of the subject"),
    status: str | None = None,
    team: str | None = None,
    priority: str | None = None,
    customer_id: int | None = None,
    assignee_id: int | None = None,
    tag: str | None = None,
):
    """Finds tickets; without filters, all of them. Comments are not part of the list."""
    with engine.connect() as db:
        return rows(
            db,
            "SELECT * FROM tickets t WHERE (:subject IS NULL OR subject LIKE '%' || :subject || '%') "
            "AND (:status IS NULL OR status = :status) AND (:team IS NULL OR team = :team) "
            "AND (:priority IS NULL OR priority = :priority) AND (:customer IS NULL OR customer_id = :customer) "
            "AND (:assignee IS NULL OR assignee_id = :assignee) AND (:tag IS NULL OR EXISTS "
            "(SELECT 1 FROM tags g WHERE g.ticket_id = t.id AND g.tag = :tag)) ORDER BY id",
            subject=subject,
            status=status,
            team=team,
            priority=priority,
            customer=customer_id,
            assignee=assignee_id,
            tag=tag,
        )


@app.get("/tickets/{ticket_id}", operation_id="get_ticket")
def get_ticket(ticket_id: int):
    """A ticket with its comments, tags and approvals."""
    with engine.connect() as db:
        ticket = one(db, "tickets", ticket_id)
        ticket["comments"] = rows(
            db, "SELECT id, author, body, internal FROM comments WHERE ticket_id = :t ORDER BY id", t=ticket_id
        )
        ticket["tags"] = [r["tag"] for r in rows(db, "SELECT tag FROM tags WHERE ticket_id = :t", t=ticket_id)]
        ticket["approvals"] = rows(db, "SELECT * FROM approvals WHERE ticket_id = :t", t=ticket_id)
        return ticket


@app.post("/tickets", operation_id="create_ticket", status_code=201)
def create_ticket(new: NewTicket):
    """A new ticket without an assignee."""
    if new.team not in TEAMS or new.priority not in PRIORITIES[:3]:
        raise HTTPException(422, f"team is one of {', '.join(TEAMS)}; priority is low, normal or high")
    with engine.begin() as db:
        one(db, "customers", new.customer_id)
        one(db, "agents", new.agent_id)
        key = db.execute(
            text("INSERT INTO tickets (customer_id, subject, team, priority, status) VALUES (:c, :s, :t, :p, 'new')"),
            {"c": new.customer_id, "s": new.subject, "t": new.team, "p": new.priority},
        ).lastrowid
        note(db, key, new.agent_id, "created")
        return one(db, "tickets", key)


@app.post("/tickets/{ticket_id}/comments", operation_id="add_comment", status_code=201)
def add_comment(ticket_id: int, new: NewComment):
    """Writes a comment. The customer reads it unless it is internal."""
    with engine.begin() as db:
        _, agent = writer(db, ticket_id, new.agent_id)
        key = db.execute(
            text("INSERT INTO comments (ticket_id, author, body, internal) VALUES (:t, :a, :b, :i)"),
            {"t": ticket_id, "a": agent["name"], "b": new.body, "i": int(new.internal)},
        ).lastrowid
        return one(db, "comments", key)


@app.put("/tickets/{ticket_id}/priority", operation_id="set_priority")
def set_priority(ticket_id: int, new: Priority):
    """Changes the priority. Urgent needs a lead of the team, or a granted approval 'urgent'."""
    if new.priority not in PRIORITIES:
        raise HTTPException(422, f"priority is one of {', '.join(PRIORITIES)}")
    with engine.begin() as db:
        ticket, agent = writer(db, ticket_id, new.agent_id, new.version)
        if new.priority == "urgent" and not (agent["role"] == "lead" and agent["team"] == ticket["team"]):
            granted = rows(
                db,
                "SELECT 1 FROM approvals WHERE ticket_id = :t AND action = 'urgent' AND status = 'granted'",
                t=ticket_id,
            )
            if not granted:
                raise HTTPException(403, "urgent needs a lead of the ticket's team or a granted approval 'urgent'")
        return update(db, ticket_id, new.agent_id, f"priority {new.priority}", priority=new.priority)


@app.put("/tickets/{ticket_id}/assignee", operation_id="assign_ticket")
def assign_ticket(ticket_id: int, new: Assignee):
    """Gives a ticket to an active agent of its team who has fewer than 4 open or pending tickets."""
    with engine.begin() as db:
        ticket, _ = writer(db, ticket_id, new.agent_id, new.version)
        assignee = one(db, "agents", new.assignee_id)
        if not assignee["active"]:
            raise HTTPException(409, f"{assignee['name']} is not active")
        if assignee["team"] != ticket["team"]:
            raise HTTPException(409, f"{assignee['name']} is in {assignee['team']}, the ticket in {ticket['team']}")
        load = rows(
            db,
            "SELECT count(*) AS n FROM tickets WHERE assignee_id = :a AND status IN ('open', 'pending')",
            a=assignee["id"],
        )[0]["n"]
        if load >= MAX_OPEN:
            raise HTTPException(409, f"{assignee['name']} has {load} open tickets; {MAX_OPEN} is the most")
        status = "open" if ticket["status"] == "new" else ticket["status"]
        return update(
            db, ticket_id, new.agent_id, f"assigned to {assignee['id']}", assignee_id=assignee["id"], status=status
        )


@app.put("/tickets/{ticket_id}/team", operation_id="move_ticket")
def move_ticket(ticket_id: int, new: Team):
    """Moves a ticket to another team; it has no assignee then."""
    if new.team not in TEAMS:
        raise HTTPException(422, f"team is one of {', '.join(TEAMS)}")
    with engine.begin() as db:
        writer(db, ticket_id, new.agent_id, new.version)
        return update(db, ticket_id, new.agent_id, f"moved to {new.team}", team=new.team, assignee_id=None)


@app.put("/tickets/{ticket_id}/status", operation_id="set_status")
def set_status(ticket_id: int, new: Status):
    """Moves a ticket on: new, open, pending, solved, closed. Solved needs a public answer of the assignee; a lead of
    the team closes. A refund or deletion that is asked for must be decided before."""
    with engine.begin() as db:
        ticket, agent = writer(db, ticket_id, new.agent_id, new.version)
        if new.status not in STEPS[ticket["status"]]:
            steps = ", ".join(STEPS[ticket["status"]]) or "nothing"
            raise HTTPException(409, f"a ticket that is {ticket['status']} can become {steps}")
        if new.status == "solved":
            if ticket["assignee_id"] is None:
                raise HTTPException(409, "it has no assignee")
            name = one(db, "agents", ticket["assignee_id"])["name"]
            if not rows(
                db,
                "SELECT 1 FROM comments WHERE ticket_id = :t AND author = :n AND internal = 0",
                t=ticket_id,
                n=name,
            ):
                raise HTTPException(409, f"{name}, the assignee, has not answered the customer yet")
            if rows(db, "SELECT 1 FROM approvals WHERE ticket_id = :t AND status = 'requested'", t=ticket_id):
                raise HTTPException(409, "an approval is not decided yet")
        if new.status == "closed" and not (agent["role"] == "lead" and agent["team"] == ticket["team"]):
            raise HTTPException(403, "a lead of the ticket's team closes tickets")
        return update(db, ticket_id, new.agent_id, f"status {new.status}", status=new.status)


@app.put("/tickets/{ticket_id}/due", operation_id="set_due_date")
def set_due_date(ticket_id: int, new: DueDate):
    """Sets the day until which the ticket should be solved."""
    with engine.begin() as db:
        writer(db, ticket_id, new.agent_id, new.version)
        if new.due_on < TODAY:
            raise HTTPException(422, f"{new.due_on} is past")
        return update(db, ticket_id, new.agent_id, f"due {new.due_on}", due_on=new.due_on)


@app.post("/tickets/{ticket_id}/lock", operation_id="lock_ticket")
def lock_ticket(ticket_id: int, by: By):
    """Keeps others from changing a ticket."""
    with engine.begin() as db:
        writer(db, ticket_id, by.agent_id)
        return update(db, ticket_id, by.agent_id, "locked", locked_by=by.agent_id)


@app.post("/tickets/{ticket_id}/unlock", operation_id="unlock_ticket")
def unlock_ticket(ticket_id: int, by: By):
    """Opens one's own lock. A lead of the ticket's team may break another agent's."""
    with engine.begin() as db:
        ticket, agent = one(db, "tickets", ticket_id), one(db, "agents", by.agent_id)
        if ticket["locked_by"] is None:
            raise HTTPException(409, f"ticket {ticket_id} is not locked")
        lead = agent["role"] == "lead" and agent["team"] == ticket["team"]
        if ticket["locked_by"] != agent["id"] and not lead:
            raise HTTPException(403, "only its holder or a lead of the ticket's team opens a lock")
        return update(db, ticket_id, by.agent_id, "unlocked", locked_by=None)


@app.post("/tickets/{ticket_id}/tags", operation_id="add_tag", status_code=201)
def add_tag(ticket_id: int, new: Tag):
    """Puts a tag on a ticket."""
    with engine.begin() as db:
        writer(db, ticket_id, new.agent_id)
        db.execute(text("INSERT OR IGNORE INTO tags VALUES (:t, :g)"), {"t": ticket_id, "g": new.tag})
        return [r["tag"] for r in rows(db, "SELECT tag FROM tags WHERE ticket_id = :t", t=ticket_id)]


@app.post("/tickets/{ticket_id}/tags/remove", operation_id="remove_tag")
def remove_tag(ticket_id: int, old: Tag):
    """Takes a tag off."""
    with engine.begin() as db:
        writer(db, ticket_id, old.agent_id)
        db.execute(text("DELETE FROM tags WHERE ticket_id = :t AND tag = :g"), {"t": ticket_id, "g": old.tag})
        return [r["tag"] for r in rows(db, "SELECT tag FROM tags WHERE ticket_id = :t", t=ticket_id)]


@app.post("/tickets/{ticket_id}/merge", operation_id="merge_ticket")
def merge_ticket(ticket_id: int, new: Merge):
    """Closes a ticket in favour of another one of the same customer."""
    with engine.begin() as db:
        ticket, _ = writer(db, ticket_id, new.agent_id)
        target, _ = writer(db, new.into, new.agent_id)
        if ticket_id == new.into or ticket["customer_id"] != target["customer_id"]:
            raise HTTPException(409, "only two different tickets of one customer can be merged")
        return update(db, ticket_id, new.agent_id, f"merged into {new.into}", status="closed", merged_into=new.into)


@app.post("/tickets/{ticket_id}/approvals", operation_id="request_approval", status_code=201)
def request_approval(ticket_id: int, new: Approval):
    """Asks a lead for a refund, a deletion or urgent priority."""
    if new.action not in ("refund", "deletion", "urgent"):
        raise HTTPException(422, "action is refund, deletion or urgent")
    with engine.begin() as db:
        writer(db, ticket_id, new.agent_id)
        key = db.execute(
            text("INSERT INTO approvals (ticket_id, action, requested_by, status) VALUES (:t, :x, :a, 'requested')"),
            {"t": ticket_id, "x": new.action, "a": new.agent_id},
        ).lastrowid
        return one(db, "approvals", key)


@app.get("/approvals", operation_id="list_approvals")
def list_approvals(status: str | None = Query(None, description="requested, granted or refused")):
    """Approvals with their tickets."""
    with engine.connect() as db:
        return rows(db, "SELECT * FROM approvals WHERE (:s IS NULL OR status = :s) ORDER BY id", s=status)


@app.post("/approvals/{approval_id}/decide", operation_id="decide_approval")
def decide_approval(approval_id: int, new: Decision):
    """A lead of the ticket's team grants or refuses; not on a request of one's own."""
    with engine.begin() as db:
        approval, agent = one(db, "approvals", approval_id), one(db, "agents", new.agent_id)
        ticket = one(db, "tickets", approval["ticket_id"])
        if agent["role"] != "lead" or agent["team"] != ticket["team"] or agent["id"] == approval["requested_by"]:
            raise HTTPException(403, f"only another lead of the team {ticket['team']} decides this")
        if approval["status"] != "requested":
            raise HTTPException(409, f"approval {approval_id} is {approval['status']}")
        db.execute(
            text("UPDATE approvals SET status = :s, decided_by = :a WHERE id = :k"),
            {"s": "granted" if new.grant else "refused", "a": agent["id"], "k": approval_id},
        )
        return one(db, "approvals", approval_id)


@app.get("/articles", operation_id="search_articles")
def search_articles(query: str | None = Query(None, description="A word of the title"), status: str | None = None):
    """Finds help articles by title; drafts too."""
    with engine.connect() as db:
        return rows(
            db,
            "SELECT id, title, status FROM articles WHERE (:q IS NULL OR title LIKE '%' || :q || '%') "
            "AND (:s IS NULL OR status = :s) ORDER BY id",
            q=query,
            s=status,
        )


@app.get("/articles/{article_id}", operation_id="get_article")
def get_article(article_id: int):
    """A help article."""
    with engine.connect() as db:
        return one(db, "articles", article_id)


@app.post("/articles", operation_id="write_article", status_code=201)
def write_article(new: Article):
    """A new help article, as a draft."""
    with engine.begin() as db:
        one(db, "agents", new.agent_id)
        key = db.execute(
            text("INSERT INTO articles (title, body, status) VALUES (:t, :b, 'draft')"),
            {"t": new.title, "b": new.body},
        ).lastrowid
        return one(db, "articles", key)


@app.post("/articles/{article_id}/publish", operation_id="publish_article")
def publish_article(article_id: int, by: By):
    """Publishes a draft; leads only."""
    with engine.begin() as db:
        if one(db, "agents", by.agent_id)["role"] != "lead":
            raise HTTPException(403, "only a lead publishes")
        if one(db, "articles", article_id)["status"] != "draft":
            raise HTTPException(409, f"article {article_id} is published already")
        db.execute(text("UPDATE articles SET status = 'published' WHERE id = :k"), {"k": article_id})
        return one(db, "articles", article_id)


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")))

"""The desk's tasks: the text, and what must have changed when it is done (judge.py)."""

FREE = ["history"]

TASKS = [
    {
        "task": "Quarry Foods wrote twice about the same double charge. In Jonas Falk's name, merge the newer ticket "
        "into the older one and tell the customer in the ticket that stays, with a public comment, that they have been "
        "merged.",
        "free": FREE,
        "expected": {
            "tickets": {"changed": {"202": {"status": "closed", "merged_into": 201, "version": 2}}},
            "comments": {"added": [{"ticket_id": 201, "author": "Jonas Falk", "internal": 0}]},
        },
    },
    {
        "task": "Nora Lind has left. Lea Moreau gives all of Nora's open tickets to somebody active in the same team "
        "who has room for them.",
        "free": FREE,
        "expected": {
            "tickets": {"changed": {"204": {"assignee_id": 5, "version": 5}, "205": {"assignee_id": 5, "version": 2}}}
        },
    },
    {
        "task": "Marco Reyes wants the outage of Umber Labs to be urgent, but may not decide that himself. Ask for the "
        "approval in his name, let the lead of his team grant it, then let Marco set the priority.",
        "free": FREE,
        "expected": {
            "approvals": {
                "added": [
                    {"ticket_id": 207, "action": "urgent", "requested_by": 5, "status": "granted", "decided_by": 4}
                ]
            },
            "tickets": {"changed": {"207": {"priority": "urgent", "version": 8}}},
        },
    },
    {
        "task": "Tomas Vega's ticket about the VPN is with the wrong team. Oskar Bram moves it to the network team, "
        "and Lea Moreau assigns it to Marco Reyes and makes it due on 2026-03-20.",
        "free": FREE,
        "expected": {
            "tickets": {
                "changed": {
                    "209": {
                        "team": "network",
                        "assignee_id": 5,
                        "status": "open",
                        "due_on": "2026-03-20",
                        "version": 4,
                    }
                }
            }
        },
    },
    {
        "task": "Grant Tomas Vega's refund as the lead who may decide it, answer him publicly in the name of the "
        "ticket's assignee that the refund is on its way, and let the assignee set the ticket to solved.",
        "free": FREE,
        "expected": {
            "approvals": {"changed": {"1": {"status": "granted", "decided_by": 1}}},
            "comments": {"added": [{"ticket_id": 206, "author": "Jonas Falk", "internal": 0}]},
            "tickets": {"changed": {"206": {"status": "solved", "version": 6}}},
        },
    },
    {
        "task": "Rosa Tanaka cannot sign in since she changed her phone. Find the help article about it, answer her "
        "publicly in Oskar Bram's name with the article's reference number, and set the ticket to pending.",
        "free": FREE,
        "expected": {
            "comments": {"added": [{"ticket_id": 203, "author": "Oskar Bram", "internal": 0, "body": "has:K-117"}]},
            "tickets": {"changed": {"203": {"status": "pending", "version": 3}}},
        },
    },
    {
        "task": "Oskar Bram must tag Rosa Tanaka's request to delete an account with 'deletion' and ask for the "
        "approval of the deletion. The ticket is locked: let the lead of the team open it first.",
        "free": FREE,
        "expected": {
            "tickets": {"changed": {"213": {"locked_by": None, "version": 3}}},
            "tags": {"added": [{"ticket_id": 213, "tag": "deletion"}]},
            "approvals": {
                "added": [{"ticket_id": 213, "action": "deletion", "requested_by": 7, "status": "requested"}]
            },
        },
    },
    {
        "task": "Umber Labs' request for more seats should go to Jonas Falk if he can take one more ticket, otherwise "
        "stay where it is with priority high. Do it as Ines Duarte, and tell me the name of the assignee.",
        "free": FREE,
        "expected": {"tickets": {"changed": {"208": {"priority": "high", "version": 2}}}},
        "said": ["Kemal"],
    },
    {
        "task": "Close the solved ticket of Quarry Foods, as the lead who may, after taking the tag 'porto' off it and "
        "adding 'filter'.",
        "free": FREE,
        "expected": {
            "tickets": {"changed": {"212": {"status": "closed", "version": 7}}},
            "tags": {"removed": ["212/porto"], "added": [{"ticket_id": 212, "tag": "filter"}]},
        },
    },
    {
        "task": "Sable Press has no open ticket about an invoice copy yet. As Kemal Aydin, create one for the billing "
        "team with the subject 'Copy of the January invoice' and low priority, assign it to a member of the team with "
        "fewer than four tickets who is not a lead, and tell me the new ticket's number.",
        "free": FREE,
        "expected": {
            "tickets": {
                "added": [
                    {
                        "customer_id": 3,
                        "subject": "Copy of the January invoice",
                        "team": "billing",
                        "priority": "low",
                        "status": "open",
                        "assignee_id": 3,
                    }
                ]
            }
        },
        "said": [r"\b214\b"],
    },
]

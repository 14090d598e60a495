"""The bank's tasks: the text, and what must have changed when it is done (judge.py)."""

FREE = ["entries"]

TASKS = [
    {
        "task": "Bruno Castel pays his rent of 620 euros to Hausverwaltung Berg, with the note 'rent April'. Move "
        "exactly what his checking account lacks from his savings, and if the daily limit is in the way, raise it to "
        "exactly what this payment needs.",
        "free": FREE,
        "expected": {
            "customers": {"changed": {"2": {"daily_limit_cents": 62000, "sent_today_cents": 62000}}},
            "accounts": {"changed": {"21": {"balance_cents": 0}, "22": {"balance_cents": 58000}}},
            "payments": {"added": [{"account_id": 21, "payee_id": 2, "amount_cents": 62000, "note": "rent April"}]},
        },
    },
    {
        "task": "Clio Andrade pays 1250 euros to Atelier Nord from her checking account. The payee has to be verified "
        "first; the code is in her messages.",
        "free": FREE,
        "expected": {
            "payees": {"changed": {"3": {"verified": 1}}},
            "codes": {"added": [{"payee_id": 3, "used": 1}]},
            "messages": {"added": [{"customer_id": 3}]},
            "payments": {"added": [{"account_id": 31, "payee_id": 3, "amount_cents": 125000, "status": "sent"}]},
            "accounts": {"changed": {"31": {"balance_cents": 125000}}},
            "customers": {"changed": {"3": {"sent_today_cents": 125000}}},
        },
    },
    {
        "task": "Alma Reuter's standing order to Stadtwerke Jena goes up to 52 euros and is to be paid on the 10th of "
        "the month from now on.",
        "free": FREE,
        "expected": {"standing_orders": {"changed": {"1": {"amount_cents": 5200, "day": 10}}}},
    },
    {
        "task": "Alma Reuter has lost the card of her euro checking account. Have it replaced, and give the new card a "
        "limit of 800 euros.",
        "free": FREE,
        "expected": {
            "cards": {
                "changed": {"1": {"status": "replaced"}},
                "added": [{"account_id": 11, "status": "active", "limit_cents": 80000}],
            }
        },
    },
    {
        "task": "Dario Stein does not know the charges of Nimbus Stream on his account. Dispute each of them that can "
        "still be disputed, and freeze his card.",
        "free": FREE,
        "expected": {
            "disputes": {"added": [{"entry_id": 3, "status": "open"}, {"entry_id": 4, "status": "open"}]},
            "cards": {"changed": {"4": {"status": "frozen"}}},
        },
    },
    {
        "task": "Close Clio Andrade's empty savings account; what is in the way of that may be ended.",
        "free": FREE,
        "expected": {
            "accounts": {"changed": {"32": {"status": "closed"}}},
            "standing_orders": {"changed": {"4": {"status": "cancelled"}}},
        },
    },
    {
        "task": "Alma Reuter exchanges 300 US dollars into euros, onto her euro checking account, and then puts all "
        "that she got for them into her savings. Tell me how many euros that was.",
        "free": FREE,
        "expected": {"accounts": {"changed": {"13": {"balance_cents": 50000}, "12": {"balance_cents": 527600}}}},
        "said": [r"\b276\b|\b27[.,]?600\b"],
    },
    {
        "task": "Dario Stein owes Musikschule Takt 650 euros. Pay it with the note 'lessons March'. Do not change his "
        "daily limit: if it does not allow all of it today, pay as much as it allows, and tell me how many euros are "
        "left to pay.",
        "free": FREE,
        "expected": {
            "payments": {"added": [{"account_id": 41, "payee_id": 4, "amount_cents": 30000, "note": "lessons March"}]},
            "accounts": {"changed": {"41": {"balance_cents": 30000}}},
            "customers": {"changed": {"4": {"sent_today_cents": 50000}}},
        },
        "said": [r"\b350\b|\b35[.,]?000\b"],
    },
    {
        "task": "Elif Sommer pays 75 euros to Werkstatt Kranz on the 15th of every month from now on. Her letter gives "
        "two IBANs, DE65 2004 1133 0987 6543 12 and PT50 0002 0123 1234 5678 9015 4, of which only one is valid. Add "
        "the payee, verify it, and create the standing order on her checking account.",
        "free": FREE,
        "expected": {
            "payees": {
                "added": [
                    {"customer_id": 5, "name": "Werkstatt Kranz", "iban": "PT50000201231234567890154", "verified": 1}
                ]
            },
            "codes": {"added": [{"payee_id": "new:payees", "used": 1}]},
            "messages": {"added": [{"customer_id": 5}]},
            "standing_orders": {
                "added": [
                    {"account_id": 51, "payee_id": "new:payees", "amount_cents": 7500, "day": 15, "status": "active"}
                ]
            },
        },
    },
    {
        "task": "Find the customers with full identification whose euro checking account holds less than 100 euros, "
        "and move as much from their savings as brings it to exactly 100 euros. Tell me whom that concerned.",
        "free": FREE,
        "expected": {"accounts": {"changed": {"51": {"balance_cents": 10000}, "52": {"balance_cents": 395000}}}},
        "said": ["Elif"],
    },
]

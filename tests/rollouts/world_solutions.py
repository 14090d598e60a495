"""Reference solutions of our worlds' tasks: calls, and the final answer. `near`: the same with one thing wrong."""

from __future__ import annotations

SOLUTIONS = {
    "shop": [
        (
            [
                ("find_customers", {"name": "Ana Lopes"}),
                ("search_products", {"query": "desk lamp"}),
                ("list_addresses", {"customer_id": 1}),
                ("list_payment_methods", {"customer_id": 1}),
                ("create_order", {"customer_id": 1, "address_id": 1}),
                ("add_item", {"order_id": 110, "product_id": 1, "quantity": 2}),
                ("pay_order", {"order_id": 110, "method_id": 1}),
                ("place_order", {"order_id": 110}),
            ],
            "The order is placed.",
        ),
        (
            [
                ("list_orders", {"customer_id": 3, "status": "draft"}),
                ("apply_coupon", {"order_id": 103, "code": "SPRING10"}),
                ("list_coupons", {}),
                ("apply_coupon", {"order_id": 103, "code": "OFFICE15"}),
                ("pay_order", {"order_id": 103, "method_id": 6}),
                ("pay_order", {"order_id": 103, "method_id": 5}),
                ("place_order", {"order_id": 103}),
            ],
            "Placed with OFFICE15.",
        ),
        (
            [
                ("create_order", {"customer_id": 2, "address_id": 3}),
                ("add_item", {"order_id": 110, "product_id": 2, "quantity": 1}),
                ("pay_order", {"order_id": 110, "method_id": 3}),
                ("pay_order", {"order_id": 110, "method_id": 4}),
                ("place_order", {"order_id": 110}),
            ],
            "Done.",
        ),
        (
            [
                ("find_customers", {"name": "Deniz"}),
                ("pay_order", {"order_id": 109, "method_id": 7}),
                ("list_payments", {"order_id": 109}),
                ("place_order", {"order_id": 109}),
            ],
            "Paid once and placed.",
        ),
        (
            [
                ("search_products", {"query": "watering"}),
                *[("list_orders", {"customer_id": n}) for n in range(1, 7)],
                ("cancel_order", {"order_id": 106}),
                ("cancel_order", {"order_id": 101}),
                ("cancel_order", {"order_id": 105}),
                ("deactivate_product", {"product_id": 11}),
            ],
            "Two orders are cancelled; one was on its way already.",
        ),
        (
            [
                ("get_order", {"order_id": 104}),
                ("ship_order", {"order_id": 104, "warehouse": "lisbon"}),
                ("get_product", {"product_id": 8}),
                ("transfer_stock", {"product_id": 8, "source": "porto", "target": "lisbon", "quantity": 2}),
                ("ship_order", {"order_id": 104, "warehouse": "lisbon"}),
            ],
            "Shipped.",
        ),
        (
            [
                ("get_order", {"order_id": 102}),
                ("request_return", {"order_id": 102, "item_id": 2, "quantity": 2, "reason": "chipped"}),
                ("approve_return", {"return_id": 1, "warehouse": "porto"}),
            ],
            "Returned.",
        ),
        (
            [
                ("search_products", {"category": "kitchen", "max_price_cents": 999}),
                ("set_price", {"product_id": 4, "price_cents": 950}),
                ("set_price", {"product_id": 6, "price_cents": 700}),
                ("set_price", {"product_id": 7, "price_cents": 830}),
                ("set_price", {"product_id": 13, "price_cents": 500}),
            ],
            "Three prices are raised.",
        ),
        (
            [
                ("list_orders", {"customer_id": 1}),
                (
                    "add_address",
                    {
                        "customer_id": 1,
                        "label": "new home",
                        "street": "Travessa Nova 5",
                        "city": "Coimbra",
                        "country": "PT",
                    },
                ),
                ("change_address", {"order_id": 108, "address_id": 8}),
            ],
            "It goes to Coimbra.",
        ),
        (
            [
                ("get_order", {"order_id": 109}),
                ("change_quantity", {"order_id": 109, "item_id": 12, "quantity": 0}),
                ("apply_coupon", {"order_id": 109, "code": "VIP25"}),
                ("apply_coupon", {"order_id": 109, "code": "MARCH5"}),
            ],
            "The new total is 4,845 cents.",
        ),
    ],
    "desk": [
        (
            [
                ("search_tickets", {"customer_id": 1}),
                ("merge_ticket", {"ticket_id": 202, "agent_id": 2, "into": 201}),
                ("add_comment", {"ticket_id": 201, "agent_id": 2, "body": "Your two tickets are one now."}),
            ],
            "Merged.",
        ),
        (
            [
                ("list_agents", {"team": "network"}),
                ("search_tickets", {"assignee_id": 6}),
                ("assign_ticket", {"ticket_id": 204, "agent_id": 4, "version": 4, "assignee_id": 5}),
                ("assign_ticket", {"ticket_id": 205, "agent_id": 4, "version": 1, "assignee_id": 5}),
            ],
            "Marco has them.",
        ),
        (
            [
                ("get_ticket", {"ticket_id": 207}),
                ("set_priority", {"ticket_id": 207, "agent_id": 5, "version": 7, "priority": "urgent"}),
                ("request_approval", {"ticket_id": 207, "agent_id": 5, "action": "urgent"}),
                ("decide_approval", {"approval_id": 2, "agent_id": 4, "grant": True}),
                ("set_priority", {"ticket_id": 207, "agent_id": 5, "version": 7, "priority": "urgent"}),
            ],
            "Urgent.",
        ),
        (
            [
                ("move_ticket", {"ticket_id": 209, "agent_id": 7, "version": 1, "team": "network"}),
                ("assign_ticket", {"ticket_id": 209, "agent_id": 4, "version": 1, "assignee_id": 5}),
                ("get_ticket", {"ticket_id": 209}),
                ("assign_ticket", {"ticket_id": 209, "agent_id": 4, "version": 2, "assignee_id": 5}),
                ("set_due_date", {"ticket_id": 209, "agent_id": 4, "version": 3, "due_on": "2026-03-20"}),
            ],
            "Moved.",
        ),
        (
            [
                ("list_approvals", {"status": "requested"}),
                ("decide_approval", {"approval_id": 1, "agent_id": 2, "grant": True}),
                ("decide_approval", {"approval_id": 1, "agent_id": 1, "grant": True}),
                ("add_comment", {"ticket_id": 206, "agent_id": 2, "body": "Your refund is on its way."}),
                ("set_status", {"ticket_id": 206, "agent_id": 2, "version": 5, "status": "solved"}),
            ],
            "Solved.",
        ),
        (
            [
                ("search_articles", {"query": "phone"}),
                ("get_article", {"article_id": 1}),
                ("add_comment", {"ticket_id": 203, "agent_id": 7, "body": "Please see article K-117."}),
                ("set_status", {"ticket_id": 203, "agent_id": 7, "version": 2, "status": "pending"}),
            ],
            "Answered.",
        ),
        (
            [
                ("add_tag", {"ticket_id": 213, "agent_id": 7, "tag": "deletion"}),
                ("unlock_ticket", {"ticket_id": 213, "agent_id": 8}),
                ("add_tag", {"ticket_id": 213, "agent_id": 7, "tag": "deletion"}),
                ("request_approval", {"ticket_id": 213, "agent_id": 7, "action": "deletion"}),
            ],
            "Asked for.",
        ),
        (
            [
                ("list_agents", {"team": "billing"}),
                ("assign_ticket", {"ticket_id": 208, "agent_id": 1, "version": 1, "assignee_id": 2}),
                ("set_priority", {"ticket_id": 208, "agent_id": 1, "version": 1, "priority": "high"}),
            ],
            "It stays with Kemal Aydin.",
        ),
        (
            [
                ("get_ticket", {"ticket_id": 212}),
                ("remove_tag", {"ticket_id": 212, "agent_id": 4, "tag": "porto"}),
                ("add_tag", {"ticket_id": 212, "agent_id": 4, "tag": "filter"}),
                ("set_status", {"ticket_id": 212, "agent_id": 4, "version": 6, "status": "closed"}),
            ],
            "Closed.",
        ),
        (
            [
                (
                    "create_ticket",
                    {
                        "customer_id": 3,
                        "agent_id": 3,
                        "subject": "Copy of the January invoice",
                        "team": "billing",
                        "priority": "low",
                    },
                ),
                ("assign_ticket", {"ticket_id": 214, "agent_id": 3, "version": 1, "assignee_id": 2}),
                ("assign_ticket", {"ticket_id": 214, "agent_id": 3, "version": 1, "assignee_id": 3}),
            ],
            "It is ticket 214.",
        ),
    ],
    "bank": [
        (
            [
                ("list_accounts", {"customer_id": 2}),
                ("move_money", {"source": 22, "target": 21, "amount_cents": 32000}),
                (
                    "send_payment",
                    {"account_id": 21, "payee_id": 2, "amount_cents": 62000, "note": "rent April"},
                ),
                ("change_daily_limit", {"customer_id": 2, "limit_cents": 62000}),
                (
                    "send_payment",
                    {"account_id": 21, "payee_id": 2, "amount_cents": 62000, "note": "rent April"},
                ),
            ],
            "Paid.",
        ),
        (
            [
                ("send_payment", {"account_id": 31, "payee_id": 3, "amount_cents": 125000}),
                ("start_verification", {"payee_id": 3}),
                ("list_messages", {"customer_id": 3}),
                # 100000 + (3 * 7919 + 31337) % 900000, as the message says
                ("verify_payee", {"payee_id": 3, "code": "155094"}),
                ("send_payment", {"account_id": 31, "payee_id": 3, "amount_cents": 125000}),
            ],
            "Paid.",
        ),
        (
            [
                ("list_accounts", {"customer_id": 1}),
                ("list_standing_orders", {"account_id": 11}),
                ("change_standing_order", {"order_id": 1, "amount_cents": 5200, "day": 10}),
            ],
            "Changed.",
        ),
        (
            [
                ("list_cards", {"account_id": 11}),
                ("replace_card", {"card_id": 1}),
                ("freeze_card", {"card_id": 1}),
                ("replace_card", {"card_id": 1}),
                ("set_card_limit", {"card_id": 7, "limit_cents": 80000}),
            ],
            "Replaced.",
        ),
        (
            [
                ("list_entries", {"account_id": 41, "counterparty": "Nimbus"}),
                ("open_dispute", {"entry_id": 2, "reason": "unknown to me"}),
                ("open_dispute", {"entry_id": 3, "reason": "unknown to me"}),
                ("open_dispute", {"entry_id": 4, "reason": "unknown to me"}),
                ("freeze_card", {"card_id": 4}),
            ],
            "Two are disputed.",
        ),
        (
            [
                ("close_account", {"account_id": 32}),
                ("cancel_standing_order", {"order_id": 4}),
                ("close_account", {"account_id": 32}),
            ],
            "Closed.",
        ),
        (
            [
                ("move_money", {"source": 13, "target": 11, "amount_cents": 30000}),
                ("exchange_money", {"source": 13, "target": 11, "amount_cents": 30000}),
                ("move_money", {"source": 11, "target": 12, "amount_cents": 27600}),
            ],
            "She got 276.00 euros.",
        ),
        (
            [
                ("get_customer", {"customer_id": 4}),
                (
                    "send_payment",
                    {"account_id": 41, "payee_id": 4, "amount_cents": 65000, "note": "lessons March"},
                ),
                (
                    "send_payment",
                    {"account_id": 41, "payee_id": 4, "amount_cents": 30000, "note": "lessons March"},
                ),
            ],
            "350 euros are left to pay.",
        ),
        (
            [
                (
                    "add_payee",
                    {"customer_id": 5, "name": "Werkstatt Kranz", "iban": "DE65 2004 1133 0987 6543 12"},
                ),
                (
                    "add_payee",
                    {"customer_id": 5, "name": "Werkstatt Kranz", "iban": "PT50 0002 0123 1234 5678 9015 4"},
                ),
                ("start_verification", {"payee_id": 7}),
                ("list_messages", {"customer_id": 5}),
                # 100000 + (7 * 7919 + 31337) % 900000
                ("verify_payee", {"payee_id": 7, "code": "186770"}),
                (
                    "create_standing_order",
                    {"account_id": 51, "payee_id": 7, "amount_cents": 7500, "day": 15},
                ),
            ],
            "It is set up.",
        ),
        (
            [
                ("find_customers", {"level": "full"}),
                ("list_accounts", {"customer_id": 5}),
                ("move_money", {"source": 52, "target": 51, "amount_cents": 5000}),
            ],
            "Only Elif Sommer.",
        ),
    ],
}

NEAR = {
    "shop": [
        ([("create_order", {"customer_id": 1, "address_id": 2}), *SOLUTIONS["shop"][0][0][5:]], "Placed."),
        (
            [
                ("apply_coupon", {"order_id": 103, "code": "MARCH5"}),
                ("pay_order", {"order_id": 103, "method_id": 5}),
                ("place_order", {"order_id": 103}),
            ],
            "Placed.",
        ),
        ([(n, a) for n, a in SOLUTIONS["shop"][2][0] if n != "place_order"], "Done."),
        ([*[("pay_order", {"order_id": 109, "method_id": 7})] * 2, ("place_order", {"order_id": 109})], "Paid."),
        (SOLUTIONS["shop"][4][0][:-2], "Cancelled."),
        (
            [
                ("transfer_stock", {"product_id": 8, "source": "porto", "target": "lisbon", "quantity": 3}),
                ("ship_order", {"order_id": 104, "warehouse": "lisbon"}),
            ],
            "Shipped.",
        ),
        (SOLUTIONS["shop"][6][0][:-1] + [("approve_return", {"return_id": 1, "warehouse": "lisbon"})], "Returned."),
        (
            [*SOLUTIONS["shop"][7][0], ("set_price", {"product_id": 5, "price_cents": 3250})],
            "Four prices.",
        ),
        (SOLUTIONS["shop"][8][0][:-1], "Saved."),
        (SOLUTIONS["shop"][9][0], "The new total is 5100 cents."),
    ],
    "desk": [
        ([("merge_ticket", {"ticket_id": 201, "agent_id": 2, "into": 202}), SOLUTIONS["desk"][0][0][2]], "Merged."),
        (SOLUTIONS["desk"][1][0][:-1], "Done."),
        (
            [("set_priority", {"ticket_id": 207, "agent_id": 4, "version": 7, "priority": "urgent"})],
            "Locked, so nothing.",
        ),
        (SOLUTIONS["desk"][3][0][:-1], "Moved."),
        ([SOLUTIONS["desk"][4][0][2], SOLUTIONS["desk"][4][0][4]], "Solved."),
        (
            [
                ("add_comment", {"ticket_id": 203, "agent_id": 7, "body": "Please see article K-219."}),
                SOLUTIONS["desk"][5][0][3],
            ],
            "Answered.",
        ),
        (SOLUTIONS["desk"][6][0][:-1], "Tagged."),
        (SOLUTIONS["desk"][7][0], "It goes to Jonas Falk."),
        (SOLUTIONS["desk"][8][0][2:], "Closed."),
        (SOLUTIONS["desk"][9][0], "It is done."),
    ],
    "bank": [
        (
            [
                ("move_money", {"source": 22, "target": 21, "amount_cents": 40000}),
                ("change_daily_limit", {"customer_id": 2, "limit_cents": 62000}),
                SOLUTIONS["bank"][0][0][4],
            ],
            "Paid.",
        ),
        (SOLUTIONS["bank"][1][0][:-1], "Verified."),
        ([("change_standing_order", {"order_id": 2, "amount_cents": 5200, "day": 10})], "Changed."),
        (SOLUTIONS["bank"][3][0][:-1], "Replaced."),
        (SOLUTIONS["bank"][4][0][:-1], "Disputed."),
        ([("close_account", {"account_id": 32}), ("cancel_standing_order", {"order_id": 4})], "Closed."),
        (SOLUTIONS["bank"][6][0][:-1], "276 euros."),
        (SOLUTIONS["bank"][7][0], "All is paid."),
        (SOLUTIONS["bank"][8][0][:-1], "Set up."),
        ([("move_money", {"source": 52, "target": 51, "amount_cents": 10000})], "Elif Sommer."),
    ],
}

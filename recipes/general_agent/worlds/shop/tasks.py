"""The shop's tasks: the text, and what must have changed when it is done (judge.py)."""

TASKS = [
    {
        "task": "Ana Lopes wants two Brass Desk Lamps sent to her home address and pays with her Visa card. Create the "
        "order, pay it and place it.",
        "expected": {
            "orders": {
                "added": [
                    {"customer_id": 1, "address_id": 1, "status": "placed", "coupon_code": None, "total_cents": 9800}
                ]
            },
            "order_items": {"added": [{"order_id": "new:orders", "product_id": 1, "quantity": 2, "price_cents": 4900}]},
            "payments": {
                "added": [{"order_id": "new:orders", "method_id": 1, "amount_cents": 9800, "status": "captured"}]
            },
        },
    },
    {
        "task": "Carla Winter wants to buy what is in her draft order. Use the coupon SPRING10 if it can still be "
        "used, otherwise the coupon that takes most off. Pay with a card of hers that works, then place the order.",
        "expected": {
            "orders": {"changed": {"103": {"status": "placed", "coupon_code": "OFFICE15", "total_cents": 6545}}},
            "coupons": {"changed": {"OFFICE15": {"uses_left": 9}}},
            "payments": {"added": [{"order_id": 103, "method_id": 5, "amount_cents": 6545, "status": "captured"}]},
        },
    },
    {
        "task": "Ben Okafor orders one Paper Floor Lamp to his home. Charge his Mastercard; only if it is declined, "
        "charge his Visa instead. Place the order.",
        "expected": {
            "orders": {
                "added": [
                    {"customer_id": 2, "address_id": 3, "status": "placed", "coupon_code": None, "total_cents": 7900}
                ]
            },
            "order_items": {"added": [{"order_id": "new:orders", "product_id": 2, "quantity": 1, "price_cents": 7900}]},
            "payments": {
                "added": [{"order_id": "new:orders", "method_id": 4, "amount_cents": 7900, "status": "captured"}]
            },
        },
    },
    {
        "task": "Pay Deniz Kaya's draft order from the PayPouch wallet and place it. It must be charged exactly once.",
        "expected": {
            "orders": {"changed": {"109": {"status": "placed"}}},
            "payments": {"added": [{"order_id": 109, "method_id": 7, "amount_cents": 13000, "status": "captured"}]},
        },
    },
    {
        "task": "The Copper Watering Can has been recalled. Cancel every order that contains one and has not been "
        "shipped yet, and take the product out of the shop.",
        "expected": {
            "orders": {"changed": {"101": {"status": "cancelled"}, "105": {"status": "cancelled"}}},
            "payments": {"changed": {"1": {"status": "refunded"}, "4": {"status": "refunded"}}},
            "products": {"changed": {"11": {"active": 0}}},
        },
    },
    {
        "task": "Ship Farid Haddad's order of notebooks from the Lisbon warehouse. Move no more from Porto than what "
        "Lisbon lacks for it.",
        "expected": {
            "orders": {"changed": {"104": {"status": "shipped"}}},
            "shipments": {"added": [{"order_id": 104, "warehouse": "lisbon", "status": "on_the_way"}]},
            "stock": {"changed": {"8/lisbon": {"quantity": 0}, "8/porto": {"quantity": 7}}},
        },
    },
    {
        "task": "Carla Winter sends two of the three mugs from her delivered order back because they are chipped. "
        "Register the return and take the mugs into the Porto warehouse.",
        "expected": {
            "returns": {
                "added": [{"order_id": 102, "item_id": 2, "quantity": 2, "status": "approved", "refund_cents": 1800}]
            },
            "stock": {"changed": {"4/porto": {"quantity": 14}}},
            "customers": {"changed": {"3": {"credit_cents": 1800}}},
        },
    },
    {
        "task": "Raise the price of every active kitchen product that costs less than 10 euros by 50 cents. Change no "
        "other price.",
        "expected": {
            "products": {"changed": {"4": {"price_cents": 950}, "6": {"price_cents": 700}, "13": {"price_cents": 500}}}
        },
    },
    {
        "task": "Ana Lopes moves house. Save her new address under the label 'new home' (Travessa Nova 5, Coimbra, "
        "Portugal) and send her order that is placed but not shipped there.",
        "expected": {
            "addresses": {
                "added": [
                    {
                        "customer_id": 1,
                        "label": "new home",
                        "street": "Travessa Nova 5",
                        "city": "Coimbra",
                        "country": "PT",
                    }
                ]
            },
            "orders": {"changed": {"108": {"address_id": "new:addresses"}}},
        },
    },
    {
        "task": "Remove the most expensive item from Deniz Kaya's draft order, then put the coupon on it that "
        "takes most off what is left. Do not pay it. Tell me the new total in cents.",
        "expected": {
            "order_items": {"removed": ["12"]},
            "orders": {"changed": {"109": {"coupon_code": "MARCH5", "total_cents": 4845}}},
        },
        "said": [r"\b4[.,]?845\b|\b48[.,]45\b"],
    },
]

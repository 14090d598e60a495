"""A shop: customers, carts, coupons, payments, warehouses, returns. FastAPI and SQLAlchemy's ORM."""

import os

from fastapi import Depends, FastAPI, HTTPException, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Column, ForeignKey, Integer, String, create_engine, func, text
from sqlalchemy.orm import Session, declarative_base, relationship, sessionmaker

TODAY = "2026-03-16"
RETURN_DAYS = 30

engine = create_engine(os.environ.get("DATABASE_PATH", "sqlite:///shop.db"), connect_args={"check_same_thread": False})
SessionLocal = sessionmaker(bind=engine, autoflush=True)
Base = declarative_base()


class Customer(Base):
    __tablename__ = "customers"
    id = Column(Integer, primary_key=True)
    name = Column(String)
    email = Column(String)
    tier = Column(String)
    credit_cents = Column(Integer)


class Address(Base):
    __tablename__ = "addresses"
    id = Column(Integer, primary_key=True)
    customer_id = Column(Integer, ForeignKey("customers.id"))
    label = Column(String)
    street = Column(String)
    city = Column(String)
    country = Column(String)


class Product(Base):
    __tablename__ = "products"
    id = Column(Integer, primary_key=True)
    sku = Column(String)
    name = Column(String)
    category = Column(String)
    price_cents = Column(Integer)
    active = Column(Integer)
    stock = relationship("Stock")


class Stock(Base):
    __tablename__ = "stock"
    product_id = Column(Integer, ForeignKey("products.id"), primary_key=True)
    warehouse = Column(String, primary_key=True)
    quantity = Column(Integer)


class Coupon(Base):
    __tablename__ = "coupons"
    code = Column(String, primary_key=True)
    percent = Column(Integer)
    min_total_cents = Column(Integer)
    category = Column(String)
    valid_until = Column(String)
    uses_left = Column(Integer)


class PaymentMethod(Base):
    __tablename__ = "payment_methods"
    id = Column(Integer, primary_key=True)
    customer_id = Column(Integer, ForeignKey("customers.id"))
    kind = Column(String)
    label = Column(String)
    limit_cents = Column(Integer)
    status = Column(String)


class Order(Base):
    __tablename__ = "orders"
    id = Column(Integer, primary_key=True)
    customer_id = Column(Integer, ForeignKey("customers.id"))
    address_id = Column(Integer, ForeignKey("addresses.id"))
    status = Column(String)
    coupon_code = Column(String)
    total_cents = Column(Integer, default=0)
    delivered_on = Column(String)
    items = relationship("Item")
    payments = relationship("Payment")
    shipments = relationship("Shipment")


class Item(Base):
    __tablename__ = "order_items"
    id = Column(Integer, primary_key=True)
    order_id = Column(Integer, ForeignKey("orders.id"))
    product_id = Column(Integer, ForeignKey("products.id"))
    quantity = Column(Integer)
    price_cents = Column(Integer)


class Payment(Base):
    __tablename__ = "payments"
    id = Column(Integer, primary_key=True)
    order_id = Column(Integer, ForeignKey("orders.id"))
    method_id = Column(Integer, ForeignKey("payment_methods.id"))
    amount_cents = Column(Integer)
    status = Column(String)


class Shipment(Base):
    __tablename__ = "shipments"
    id = Column(Integer, primary_key=True)
    order_id = Column(Integer, ForeignKey("orders.id"))
    warehouse = Column(String)
    status = Column(String)


class Return(Base):
    __tablename__ = "returns"
    id = Column(Integer, primary_key=True)
    order_id = Column(Integer, ForeignKey("orders.id"))
    item_id = Column(Integer, ForeignKey("order_items.id"))
    quantity = Column(Integer)
    reason = Column(String)
    status = Column(String)
    refund_cents = Column(Integer)


class Shown(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class CustomerOut(Shown):
    id: int
    name: str
    email: str
    tier: str
    credit_cents: int


class AddressOut(Shown):
    id: int
    customer_id: int
    label: str
    street: str
    city: str
    country: str


class StockOut(Shown):
    warehouse: str
    quantity: int


class ProductOut(Shown):
    id: int
    sku: str
    name: str
    category: str
    price_cents: int
    active: bool


class ProductWithStock(ProductOut):
    stock: list[StockOut]


class CouponOut(Shown):
    code: str
    percent: int
    min_total_cents: int
    category: str | None
    valid_until: str
    uses_left: int


class MethodOut(Shown):
    id: int
    kind: str
    label: str
    status: str


class ItemOut(Shown):
    id: int
    product_id: int
    quantity: int
    price_cents: int


class PaymentOut(Shown):
    id: int
    order_id: int
    method_id: int
    amount_cents: int
    status: str


class ShipmentOut(Shown):
    id: int
    warehouse: str
    status: str


class OrderOut(Shown):
    id: int
    customer_id: int
    address_id: int
    status: str
    coupon_code: str | None
    total_cents: int
    delivered_on: str | None


class OrderDetails(OrderOut):
    items: list[ItemOut]
    payments: list[PaymentOut]
    shipments: list[ShipmentOut]


class ReturnOut(Shown):
    id: int
    order_id: int
    item_id: int
    quantity: int
    reason: str
    status: str
    refund_cents: int


class NewAddress(BaseModel):
    label: str = Field(..., min_length=1, description="What the customer calls it, for example home")
    street: str = Field(..., min_length=1)
    city: str = Field(..., min_length=1)
    country: str = Field(..., pattern="^[A-Z]{2}$", description="Two capital letters")


class NewOrder(BaseModel):
    customer_id: int
    address_id: int = Field(..., description="One of the customer's addresses")


class NewItem(BaseModel):
    product_id: int
    quantity: int = Field(..., ge=1, le=100)


class Quantity(BaseModel):
    quantity: int = Field(..., ge=0, le=100, description="0 removes the item")


class CouponCode(BaseModel):
    code: str


class NewPayment(BaseModel):
    method_id: int = Field(..., description="One of the customer's payment methods")


class AddressChoice(BaseModel):
    address_id: int


class ShipFrom(BaseModel):
    warehouse: str = Field(..., description="lisbon or porto")


class Transfer(BaseModel):
    product_id: int
    source: str = Field(..., description="Warehouse that gives")
    target: str = Field(..., description="Warehouse that gets")
    quantity: int = Field(..., ge=1)


class NewReturn(BaseModel):
    item_id: int = Field(..., description="Item of the order")
    quantity: int = Field(..., ge=1)
    reason: str = Field(..., min_length=3)


class Price(BaseModel):
    price_cents: int = Field(..., ge=1, le=1000000)


app = FastAPI(title="Shop", description=f"Today is {TODAY}. Amounts are in cents.")


def get_db():
    db = SessionLocal()
    try:
        yield db
    finally:
        db.close()


def found(db: Session, kind, key):
    row = db.get(kind, key)
    if row is None:
        raise HTTPException(404, f"there is no {kind.__name__.lower()} {key}")
    return row


def draft(db: Session, order_id: int) -> Order:
    order = found(db, Order, order_id)
    if order.status != "draft":
        raise HTTPException(409, f"order {order_id} is {order.status}; only drafts can be changed")
    if any(p.status == "captured" for p in order.payments):
        raise HTTPException(409, f"order {order_id} has been paid already; it can be placed or cancelled")
    return order


def recount(db: Session, order: Order) -> None:
    """The total with the coupon's discount, on what the coupon covers."""
    db.flush()
    items = db.query(Item).filter(Item.order_id == order.id).all()
    total = sum(i.quantity * i.price_cents for i in items)
    if order.coupon_code:
        coupon = db.get(Coupon, order.coupon_code)
        covered = 0
        for i in items:
            if coupon.category is None or db.get(Product, i.product_id).category == coupon.category:
                covered += i.quantity * i.price_cents
        total -= covered * coupon.percent // 100
    order.total_cents = total


@app.get("/products", operation_id="search_products", response_model=list[ProductOut])
def search_products(
    query: str | None = Query(None, description="Part of the name"),
    category: str | None = Query(None),
    max_price_cents: int | None = Query(None, ge=0),
    include_inactive: bool = Query(False),
    db: Session = Depends(get_db),
):
    """Finds products; without filters, all of them."""
    rows = db.query(Product)
    if query:
        rows = rows.filter(Product.name.ilike(f"%{query}%"))
    if category:
        rows = rows.filter(Product.category == category)
    if max_price_cents is not None:
        rows = rows.filter(Product.price_cents <= max_price_cents)
    if not include_inactive:
        rows = rows.filter(Product.active == 1)
    return rows.order_by(Product.id).all()


@app.get("/categories", operation_id="list_categories", response_model=list[str])
def list_categories(db: Session = Depends(get_db)):
    """The categories that have products."""
    return [row[0] for row in db.query(Product.category).distinct().order_by(Product.category)]


@app.get("/products/{product_id}", operation_id="get_product", response_model=ProductWithStock)
def get_product(product_id: int = Path(...), db: Session = Depends(get_db)):
    """One product with its stock in every warehouse."""
    return found(db, Product, product_id)


@app.put("/products/{product_id}/price", operation_id="set_price", response_model=ProductOut)
def set_price(product_id: int, new: Price, db: Session = Depends(get_db)):
    """Changes the price for orders to come; inactive products keep theirs."""
    product = found(db, Product, product_id)
    if not product.active:
        raise HTTPException(409, f"product {product_id} is inactive")
    product.price_cents = new.price_cents
    db.commit()
    return product


@app.post("/products/{product_id}/deactivate", operation_id="deactivate_product", response_model=ProductOut)
def deactivate_product(product_id: int, db: Session = Depends(get_db)):
    """Takes a product out of the shop."""
    product = found(db, Product, product_id)
    product.active = 0
    db.commit()
    return product


@app.post("/stock/transfers", operation_id="transfer_stock", response_model=ProductWithStock)
def transfer_stock(new: Transfer, db: Session = Depends(get_db)):
    """Moves stock of a product from one warehouse to another."""
    product = found(db, Product, new.product_id)
    if new.source == new.target or new.target not in ("lisbon", "porto"):
        raise HTTPException(422, "source and target are two of the warehouses lisbon and porto")
    source = db.get(Stock, (product.id, new.source))
    if source is None or source.quantity < new.quantity:
        raise HTTPException(409, f"{new.source} has {source.quantity if source else 0} of product {product.id}")
    target = db.get(Stock, (product.id, new.target))
    if target is None:
        target = Stock(product_id=product.id, warehouse=new.target, quantity=0)
        db.add(target)
    source.quantity -= new.quantity
    target.quantity += new.quantity
    db.commit()
    db.refresh(product)
    return product


@app.get("/customers", operation_id="find_customers", response_model=list[CustomerOut])
def find_customers(
    name: str | None = Query(None, description="Part of the name"),
    email: str | None = Query(None),
    db: Session = Depends(get_db),
):
    """Finds customers by name or email."""
    rows = db.query(Customer)
    if name:
        rows = rows.filter(Customer.name.ilike(f"%{name}%"))
    if email:
        rows = rows.filter(func.lower(Customer.email) == email.lower())
    return rows.order_by(Customer.id).all()


@app.get("/customers/{customer_id}", operation_id="get_customer", response_model=CustomerOut)
def get_customer(customer_id: int, db: Session = Depends(get_db)):
    """One customer, with the store credit."""
    return found(db, Customer, customer_id)


@app.get("/customers/{customer_id}/addresses", operation_id="list_addresses", response_model=list[AddressOut])
def list_addresses(customer_id: int, db: Session = Depends(get_db)):
    """Addresses of a customer."""
    found(db, Customer, customer_id)
    return db.query(Address).filter(Address.customer_id == customer_id).all()


@app.post("/customers/{customer_id}/addresses", operation_id="add_address", response_model=AddressOut, status_code=201)
def add_address(customer_id: int, new: NewAddress, db: Session = Depends(get_db)):
    """A further address of a customer."""
    found(db, Customer, customer_id)
    address = Address(customer_id=customer_id, **new.model_dump())
    db.add(address)
    db.commit()
    return address


@app.get(
    "/customers/{customer_id}/payment_methods", operation_id="list_payment_methods", response_model=list[MethodOut]
)
def list_payment_methods(customer_id: int, db: Session = Depends(get_db)):
    """Cards and wallets of a customer."""
    found(db, Customer, customer_id)
    return db.query(PaymentMethod).filter(PaymentMethod.customer_id == customer_id).all()


@app.get("/customers/{customer_id}/orders", operation_id="list_orders", response_model=list[OrderOut])
def list_orders(customer_id: int, status: str | None = Query(None), db: Session = Depends(get_db)):
    """Orders of a customer; status is draft, placed, shipped, delivered or cancelled."""
    found(db, Customer, customer_id)
    rows = db.query(Order).filter(Order.customer_id == customer_id)
    if status:
        rows = rows.filter(Order.status == status)
    return rows.order_by(Order.id).all()


@app.get("/orders/{order_id}", operation_id="get_order", response_model=OrderDetails)
def get_order(order_id: int, db: Session = Depends(get_db)):
    """One order with its items, payments and shipment."""
    return found(db, Order, order_id)


@app.post("/orders", operation_id="create_order", response_model=OrderOut, status_code=201)
def create_order(new: NewOrder, db: Session = Depends(get_db)):
    """An empty draft. Add items, pay, then place it."""
    found(db, Customer, new.customer_id)
    if found(db, Address, new.address_id).customer_id != new.customer_id:
        raise HTTPException(403, f"address {new.address_id} belongs to another customer")
    order = Order(customer_id=new.customer_id, address_id=new.address_id, status="draft", total_cents=0)
    db.add(order)
    db.commit()
    return order


@app.post("/orders/{order_id}/items", operation_id="add_item", response_model=OrderDetails, status_code=201)
def add_item(order_id: int, new: NewItem, db: Session = Depends(get_db)):
    """Puts a product into a draft, at today's price."""
    order, product = draft(db, order_id), found(db, Product, new.product_id)
    if not product.active:
        raise HTTPException(409, f"product {product.id} is no longer sold")
    in_stock = sum(s.quantity for s in product.stock)
    if in_stock < new.quantity:
        raise HTTPException(409, f"only {in_stock} of product {product.id} are in stock")
    db.add(Item(order_id=order.id, product_id=product.id, quantity=new.quantity, price_cents=product.price_cents))
    recount(db, order)
    db.commit()
    db.refresh(order)
    return order


@app.patch("/orders/{order_id}/items/{item_id}", operation_id="change_quantity", response_model=OrderDetails)
def change_quantity(order_id: int, item_id: int, new: Quantity, db: Session = Depends(get_db)):
    """Changes how many of an item a draft has."""
    order, item = draft(db, order_id), found(db, Item, item_id)
    if item.order_id != order.id:
        raise HTTPException(404, f"order {order_id} has no item {item_id}")
    if new.quantity == 0:
        db.delete(item)
    else:
        item.quantity = new.quantity
    recount(db, order)
    db.commit()
    db.refresh(order)
    return order


@app.get("/coupons", operation_id="list_coupons", response_model=list[CouponOut])
def list_coupons(db: Session = Depends(get_db)):
    """All coupons, expired ones too."""
    return db.query(Coupon).order_by(Coupon.code).all()


@app.post("/orders/{order_id}/coupon", operation_id="apply_coupon", response_model=OrderOut)
def apply_coupon(order_id: int, new: CouponCode, db: Session = Depends(get_db)):
    """Applies a coupon to a draft, instead of another one."""
    order, coupon = draft(db, order_id), found(db, Coupon, new.code)
    if coupon.valid_until < TODAY:
        raise HTTPException(409, f"{coupon.code} expired on {coupon.valid_until}")
    if coupon.uses_left < 1:
        raise HTTPException(409, f"{coupon.code} has been used up")
    order.coupon_code = None
    recount(db, order)
    covered = sum(
        i.quantity * i.price_cents
        for i in order.items
        if coupon.category is None or db.get(Product, i.product_id).category == coupon.category
    )
    if covered < max(coupon.min_total_cents, 1):
        what = f"{coupon.category} items" if coupon.category else "items"
        raise HTTPException(409, f"{coupon.code} needs {what} for {coupon.min_total_cents} cents; there are {covered}")
    order.coupon_code = coupon.code
    recount(db, order)
    db.commit()
    return order


@app.post("/orders/{order_id}/payments", operation_id="pay_order", response_model=PaymentOut, status_code=201)
def pay_order(order_id: int, new: NewPayment, db: Session = Depends(get_db)):
    """Pays the whole draft. Paying twice is possible: look at the payments when you are not sure."""
    order, method = found(db, Order, order_id), found(db, PaymentMethod, new.method_id)
    if order.status != "draft":
        raise HTTPException(409, f"order {order_id} is {order.status}")
    if method.customer_id != order.customer_id:
        raise HTTPException(403, f"payment method {method.id} belongs to another customer")
    if not order.total_cents:
        raise HTTPException(409, f"order {order_id} is empty")
    if method.status != "active":
        raise HTTPException(402, f"declined: {method.label} is {method.status}")
    if order.total_cents > method.limit_cents:
        raise HTTPException(402, f"declined: {order.total_cents} cents are more than {method.label} allows")
    payment = Payment(order_id=order.id, method_id=method.id, amount_cents=order.total_cents, status="captured")
    before = db.query(Payment).filter(Payment.method_id == method.id).count()
    db.add(payment)
    db.commit()
    if method.kind == "wallet" and before == 0:  # the wallet's first answer is always late
        raise HTTPException(504, "the wallet did not answer in time; the payment may have been made")
    return payment


@app.get("/orders/{order_id}/payments", operation_id="list_payments", response_model=list[PaymentOut])
def list_payments(order_id: int, db: Session = Depends(get_db)):
    """Payments of an order."""
    return found(db, Order, order_id).payments


@app.post("/payments/{payment_id}/refund", operation_id="refund_payment", response_model=PaymentOut)
def refund_payment(payment_id: int, db: Session = Depends(get_db)):
    """Gives a payment of a draft back."""
    payment = found(db, Payment, payment_id)
    if payment.status != "captured" or found(db, Order, payment.order_id).status != "draft":
        raise HTTPException(409, "only a captured payment of a draft can be refunded; cancel the order instead")
    payment.status = "refunded"
    db.commit()
    return payment


@app.post("/orders/{order_id}/place", operation_id="place_order", response_model=OrderOut)
def place_order(order_id: int, db: Session = Depends(get_db)):
    """Makes a paid draft a placed order."""
    order = found(db, Order, order_id)
    if order.status != "draft":
        raise HTTPException(409, f"order {order_id} is {order.status}")
    paid = sum(p.amount_cents for p in order.payments if p.status == "captured")
    if not order.items or paid != order.total_cents:
        raise HTTPException(409, f"{order.total_cents} cents are due and {paid} are paid")
    if order.coupon_code:
        db.get(Coupon, order.coupon_code).uses_left -= 1
    order.status = "placed"
    db.commit()
    return order


@app.put("/orders/{order_id}/address", operation_id="change_address", response_model=OrderOut)
def change_address(order_id: int, new: AddressChoice, db: Session = Depends(get_db)):
    """Sends an order elsewhere, as long as it is not on its way."""
    order, address = found(db, Order, order_id), found(db, Address, new.address_id)
    if order.status not in ("draft", "placed"):
        raise HTTPException(409, f"order {order_id} is {order.status}")
    if address.customer_id != order.customer_id:
        raise HTTPException(403, f"address {address.id} belongs to another customer")
    order.address_id = address.id
    db.commit()
    return order


@app.post("/orders/{order_id}/ship", operation_id="ship_order", response_model=ShipmentOut, status_code=201)
def ship_order(order_id: int, new: ShipFrom, db: Session = Depends(get_db)):
    """Sends a placed order from one warehouse, which must have all of it."""
    order = found(db, Order, order_id)
    if order.status != "placed":
        raise HTTPException(409, f"order {order_id} is {order.status}")
    for item in order.items:
        stock = db.get(Stock, (item.product_id, new.warehouse))
        if stock is None or stock.quantity < item.quantity:
            db.rollback()
            has = stock.quantity if stock else 0
            raise HTTPException(409, f"{new.warehouse} has {has} of product {item.product_id}; {item.quantity} needed")
        stock.quantity -= item.quantity
    shipment = Shipment(order_id=order.id, warehouse=new.warehouse, status="on_the_way")
    order.status = "shipped"
    db.add(shipment)
    db.commit()
    return shipment


@app.post("/orders/{order_id}/cancel", operation_id="cancel_order", response_model=OrderDetails)
def cancel_order(order_id: int, db: Session = Depends(get_db)):
    """Cancels a draft or placed order and refunds its payments."""
    order = found(db, Order, order_id)
    if order.status not in ("draft", "placed"):
        raise HTTPException(409, f"order {order_id} is {order.status} and cannot be cancelled")
    for payment in order.payments:
        if payment.status == "captured":
            payment.status = "refunded"
    order.status = "cancelled"
    db.commit()
    db.refresh(order)
    return order


@app.post("/orders/{order_id}/returns", operation_id="request_return", response_model=ReturnOut, status_code=201)
def request_return(order_id: int, new: NewReturn, db: Session = Depends(get_db)):
    """Asks to return items of a delivered order, within 30 days."""
    order, item = found(db, Order, order_id), found(db, Item, new.item_id)
    if order.status != "delivered" or item.order_id != order.id:
        raise HTTPException(409, f"order {order_id} has no delivered item {new.item_id}")
    days = db.execute(text("SELECT julianday(:t) - julianday(:d)"), {"t": TODAY, "d": order.delivered_on}).scalar()
    if days > RETURN_DAYS:
        raise HTTPException(409, f"order {order_id} was delivered {int(days)} days ago; {RETURN_DAYS} are allowed")
    gone = db.query(func.coalesce(func.sum(Return.quantity), 0)).filter(Return.item_id == item.id).scalar()
    if gone + new.quantity > item.quantity:
        raise HTTPException(409, f"item {item.id} has {item.quantity - gone} left to return")
    found_return = Return(
        order_id=order.id,
        item_id=item.id,
        quantity=new.quantity,
        reason=new.reason,
        status="requested",
        refund_cents=new.quantity * item.price_cents,
    )
    db.add(found_return)
    db.commit()
    return found_return


@app.get("/orders/{order_id}/returns", operation_id="list_returns", response_model=list[ReturnOut])
def list_returns(order_id: int, db: Session = Depends(get_db)):
    """Returns of an order."""
    return db.query(Return).filter(Return.order_id == order_id).all()


@app.post("/returns/{return_id}/approve", operation_id="approve_return", response_model=ReturnOut)
def approve_return(
    return_id: int, warehouse: str = Query(..., description="Where it goes"), db: Session = Depends(get_db)
):
    """Takes the goods back into a warehouse and gives the customer store credit."""
    row = found(db, Return, return_id)
    if row.status != "requested":
        raise HTTPException(409, f"return {return_id} is {row.status}")
    item = db.get(Item, row.item_id)
    stock = db.get(Stock, (item.product_id, warehouse))
    if stock is None:
        raise HTTPException(409, f"{warehouse!r} does not keep product {item.product_id}")
    stock.quantity += row.quantity
    db.get(Customer, db.get(Order, row.order_id).customer_id).credit_cents += row.refund_cents
    row.status = "approved"
    db.commit()
    return row


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")))

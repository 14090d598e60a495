"""Runs in the jail, before a world is loaded: uses FastAPI and SQLAlchemy once, so that what they make at first use is
there before the forks and shared by them."""

from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import ForeignKey, String, create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship, sessionmaker


class Base(DeclarativeBase):
    pass


class Owner(Base):
    __tablename__ = "owners"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(50))
    things: Mapped[list["Thing"]] = relationship(back_populates="owner")


class Thing(Base):
    __tablename__ = "things"
    id: Mapped[int] = mapped_column(primary_key=True)
    owner_id: Mapped[int] = mapped_column(ForeignKey("owners.id"))
    price: Mapped[float] = mapped_column(default=1.0)
    owner: Mapped[Owner] = relationship(back_populates="things")


class NewThing(BaseModel):
    owner_id: int = Field(..., ge=1)
    price: float = 2.0
    note: str | None = None


class Shown(BaseModel):
    model_config = ConfigDict(from_attributes=True)
    id: int
    price: float


def use() -> None:
    from rufus_plugins.rollouts.environments.world_app import Application

    engine = create_engine("sqlite://", connect_args={"check_same_thread": False})
    sessions = sessionmaker(bind=engine, autoflush=False)
    app = FastAPI()

    def session():
        found = sessions()
        try:
            yield found
        finally:
            found.close()

    @app.post("/things", response_model=Shown, status_code=201)
    def add(new: NewThing, db: Annotated[Session, Depends(session)]):
        thing = Thing(owner_id=new.owner_id, price=new.price)
        db.add(thing)
        db.commit()
        db.refresh(thing)
        return thing

    @app.get("/things/{thing_id}", response_model=Shown)
    def one(db: Annotated[Session, Depends(session)], thing_id: Annotated[int, Path()]):
        thing = db.query(Thing).filter(Thing.id == thing_id).first()
        if thing is None:
            raise HTTPException(404, "no such thing")
        thing.price += 1
        db.commit()
        return thing

    @app.get("/things", response_model=list[Shown])
    async def many(least: Annotated[float, Query()] = 0.0):
        with sessions() as db:
            db.scalar(select(func.count()).select_from(Thing))
            return db.scalars(select(Thing).join(Thing.owner).where(Thing.price > least).order_by(Thing.id)).all()

    application = Application.of(app)
    with engine.connect() as connection:
        Base.metadata.create_all(connection)
        with sessions() as db:
            db.add(Owner(id=1, name="x"))
            db.commit()
    application.open()
    for request in (
        {"method": "POST", "path": "/things", "body": '{"owner_id": 1}'},
        {"method": "GET", "path": "/things/1"},
        {"method": "GET", "path": "/things/2"},
        {"method": "GET", "path": "/things/x"},
        {"method": "GET", "path": "/things", "query": "least=0.5"},
        {"method": "GET", "path": "/nowhere"},
    ):
        application.call(request, 10.0, 1000)
    app.openapi()
    application.close()
    application.loop.close()
    engine.dispose()

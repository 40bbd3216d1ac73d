"""SQLAlchemy 2 as its tutorial uses it: create_all, ORM inserts of several rows, queries, reflection, drop_all.

Arguments: the URL of the database, with the driver to use (postgresql+psycopg://…).
"""

import asyncio
import datetime
import decimal
import sys
import uuid

from sqlalchemy import (Boolean, DateTime, ForeignKey, Index, MetaData, Numeric, String, Text, UniqueConstraint,
                        Uuid, create_engine, extract, func, inspect, select, text, update)
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship, selectinload


class Base(DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "user_account"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(30))
    fullname: Mapped[str | None]
    active: Mapped[bool] = mapped_column(Boolean, default=True)
    token: Mapped[uuid.UUID] = mapped_column(Uuid, default=uuid.uuid4)
    balance: Mapped[decimal.Decimal] = mapped_column(Numeric(12, 2), default=0)
    created: Mapped[datetime.datetime] = mapped_column(DateTime, server_default=func.now())
    addresses: Mapped[list["Address"]] = relationship(back_populates="user", cascade="all, delete-orphan")
    __table_args__ = (UniqueConstraint("name", name="user_name_unique"),)


class Address(Base):
    __tablename__ = "address"
    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str] = mapped_column(Text)
    user_id: Mapped[int] = mapped_column(ForeignKey("user_account.id", ondelete="CASCADE"))
    user: Mapped[User] = relationship(back_populates="addresses")
    __table_args__ = (Index("address_email", "email"),)


def work(connection):
    with Session(connection) as session:
        session.add_all([
            User(name="spongebob", fullname="Spongebob Squarepants", balance=decimal.Decimal("12.50"),
                 addresses=[Address(email="spongebob@sqlalchemy.org")]),
            User(name="sandy", fullname="Sandy Cheeks",
                 addresses=[Address(email="sandy@sqlalchemy.org"), Address(email="sandy@squirrelpower.org")]),
            User(name="patrick", fullname="Patrick Star", active=False),
        ])
        session.flush()
        names = session.scalars(select(User.name).where(User.name.in_(["spongebob", "sandy"])).order_by(User.name)).all()
        assert names == ["sandy", "spongebob"], names
        sandy = session.scalars(select(User).options(selectinload(User.addresses)).where(User.name == "sandy")).one()
        assert isinstance(sandy.id, int) and isinstance(sandy.token, uuid.UUID), (sandy.id, sandy.token)
        assert isinstance(sandy.created, datetime.datetime), sandy.created
        assert [a.email for a in sandy.addresses] == ["sandy@sqlalchemy.org", "sandy@squirrelpower.org"]
        joined = session.execute(select(User.name, func.count(Address.id)).outerjoin(User.addresses).group_by(User.name)
                                 .order_by(User.name)).all()
        assert [tuple(r) for r in joined] == [("patrick", 0), ("sandy", 2), ("spongebob", 1)], joined
        assert session.scalar(select(User.balance).where(User.name == "spongebob")) == decimal.Decimal("12.50")
        assert session.scalar(select(extract("year", User.created)).where(User.name == "sandy")) == sandy.created.year
        assert session.scalar(select(User.active).where(User.name == "patrick")) is False
        session.execute(update(User).where(User.name == "patrick").values(fullname="Patrick Sea Star"))
        session.delete(sandy)
        session.flush()
        assert session.scalar(select(func.count()).select_from(Address)) == 1
        session.commit()


def reflect(connection):
    inspector = inspect(connection)
    assert set(inspector.get_table_names()) == {"user_account", "address"}, inspector.get_table_names()
    assert inspector.has_table("address") and not inspector.has_table("nothing")
    assert inspector.get_pk_constraint("address")["constrained_columns"] == ["id"]
    unique = inspector.get_unique_constraints("user_account")
    assert [u["column_names"] for u in unique] == [["name"]], unique
    (key,) = inspector.get_foreign_keys("address")
    assert (key["constrained_columns"], key["referred_table"], key["referred_columns"]) == (["user_id"], "user_account", ["id"]), key
    assert key["options"].get("ondelete") == "CASCADE", key
    assert "address_email" in [i["name"] for i in inspector.get_indexes("address")], inspector.get_indexes("address")
    assert inspector.get_schema_names() and inspector.get_view_names() == []
    metadata = MetaData()
    metadata.reflect(connection)
    users = metadata.tables["user_account"]
    assert users.c.name.type.length == 30 and not users.c.name.nullable and users.c.fullname.nullable, repr(users)
    assert (users.c.balance.type.precision, users.c.balance.type.scale) == (12, 2), repr(users.c.balance)
    assert isinstance(users.c.active.type, Boolean), repr(users.c.active)
    rows = connection.execute(select(users.c.name).order_by(users.c.name)).scalars().all()
    assert rows == ["patrick", "spongebob"], rows


def stream(connection):
    rows = connection.execution_options(stream_results=True, yield_per=2).execute(text("select name from user_account order by 1"))
    assert [tuple(r) for r in rows] == [("patrick",), ("spongebob",)]


def synchronous(url):
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    Base.metadata.create_all(engine)  # finds that the tables are there
    with engine.connect() as connection:
        work(connection)
        reflect(connection)
        stream(connection)
        connection.rollback()
    Base.metadata.drop_all(engine)
    with engine.connect() as connection:
        assert inspect(connection).get_table_names() == []
    engine.dispose()


async def asynchronous(url):
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with engine.connect() as connection:
        await connection.run_sync(work)
        await connection.run_sync(reflect)
        rows = [tuple(r) async for r in await connection.stream(text("select name from user_account order by 1"))]
        assert rows == [("patrick",), ("spongebob",)], rows
        await connection.rollback()
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.drop_all)
    await engine.dispose()


if "+asyncpg" in sys.argv[1]:
    asyncio.run(asynchronous(sys.argv[1]))
else:
    synchronous(sys.argv[1])
print("ok")

"""asyncpg with a pool: types, arrays, prepared statements, cursors, COPY, transactions, and the reset of what a connection has set.

Arguments: the URL of the database.
"""

import asyncio
import datetime
import io
import sys

import asyncpg


async def work(pool):
    async with pool.acquire() as c:
        await c.execute("create table items (id serial primary key, name text not null, n integer, at timestamp, ok boolean)")
        await c.executemany("insert into items (name, n, at, ok) values ($1, $2, $3, $4)", [
            ("a", 1, datetime.datetime(2026, 1, 2, 3, 4, 5), True), ("b", 2, None, False), ("c", 3, None, None)])
        row = await c.fetchrow("select * from items where name = $1", "a")
        assert dict(row) == {"id": 1, "name": "a", "n": 1, "at": datetime.datetime(2026, 1, 2, 3, 4, 5), "ok": True}, row
        assert await c.fetchval("insert into items (name) values ($1) returning id", "d") == 4
        try:
            await c.execute("insert into items (id, name) values (1, 'x')")
            raise AssertionError("a second row with id 1")
        except asyncpg.UniqueViolationError:
            pass


async def arrays(pool):
    async with pool.acquire() as c:
        rows = await c.fetch("select name from items where id = any($1::int[]) order by id", [1, 3, 9])
        assert [r["name"] for r in rows] == ["a", "c"], rows
        assert await c.fetchval("select array_agg(n order by n desc) from items where n is not null") == [3, 2, 1]
        assert await c.fetchval("select array_agg(ok) from items where id < 3") == [True, False]
        assert await c.fetchval("select $1::text[]", ["x", None]) == ["x", None]
        rows = await c.fetch("select * from unnest($1::int[], $2::text[]) as t(n, s)", [1, 2], ["x", "y"])
        assert [tuple(r) for r in rows] == [(1, "x"), (2, "y")], rows


async def prepared(pool):
    async with pool.acquire() as c:
        statement = await c.prepare("select id, name from items where n > $1 order by id")
        assert [p.name for p in statement.get_parameters()] == ["int4"], statement.get_parameters()
        assert [(a.name, a.type.name) for a in statement.get_attributes()] == [("id", "int4"), ("name", "text")], statement.get_attributes()
        assert [tuple(r) for r in await statement.fetch(1)] == [(2, "b"), (3, "c")]
        assert await statement.fetchval(2, column=1) == "c"
        async with c.transaction():
            assert [r["id"] async for r in statement.cursor(0)] == [1, 2, 3]


async def resets(pool):
    """A released connection has lost its settings and its transaction."""
    async with pool.acquire() as c:
        await c.execute("set application_name = 'kept'")
        await c.execute("begin; update items set n = 100")
    for _ in range(4):
        async with pool.acquire() as c:
            assert await c.fetchval("show application_name") != "kept"
            assert await c.fetchval("select max(n) from items") == 3
            assert not c.is_in_transaction()


async def cursors(pool):
    async with pool.acquire() as c, c.transaction():
        names = [r["name"] async for r in c.cursor("select name from items order by id", prefetch=2)]
        assert names == ["a", "b", "c", "d"], names
        cursor = await c.cursor("select name from items order by id")
        assert (await cursor.fetchrow())["name"] == "a"
        assert await cursor.forward(1) == 1
        assert [r["name"] for r in await cursor.fetch(5)] == ["c", "d"]


async def copy(pool):
    async with pool.acquire() as c:
        out = io.BytesIO()
        await c.copy_from_table("items", columns=["id", "name"], output=out, format="csv", header=True)
        assert out.getvalue() == b"id,name\n1,a\n2,b\n3,c\n4,d\n", out.getvalue()
        status = await c.copy_to_table("items", source=io.BytesIO(b"x\t7\n\\N\\\\\t\\N\n"), columns=["name", "n"])
        assert status == "COPY 2", status
        assert await c.fetchval("select n from items where name = $1", "x") == 7
        status = await c.copy_records_to_table("items", records=[("y", 8, True), ("z", None, None)], columns=["name", "n", "ok"])
        assert status == "COPY 2", status
        assert await c.fetchval("select n from items where name = $1 and ok", "y") == 8
        out = io.BytesIO()
        await c.copy_from_query("select name from items where n > $1 order by n", 6, output=out)
        assert out.getvalue() == b"x\ny\n", out.getvalue()


async def transactions(pool):
    async with pool.acquire() as c:
        try:
            async with c.transaction():
                await c.execute("delete from items")
                async with c.transaction():
                    await c.execute("select * from nowhere")
        except asyncpg.UndefinedTableError:
            pass
        assert await c.fetchval("select count(*) from items") == 8


async def main(url):
    async with asyncpg.create_pool(url, min_size=2, max_size=4) as pool:
        await work(pool)
        await arrays(pool)
        await prepared(pool)
        await resets(pool)
        await cursors(pool)
        await copy(pool)
        await transactions(pool)
        counts = await asyncio.gather(*(pool.fetchval("select count(*) from items where n >= $1", n) for n in range(20)))
        assert counts[0] == 5 and counts[19] == 0, counts


asyncio.run(main(sys.argv[1]))
print("ok")

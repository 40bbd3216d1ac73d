"""asyncpg with a pool: types, prepared statements, cursors, COPY, transactions.

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


async def cursors(pool):
    async with pool.acquire() as c, c.transaction():
        names = [r["name"] async for r in c.cursor("select name from items order by id", prefetch=2)]
        assert names == ["a", "b", "c", "d"], names


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
        await cursors(pool)
        await copy(pool)
        await transactions(pool)
        counts = await asyncio.gather(*(pool.fetchval("select count(*) from items where n >= $1", n) for n in range(20)))
        assert counts[0] == 5 and counts[19] == 0, counts


asyncio.run(main(sys.argv[1]))
print("ok")

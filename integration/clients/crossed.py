"""Fifty clients that check that each answer is their own: each asks with a tag that nobody else has.

Arguments: asyncpg or psycopg, the URL of the database, clients, operations of each, "calm" or "killed" (then connections may get lost at any
time), and psycopg's prepare_threshold. Prints "crossed", "stuck" or "wrong" and what it was for each answer that is not right, and at last
"done", how many operations there were, and how many were lost with their connection.
"""

import asyncio
import io
import random
import sys

PATIENCE = 60  # seconds for an operation, then it is stuck

driver, url, clients, operations, mode = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
done = lost = 0


class Crossed(Exception):
    """An answer that is not the client's."""


def check(got, want):
    if got != want:
        raise Crossed(f"got {got!r}, want {want!r}")


class Asyncpg:
    async def connect(self):
        import asyncpg
        self.errors = (asyncpg.PostgresError,)
        self.c = await asyncpg.connect(url)

    def drop(self):
        self.c.terminate()

    async def ask(self, tag):
        check([tuple(r) for r in await self.c.fetch("select $1::text, g from generate_series(1, 3) g", tag)], [(tag, 1), (tag, 2), (tag, 3)])

    async def ask_simply(self, tag):
        await self.c.execute(f"select '{tag}'")
        check(await self.c.fetchval("select $1::text || ''", tag), tag)

    async def transaction(self, tag):
        async with self.c.transaction():
            await self.c.execute("insert into crossed values ($1, 1)", tag)
            check([r[0] for r in await self.c.fetch("select tag from crossed where tag = $1", tag)], [tag])

    async def fail(self, tag):
        await expect(self, "22012", self.c.fetchval("select $1::text || (1 / 0)", tag))
        await self.ask(tag)

    async def fail_in_transaction(self, tag):
        async def failing():
            async with self.c.transaction():
                await self.c.execute("insert into crossed values ($1, 2)", tag)
                await self.c.execute("select 1 / 0")
        await expect(self, "22012", failing())
        check(await self.c.fetchval("select count(*) from crossed where tag = $1", tag), 0)

    async def cancel(self, tag):
        try:
            await asyncio.wait_for(self.c.execute("select pg_sleep(20)"), 0.02)
            raise Crossed("a sleep of 20 seconds was over after 20 ms")
        except TimeoutError:
            pass
        await self.ask(tag)

    async def copy(self, tag):
        await self.c.copy_records_to_table("crossed", records=[(tag, n) for n in range(50)], columns=["tag", "n"])
        out = io.BytesIO()
        await self.c.copy_from_query("select tag, n from crossed where tag = $1 order by n", tag, output=out)
        check(out.getvalue().decode(), "".join(f"{tag}\t{n}\n" for n in range(50)))

    async def pipeline(self, tag):
        await self.c.executemany("insert into crossed values ($1, $2)", [(tag, n) for n in range(5)])
        check(await self.c.fetchval("select sum(n) from crossed where tag = $1", tag), 10)

    async def disconnect(self, tag):
        query = asyncio.ensure_future(self.c.fetch("select $1::text from generate_series(1, 100000)", tag))
        await asyncio.sleep(0.002)
        self.drop()
        await asyncio.gather(query, return_exceptions=True)
        await self.connect()


class Psycopg(Asyncpg):
    async def connect(self):
        import psycopg
        self.errors = (psycopg.Error,)
        self.c = await psycopg.AsyncConnection.connect(url, autocommit=True, prepare_threshold=int(sys.argv[6]))

    def drop(self):
        self.c.pgconn.finish()

    async def rows(self, sql, *args):
        return await (await self.c.execute(sql, args)).fetchall()

    async def ask(self, tag):
        check(await self.rows("select %s::text, g from generate_series(1, 3) g", tag), [(tag, 1), (tag, 2), (tag, 3)])

    async def ask_simply(self, tag):
        check(await self.rows(f"select '{tag}'"), [(tag,)])

    async def transaction(self, tag):
        async with self.c.transaction():
            await self.c.execute("insert into crossed values (%s, 1)", (tag,))
            check(await self.rows("select tag from crossed where tag = %s", tag), [(tag,)])

    async def fail(self, tag):
        await expect(self, "22012", self.rows("select %s::text || (1 / 0)", tag))
        await self.ask(tag)

    async def fail_in_transaction(self, tag):
        async def failing():
            async with self.c.transaction():
                await self.c.execute("insert into crossed values (%s, 2)", (tag,))
                await self.c.execute("select 1 / 0")
        await expect(self, "22012", failing())
        check(await self.rows("select count(*) from crossed where tag = %s", tag), [(0,)])

    async def cancel(self, tag):
        query = asyncio.ensure_future(self.c.execute("select pg_sleep(20)"))
        while not query.done():
            await asyncio.sleep(0.02)
            await self.c.cancel_safe(timeout=PATIENCE)
        await expect(self, "57014", query)
        await self.ask(tag)

    async def copy(self, tag):
        async with self.c.cursor().copy("copy crossed from stdin") as copy:
            for n in range(50):
                await copy.write_row((tag, n))
        async with self.c.cursor().copy("copy (select tag, n from crossed where tag = %s order by n) to stdout", (tag,)) as copy:
            check([row async for row in copy.rows()], [(tag, str(n)) for n in range(50)])

    async def pipeline(self, tag):
        async with self.c.pipeline():
            cursors = [await self.c.execute("select %s::text, %s::int", (tag, n)) for n in range(5)]
        for n, cursor in enumerate(cursors):
            check(await cursor.fetchall(), [(tag, n)])

    async def disconnect(self, tag):
        self.c.pgconn.send_query(f"select '{tag}' from generate_series(1, 100000)".encode())
        self.c.pgconn.flush()
        self.drop()
        await self.connect()


async def expect(self, state, awaitable):
    try:
        await awaitable
    except self.errors as e:
        if e.sqlstate != state:
            raise
    else:
        raise Crossed(f"no error {state}")


async def client(number):
    global done, lost
    rng = random.Random(number)
    me = (Asyncpg if driver == "asyncpg" else Psycopg)()
    connected = False
    for n in range(operations):
        name = rng.choice(["ask", "ask", "ask_simply", "transaction", "fail", "fail_in_transaction", "cancel", "copy", "pipeline", "disconnect"])
        tag = f"{number}.{n}.{name}"
        try:
            if not connected:
                await asyncio.wait_for(me.connect(), PATIENCE)
                connected = True
            await asyncio.wait_for(getattr(me, name)(tag), PATIENCE)
        except Crossed as e:
            print("crossed", tag, e, flush=True)
        except TimeoutError:
            print("stuck", tag, flush=True)
            connected = False
        except Exception as e:  # the drivers have many for a connection that is lost
            lost += 1
            connected = False
            if mode == "calm":
                print("wrong", tag, repr(e), flush=True)
            try:
                me.drop()
            except Exception:
                pass
        done += 1


async def main():
    await asyncio.gather(*(client(n) for n in range(clients)))
    print("done", done, lost)


asyncio.run(main())

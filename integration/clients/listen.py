"""Listens by asyncpg or psycopg, alone and with a second client: listen.py asyncpg|psycopg URL.

Prints "ok" once every notification has come, in order, with the right sender.
"""

import asyncio
import sys

PATIENCE = 60
COUNT = 50


async def with_asyncpg(url):
    import asyncpg

    heard = asyncio.Queue()
    listener, other = await asyncpg.connect(url), await asyncpg.connect(url)
    own = listener.get_server_pid()
    await listener.add_listener("drivers", lambda conn, pid, channel, payload: heard.put_nowait((pid, channel, payload)))
    for i in range(COUNT):
        await other.execute(f"notify drivers, 'other{i}'")
        pid, channel, payload = await asyncio.wait_for(heard.get(), PATIENCE)
        assert (channel, payload) == ("drivers", f"other{i}") and pid != own, (pid, channel, payload)
        await listener.execute("select pg_notify('drivers', $1)", f"own{i}")
        pid, channel, payload = await asyncio.wait_for(heard.get(), PATIENCE)
        assert (channel, payload, pid) == ("drivers", f"own{i}", own), (pid, channel, payload)
        async with listener.transaction():
            assert await listener.fetchval("select $1::int", i) == i
    await listener.reset_listeners() if hasattr(listener, "reset_listeners") else None
    await listener.execute("unlisten *")
    await other.execute("notify drivers, 'unheard'")
    await listener.execute("select 1")
    assert heard.empty()
    await listener.close()
    await other.close()


async def with_psycopg(url):
    import psycopg

    listener = await psycopg.AsyncConnection.connect(url, autocommit=True)
    other = await psycopg.AsyncConnection.connect(url, autocommit=True)
    await listener.execute("listen drivers")
    own = listener.info.backend_pid
    for i in range(COUNT):
        await other.execute(f"notify drivers, 'other{i}'")
        async for n in listener.notifies(timeout=PATIENCE, stop_after=1):
            assert (n.channel, n.payload) == ("drivers", f"other{i}") and n.pid != own, n
            break
        else:
            raise AssertionError("no notification")
        await listener.execute(f"notify drivers, 'own{i}'")
        async for n in listener.notifies(timeout=PATIENCE, stop_after=1):
            assert (n.channel, n.payload, n.pid) == ("drivers", f"own{i}", own), n
            break
        else:
            raise AssertionError("no notification of its own")
        async with listener.transaction():
            row = await (await listener.execute("select %s::int", (i,))).fetchone()
            assert row == (i,)
    await listener.close()
    await other.close()


asyncio.run({"asyncpg": with_asyncpg, "psycopg": with_psycopg}[sys.argv[1]](sys.argv[2]))
print("ok")

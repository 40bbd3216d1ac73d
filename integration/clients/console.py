"""Runs commands of the console by psycopg: console.py URL. Prints "ok"."""

import sys

import psycopg
from psycopg.rows import dict_row

url = sys.argv[1]
for cursor in (psycopg.Cursor, psycopg.ClientCursor):
    with psycopg.connect(url, autocommit=True, cursor_factory=cursor, row_factory=dict_row) as conn:
        for prepare in (None, True):
            pools = conn.execute("SHOW POOLS", prepare=prepare).fetchall()
            assert [p["database"] for p in pools] == ["shop", "pgbouncer"], pools
            assert isinstance(pools[0]["cl_active"], int) and pools[0]["pool_mode"] == "transaction", pools
            stats = conn.execute("SHOW STATS", prepare=prepare).fetchall()
            assert all(s["total_query_count"] >= 0 for s in stats), stats
        for binary in {False, cursor is psycopg.Cursor}:
            lists = {r["list"]: r["items"] for r in conn.execute("SHOW LISTS", binary=binary).fetchall()}
            assert lists["databases"] == 2, lists
            totals = {r["name"]: r["value"] for r in conn.execute("SHOW TOTALS", binary=binary).fetchall()}
            assert totals["total_query_count"] > 0, totals
        assert conn.execute("PAUSE").statusmessage == "PAUSE"
        assert conn.execute("SHOW DATABASES").fetchone()["paused"] == 1
        assert conn.execute("RESUME").statusmessage == "RESUME"
        try:
            conn.execute("SHOW NONSENSE")
            raise AssertionError("SHOW NONSENSE succeeds")
        except psycopg.errors.SyntaxError as e:
            assert e.diag.message_hint == "Use SHOW HELP;", e
        notices = []
        conn.add_notice_handler(lambda n: notices.append(n.message_detail))
        conn.execute("SHOW HELP")
        assert "KILL_CLIENT" in notices[0], notices
        assert conn.execute("select 1").fetchone() == {"?column?": 1}
print("ok")
